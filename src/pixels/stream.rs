//! Copies that bypass the cache, for results too large to stay in it.

use std::mem::MaybeUninit;

use bytemuck::Pod;

/// Results from this many bytes on are streamed: about one core's share of a server's last-level cache.
pub const STREAM_BYTES: usize = 4 << 20;

/// Copies `values` to `space`, of the same length. On x86-64 the stores bypass the cache, and [`fence`] must follow
/// before another thread reads them.
#[cfg(target_arch = "x86_64")]
pub fn copy<T: Pod>(values: &[T], space: &mut [MaybeUninit<T>]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    /// Stores of whole cache lines are combined into one write.
    const LINE: usize = 64;
    assert_eq!(values.len(), space.len());
    let length = size_of_val(values);
    let (from, to): (*const u8, *mut u8) = (values.as_ptr().cast(), space.as_mut_ptr().cast());
    let head = to.align_offset(LINE).min(length);
    let lines = (length - head) / LINE;
    // SAFETY: both slices have `length` bytes and do not overlap, since one is borrowed mutably. The lines begin at a
    // multiple of 64 bytes of `to`, as streaming stores need.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let (from, to) =
                (from.add(head + line * LINE).cast::<__m128i>(), to.add(head + line * LINE).cast());
            for i in 0..LINE / size_of::<__m128i>() {
                _mm_stream_si128(<*mut __m128i>::add(to, i), _mm_loadu_si128(from.add(i)));
            }
        }
        let tail = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
    }
}

/// Copies `values` to `space`, of the same length.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy<T: Pod>(values: &[T], space: &mut [MaybeUninit<T>]) {
    space.write_copy_of_slice(values);
}

/// Orders the copies of this thread before all that follows.
pub fn fence() {
    // SAFETY: every x86-64 machine has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
