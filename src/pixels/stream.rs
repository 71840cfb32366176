//! Copies that bypass the cache, for results too large to stay in it.

use std::mem::MaybeUninit;

use bytemuck::Pod;

#[cfg(target_arch = "x86_64")]
use super::execution::Level;

/// Results from this many bytes on are streamed: about one core's share of a server's last-level cache.
pub const STREAM_BYTES: usize = 4 << 20;

/// Bytes of a cache line: what stores that bypass the cache are combined to.
pub const LINE: usize = 64;

/// Copies `values` to `space`, of the same length. On x86-64 the stores bypass the cache, and [`fence`] must follow
/// before another thread reads them.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn copy<T: Pod>(values: &[T], space: &mut [MaybeUninit<T>]) {
    assert_eq!(values.len(), space.len());
    let length = size_of_val(values);
    let (from, to): (*const u8, *mut u8) = (values.as_ptr().cast(), space.as_mut_ptr().cast());
    let head = to.align_offset(LINE).min(length);
    let lines = (length - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: both slices have `length` bytes and do not overlap, since one is borrowed mutably. The lines begin at a
    // multiple of 64 bytes of `to`.
    unsafe {
        if head > 0 {
            std::ptr::copy_nonoverlapping(from, to, head);
        }
        stream_lines(from.add(head), to.add(head), lines);
        if tail < length {
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
        }
    }
}

/// Copies whole lines past the cache.
///
/// # Safety
/// The lines can be read and written, do not overlap, and begin at a multiple of [`LINE`] of `to`.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    if Level::best() == Level::Avx512 {
        // SAFETY: the caller's promise; the instructions were detected.
        return unsafe { stream_whole_lines(from, to, lines) };
    }
    for i in 0..lines * (LINE / size_of::<__m128i>()) {
        let (from, to) = (from.cast::<__m128i>().wrapping_add(i), to.cast::<__m128i>().wrapping_add(i));
        // SAFETY: the caller's promise; a streaming store needs a multiple of 16 bytes.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from)) };
    }
}

/// [`stream_lines`], a line a store.
///
/// # Safety
/// As there; the machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_whole_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};
    for i in 0..lines {
        let (from, to) = (from.cast::<__m512i>().wrapping_add(i), to.cast::<__m512i>().wrapping_add(i));
        // SAFETY: the caller's promise.
        unsafe { _mm512_stream_si512(to, _mm512_loadu_si512(from)) };
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
