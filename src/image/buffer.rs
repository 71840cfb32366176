//! Pixel memory that reports exhaustion instead of ending the process.

use std::alloc::{Layout, alloc_zeroed};

use crate::{Error, Result};

/// `len` zero bytes. Large buffers come from the system already zero, so nothing is written here.
pub(super) fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let refused =
        || Error::out_of_memory(format!("no memory for {len} bytes of pixels: decode fewer at once"));
    let layout = Layout::array::<u8>(len).map_err(|_| refused())?;
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(refused());
    }
    // SAFETY: `start` was allocated by the global allocator with the layout of `len` bytes, all initialised to 0.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}
