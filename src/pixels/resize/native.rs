//! The passes in plain Rust. They define the answer that every other path reproduces bit for bit.

use std::ops::Range;

use super::fixed::Axis;
use super::integer::Passes;
use crate::pixels::view::View;

/// Hands each output row of `band` to `sink`, in order.
pub fn rows(passes: &Passes, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[u8])) {
    let channels = view.channels();
    let width = passes.horizontal().map_or(view.width(), Axis::output);
    let mut out = vec![0; width * channels];
    match (passes.horizontal(), passes.vertical()) {
        (Some(columns), Some(rows)) if passes.vertical_first() => {
            let (mut sums, mut between) =
                (vec![0; view.width() * channels], vec![0; view.width() * channels]);
            for y in band {
                vertical(|k| view.row(k), rows, y, &mut sums, &mut between);
                horizontal(&between, channels, columns, &mut out);
                sink(&out);
            }
        }
        (Some(columns), Some(rows)) => {
            let (first, end) = rows.taps.inputs(band.start, band.end);
            let mut between = vec![0; (end - first) * out.len()];
            for (row, y) in between.chunks_exact_mut(out.len()).zip(first..end) {
                horizontal(view.row(y), channels, columns, row);
            }
            let mut sums = vec![0; out.len()];
            let stride = out.len();
            for y in band {
                vertical(|k| &between[(k - first) * stride..][..stride], rows, y, &mut sums, &mut out);
                sink(&out);
            }
        }
        (Some(columns), None) => {
            for y in band {
                horizontal(view.row(y), channels, columns, &mut out);
                sink(&out);
            }
        }
        (None, Some(rows)) => {
            let mut sums = vec![0; out.len()];
            for y in band {
                vertical(|k| view.row(k), rows, y, &mut sums, &mut out);
                sink(&out);
            }
        }
        (None, None) => band.for_each(|y| sink(view.row(y))),
    }
}

/// One sample of a pass, from its sum of products with the rounding term included.
fn clamp(sum: i32, shift: u32) -> u8 {
    (sum >> shift).clamp(0, 255) as u8
}

/// The horizontal pass of one row of pixels with `channels` interleaved samples.
fn horizontal(row: &[u8], channels: usize, axis: &Axis, out: &mut [u8]) {
    for (pixel, window) in out.chunks_exact_mut(channels).zip(&axis.taps.windows) {
        let taps = &row[window.start * channels..(window.start + window.len) * channels];
        for (channel, sample) in pixel.iter_mut().enumerate() {
            let levels = taps.get(channel..).unwrap_or_default().iter().step_by(channels);
            let products =
                levels.zip(axis.taps.of(window)).map(|(&level, &weight)| i32::from(level) * weight);
            *sample = clamp(axis.half() + products.sum::<i32>(), axis.shift);
        }
    }
}

/// Row `y` of the vertical pass; `row(k)` is input row `k`.
fn vertical<'a>(row: impl Fn(usize) -> &'a [u8], axis: &Axis, y: usize, sums: &mut [i32], out: &mut [u8]) {
    let window = &axis.taps.windows[y];
    sums.fill(axis.half());
    for (k, &weight) in axis.taps.of(window).iter().enumerate() {
        for (sum, &level) in sums.iter_mut().zip(row(window.start + k)) {
            *sum += i32::from(level) * weight;
        }
    }
    for (sample, &sum) in out.iter_mut().zip(&*sums) {
        *sample = clamp(sum, axis.shift);
    }
}
