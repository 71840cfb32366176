//! ATen's antialiased float32 interpolation, bit for bit as its kernels for AVX2 and newer compute it.
//!
//! Columns are filtered first, then rows; nothing is rounded to levels or clamped. A sum starts with the first
//! product; further products come in blocks of four that are multiplied and then added one by one, and what is
//! left over (fewer than four) is added by fused multiply-adds.

use std::ops::Range;

use super::check_intermediate;
use super::ring::Ring;
use super::weights::{Taps, Window, radius};
use crate::pixels::Filter;
use crate::pixels::execution::Level;
use crate::pixels::view::{View, check_size};
use crate::pixels::work::Work;
use crate::{Error, Result};

/// Rows that go through the horizontal pass together, one a lane.
pub const LANES: usize = 8;

/// One value of each of [`LANES`] rows.
pub type Lanes = [f32; LANES];

fn evaluate(filter: Filter, x: f32) -> f32 {
    const A: f32 = -0.5;
    let x = x.abs();
    match filter {
        Filter::Bilinear if x < 1.0 => 1.0 - x,
        Filter::Bicubic if x < 1.0 => ((A + 2.0).mul_add(x, -(A + 3.0)) * x).mul_add(x, 1.0),
        Filter::Bicubic if x < 2.0 => A.mul_add(x, -5.0 * A).mul_add(x, 8.0 * A).mul_add(x, -4.0 * A),
        _ => 0.0,
    }
}

fn taps(input: usize, output: usize, filter: Filter) -> Taps<f32> {
    let scale = input as f32 / output as f32;
    let stretch = scale.max(1.0);
    let support = radius(filter) as f32 * stretch;
    let inverse = if scale >= 1.0 { (1.0 / f64::from(scale)) as f32 } else { 1.0 };
    let nominal = support.ceil() as usize * 2 + 1;
    let (mut windows, mut weights) = (Vec::with_capacity(output), Vec::new());
    for i in 0..output {
        let center = (f64::from(scale) * (i as f64 + 0.5)) as f32;
        let start = (f64::from(center - support) + 0.5).max(0.0) as usize;
        let end = ((f64::from(center + support) + 0.5) as usize).min(input);
        let (first, len) = (weights.len(), end.saturating_sub(start).min(nominal));
        weights.extend((start..start + len).map(|k| {
            let offset = f64::from(k as f32 - center) + 0.5;
            evaluate(filter, (offset * f64::from(inverse)) as f32)
        }));
        let total: f32 = weights[first..].iter().fold(0.0, |sum, weight| sum + weight);
        if total != 0.0 {
            weights[first..].iter_mut().for_each(|weight| *weight /= total);
        }
        windows.push(Window { start, len, first });
    }
    Taps { windows, weights }
}

/// The two passes; `None` where a side keeps its length.
#[derive(Clone, Debug)]
pub struct Passes {
    columns: Option<Taps<f32>>,
    rows: Option<Taps<f32>>,
}

impl Passes {
    /// Passes from `view`'s size to `width` x `height`.
    pub fn new(view: &View, width: u32, height: u32, filter: Filter) -> Result<Self> {
        check_size("target", width, height)?;
        check_intermediate(width as usize, view.height())?;
        if !matches!(filter, Filter::Bilinear | Filter::Bicubic) {
            return Err(Error::argument(format!(
                "ATen's float32 arithmetic is offered for bilinear and bicubic, not for {}",
                filter.name()
            )));
        }
        let axis = |input, output| (input != output).then(|| taps(input, output, filter));
        Ok(Self { columns: axis(view.width(), width as usize), rows: axis(view.height(), height as usize) })
    }

    /// Hands each output row of `band` to `sink`, in order.
    pub fn rows(&self, view: &View, band: Range<usize>, level: Level, sink: &mut dyn FnMut(&[f32])) {
        match level.min(Level::best()) {
            // SAFETY: the level is no wider than what was detected on this machine.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe {
                self.rows_with::<super::float_avx2::Avx2>(view, band, sink)
            },
            // SAFETY: plain code runs on any machine.
            _ => unsafe { self.rows_with::<Native>(view, band, sink) },
        }
    }

    /// # Safety
    /// The machine has `K`'s instructions.
    unsafe fn rows_with<K: Kernel>(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[f32])) {
        let width = self.columns.as_ref().map_or(view.width(), |taps| taps.windows.len());
        let samples = width * view.channels();
        let stride = samples.next_multiple_of(LANES);
        let tallest =
            self.rows.as_ref().map_or(1, |taps| taps.windows.iter().map(|w| w.len).max().unwrap_or(1));
        let mut ring = Ring::new((tallest + 2 * LANES).next_multiple_of(LANES), stride);
        let mut lanes = Work::new([0.0; LANES], (view.width() * view.channels()).next_multiple_of(LANES));
        let mut out = Work::new(0.0, stride);
        let inputs = |y| self.rows.as_ref().map_or((y, y + 1), |taps| taps.inputs(y, y + 1));
        let mut next = inputs(band.start).0 / LANES * LANES;
        for y in band {
            while next < inputs(y).1 {
                // Below the image its last row is repeated; no window reads that.
                let rows: [&[u8]; LANES] =
                    std::array::from_fn(|r| view.row((next + r).min(view.height() - 1)));
                let between = ring.rows_mut(next, LANES);
                // SAFETY: the caller vouches for the instructions.
                unsafe {
                    match &self.columns {
                        Some(taps) => {
                            K::spread(&rows, &mut lanes);
                            K::horizontal(&lanes, view.channels(), taps, between, stride);
                        }
                        None => {
                            between.chunks_exact_mut(stride).zip(rows).for_each(|(out, row)| widen(row, out))
                        }
                    }
                }
                next += LANES;
            }
            let Some(taps) = &self.rows else {
                sink(&ring.row(y)[..samples]);
                continue;
            };
            let window = &taps.windows[y];
            let rows: Vec<&[f32]> = (window.start..window.start + window.len).map(|k| ring.row(k)).collect();
            // SAFETY: the caller vouches for the instructions.
            unsafe { K::vertical(&rows, taps.of(window), &mut out) };
            sink(&out[..samples]);
        }
    }
}

/// The inner loops for one instruction set, on rows padded to [`LANES`] samples.
///
/// # Safety
/// Each function may be called only on a machine that has the instructions of the implementing type.
pub unsafe trait Kernel {
    /// Levels of [`LANES`] rows as values: one row a lane, one sample an element of `lanes`.
    unsafe fn spread(rows: &[&[u8]; LANES], lanes: &mut [Lanes]);

    /// Filters `lanes` along the row into [`LANES`] rows of `stride` values.
    unsafe fn horizontal(lanes: &[Lanes], channels: usize, taps: &Taps<f32>, out: &mut [f32], stride: usize);

    /// The weighted sum of rows.
    unsafe fn vertical(rows: &[&[f32]], weights: &[f32], out: &mut [f32]);
}

/// Plain Rust; defines the answer.
struct Native;

// SAFETY: no special instructions are used.
unsafe impl Kernel for Native {
    unsafe fn spread(rows: &[&[u8]; LANES], lanes: &mut [Lanes]) {
        for (r, row) in rows.iter().enumerate() {
            lanes.iter_mut().zip(*row).for_each(|(lanes, &level)| lanes[r] = f32::from(level));
        }
    }

    unsafe fn horizontal(lanes: &[Lanes], channels: usize, taps: &Taps<f32>, out: &mut [f32], stride: usize) {
        for (x, window) in taps.windows.iter().enumerate() {
            for channel in 0..channels {
                let sums = dot(taps.of(window), |k| lanes[(window.start + k) * channels + channel]);
                sums.iter().enumerate().for_each(|(r, &sum)| out[r * stride + x * channels + channel] = sum);
            }
        }
    }

    unsafe fn vertical(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        for (s, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            *out = dot(weights, |k| std::array::from_fn(|i| rows[k][s * LANES + i]));
        }
    }
}

fn widen(row: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(row).for_each(|(to, &from)| *to = f32::from(from));
}

/// The weighted sum in ATen's order; see the head of this file.
fn dot(weights: &[f32], tap: impl Fn(usize) -> Lanes) -> Lanes {
    let mut sums = [0.0; LANES];
    for (k, &weight) in weights.iter().enumerate() {
        for (sum, value) in sums.iter_mut().zip(tap(k)) {
            *sum = match k {
                0 => value * weight,
                _ if k <= unfused(weights.len()) => *sum + value * weight,
                _ => value.mul_add(weight, *sum),
            };
        }
    }
    sums
}

/// How many products after the first are multiplied and then added; the rest are fused.
pub fn unfused(taps: usize) -> usize {
    taps.saturating_sub(1) / 4 * 4
}
