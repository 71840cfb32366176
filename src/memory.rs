//! Memory of large results: the first touch of a page costs more than filling it, so pages are asked to be large.

use crate::{Error, Result};

/// Results from this many bytes on ask for huge pages. Below, the allocator reuses what was touched before.
const HUGE_BYTES: usize = 4 << 20;

/// An empty vector with room for exactly `length` elements, for `what` ("a patch matrix", ...).
pub fn reserve<T>(length: usize, what: &str) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(length).map_err(|_| {
        let bytes = length.saturating_mul(size_of::<T>());
        Error::out_of_memory(format!("no memory for {what} of {bytes} bytes: ask for less at once"))
    })?;
    ask_for_huge_pages(&mut room);
    Ok(room)
}

/// Only a hint: where the system has no huge pages, or keeps them for others, nothing changes.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages<T>(room: &mut Vec<T>) {
    const PAGE: usize = 4096;
    let room = room.spare_capacity_mut();
    let (start, length) = (room.as_mut_ptr().cast::<u8>(), size_of_val(room));
    if length < HUGE_BYTES {
        return;
    }
    let skipped = start.align_offset(PAGE);
    // SAFETY: the pages lie within one allocation that is ours alone, and the advice does not change their content.
    unsafe {
        libc::madvise(start.add(skipped).cast(), (length - skipped) / PAGE * PAGE, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages<T>(_room: &mut Vec<T>) {}
