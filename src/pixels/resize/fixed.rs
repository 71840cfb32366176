//! Integer weights of the 8-bit resamplers.

use super::weights::{Taps, Weighting, taps};
use crate::pixels::Filter;
use crate::{Error, Result};

/// Fractional bits of Pillow's weights, and the most that torchvision uses.
const MAX_SHIFT: u32 = 22;

/// One pass along one axis: `clamp((sum(weight * level) + half) >> shift, 0, 255)`.
///
/// Invariant: for each output `255 * sum(|weight|) + half <= i32::MAX`, so that no partial sum in any order
/// leaves `i32`, and wide instructions may add the products in any grouping.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Windows and integer weights, one window a sample that comes out.
    pub taps: Taps<i32>,
    /// Fractional bits of the weights.
    pub shift: u32,
}

impl Axis {
    /// Pillow's weights: 22 fractional bits.
    pub fn pillow(input: usize, output: usize, filter: Filter) -> Result<Self> {
        Self::round(input, taps(input, output, filter, Weighting::Pillow), MAX_SHIFT)
    }

    /// torchvision's weights: as many fractional bits as keep the axis' largest weight within `i16`.
    pub fn torchvision(input: usize, output: usize, filter: Filter) -> Result<Self> {
        let taps = taps(input, output, filter, Weighting::Aten);
        let peak = taps.weights.iter().copied().fold(0.0, f64::max);
        let fits = |shift: u32| ((0.5 + peak * f64::from(1u32 << shift)) as i64) < 1 << 15;
        let shift = (1..=MAX_SHIFT).take_while(|&shift| fits(shift)).last().unwrap_or(0);
        Self::round(input, taps, shift)
    }

    /// Samples that come out.
    pub fn output(&self) -> usize {
        self.taps.windows.len()
    }

    /// The rounding term.
    pub fn half(&self) -> i32 {
        (1 << self.shift) >> 1
    }

    fn round(input: usize, taps: Taps<f64>, shift: u32) -> Result<Self> {
        let one = f64::from(1u32 << shift);
        let weights =
            taps.weights.iter().map(|&w| (w * one + if w < 0.0 { -0.5 } else { 0.5 }) as i32).collect();
        let axis = Self { taps: Taps { windows: taps.windows, weights }, shift };
        let largest = axis.taps.windows.iter().map(|window| {
            axis.taps.of(window).iter().map(|&weight| i64::from(weight).abs()).sum::<i64>() * 255
        });
        if largest.max().unwrap_or(0) + i64::from(axis.half()) > i64::from(i32::MAX) {
            return Err(Error::internal(format!(
                "resizing {input} to {} samples needs sums wider than 32 bits",
                axis.output()
            )));
        }
        Ok(axis)
    }
}
