//! Pixels to planes with NEON's structure loads.
//!
//! Values are looked up by plain loads on this architecture: 256 values of two bytes fill all 32 registers, so that
//! table instructions would reload them at every step.

use std::arch::aarch64::*;

use super::super::layout::CHANNELS;

/// Pixels of one step.
const STEP: usize = 16;

/// Splits RGB pixels into planes.
#[target_feature(enable = "neon")]
pub fn split(row: &[u8], [first, second, third]: [&mut [u8]; CHANNELS]) {
    let pixels = row.as_chunks::<{ CHANNELS * STEP }>();
    let planes = first.as_chunks_mut::<STEP>();
    let (second, third) = (second.as_chunks_mut::<STEP>(), third.as_chunks_mut::<STEP>());
    let steps = planes.0.iter_mut().zip(second.0).zip(third.0);
    for (pixels, ((first, second), third)) in pixels.0.iter().zip(steps) {
        // SAFETY: the array has the 48 bytes that are read, and each plane the 16 that are written.
        unsafe {
            let uint8x16x3_t(r, g, b) = vld3q_u8(pixels.as_ptr());
            vst1q_u8(first.as_mut_ptr(), r);
            vst1q_u8(second.as_mut_ptr(), g);
            vst1q_u8(third.as_mut_ptr(), b);
        }
    }
    super::split(pixels.1, [planes.1, second.1, third.1]);
}
