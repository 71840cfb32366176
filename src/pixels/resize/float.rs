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
const LANES: usize = 16;

type Lanes = [f32; LANES];

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
                "ATen's float32 arithmetic is offered for bilinear and bicubic, not for {filter:?}"
            )));
        }
        let axis = |input, output| (input != output).then(|| taps(input, output, filter));
        Ok(Self { columns: axis(view.width(), width as usize), rows: axis(view.height(), height as usize) })
    }

    /// Hands each output row of `band` to `sink`, in order.
    pub fn rows(&self, view: &View, band: Range<usize>, level: Level, sink: &mut dyn FnMut(&[f32])) {
        match level {
            // SAFETY: a level is never wider than what was detected on this machine.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { self.rows_avx512(view, band, sink) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { self.rows_avx2(view, band, sink) },
            _ => self.rows_generic(view, band, sink),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
    fn rows_avx512(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[f32])) {
        self.rows_generic(view, band, sink);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn rows_avx2(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[f32])) {
        self.rows_generic(view, band, sink);
    }

    #[inline(always)]
    fn rows_generic(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[f32])) {
        let width = self.columns.as_ref().map_or(view.width(), |taps| taps.windows.len());
        let stride = width * view.channels();
        let tallest =
            self.rows.as_ref().map_or(1, |taps| taps.windows.iter().map(|w| w.len).max().unwrap_or(1));
        let mut ring = Ring::new(tallest + 2 * LANES, stride.next_multiple_of(LANES));
        let mut lanes =
            vec![[0.0; LANES]; if self.columns.is_some() { view.width() * view.channels() } else { 0 }];
        let mut out = Work::new(0.0, stride.next_multiple_of(LANES));
        let (first, _) = self.rows.as_ref().map_or((band.start, 0), |taps| taps.inputs(band.start, band.end));
        let mut done = first;
        for y in band {
            let end = self.rows.as_ref().map_or(y + 1, |taps| taps.inputs(y, y + 1).1);
            while done < end {
                done += self.columns_of(view, done, &mut lanes, &mut ring);
            }
            match &self.rows {
                None => sink(&ring.row(y)[..stride]),
                Some(taps) => {
                    let window = &taps.windows[y];
                    for (s, lane) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        *lane = dot(taps.of(window), |k| load(&ring.row(window.start + k)[s * LANES..]));
                    }
                    sink(&out[..stride]);
                }
            }
        }
    }

    /// The horizontal pass of up to [`LANES`] rows from `first`, into `ring`; returns how many.
    #[inline(always)]
    fn columns_of(&self, view: &View, first: usize, lanes: &mut [Lanes], ring: &mut Ring<f32>) -> usize {
        let channels = view.channels();
        let count = LANES.min(view.height() - first);
        let Some(taps) = &self.columns else {
            for y in first..first + count {
                ring.rows_mut(y, 1).iter_mut().zip(view.row(y)).for_each(|(to, &from)| *to = f32::from(from));
            }
            return count;
        };
        for r in 0..count {
            lanes.iter_mut().zip(view.row(first + r)).for_each(|(lane, &sample)| lane[r] = f32::from(sample));
        }
        for (x, window) in taps.windows.iter().enumerate() {
            for channel in 0..channels {
                let sum = dot(taps.of(window), |k| lanes[(window.start + k) * channels + channel]);
                for (r, value) in sum.iter().enumerate().take(count) {
                    ring.rows_mut(first + r, 1)[x * channels + channel] = *value;
                }
            }
        }
        count
    }
}

#[inline(always)]
fn load(samples: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&samples[..LANES]);
    lanes
}

/// The weighted sum in ATen's order; see the head of this file.
#[inline(always)]
fn dot(weights: &[f32], tap: impl Fn(usize) -> Lanes) -> Lanes {
    let Some((first, rest)) = weights.split_first() else { return [0.0; LANES] };
    let mut sum = tap(0).map(|value| value * first);
    let (blocks, left) = rest.split_at(rest.len() / 4 * 4);
    for (k, weight) in blocks.iter().enumerate() {
        sum.iter_mut().zip(tap(k + 1)).for_each(|(sum, value)| *sum += value * weight);
    }
    for (k, &weight) in left.iter().enumerate() {
        let values = tap(blocks.len() + k + 1);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = value.mul_add(weight, *sum));
    }
    sum
}
