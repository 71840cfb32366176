//! Pixel memory that reports exhaustion instead of ending the process.

use std::alloc::{Layout, alloc_zeroed};

use crate::{Error, Result};

fn refused(len: usize) -> Error {
    Error::out_of_memory(format!("no memory for {len} bytes of pixels: decode fewer at once"))
}

/// An empty vector with room for `len` bytes.
pub(super) fn room(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| refused(len))?;
    Ok(bytes)
}

/// `len` zero bytes. Large buffers come from the system already zero, so nothing is written here.
pub(super) fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| refused(len))?;
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(refused(len));
    }
    // SAFETY: `start` was allocated by the global allocator with the layout of `len` bytes, all initialised to 0.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}
