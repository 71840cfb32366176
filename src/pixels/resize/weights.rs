//! Windows and weights of one axis, in double precision.

use std::f64::consts::PI;

use crate::pixels::Filter;

/// Whose details of the weight computation are followed. They differ in rounding only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// Pillow: separate multiplications and additions.
    Pillow,
    /// ATen as built for AVX2 and newer: contracted multiply-adds, windows capped at the filter's nominal size.
    Aten,
}

/// The taps of one output: `len` inputs from `start`, with the weights from `first` of the axis' table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First input.
    pub start: usize,
    /// Number of inputs; 0 only where a reference has no taps.
    pub len: usize,
    /// Offset into the table of weights.
    pub first: usize,
}

/// Windows and weights of all outputs of one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps<T> {
    /// One window an output. Starts and ends never decrease.
    pub windows: Vec<Window>,
    /// Weights of all windows, one after the other.
    pub weights: Vec<T>,
}

impl<T> Taps<T> {
    /// The weights of `window`.
    pub fn of(&self, window: &Window) -> &[T] {
        &self.weights[window.first..window.first + window.len]
    }

    /// Half-open range of inputs that outputs `from..to` read.
    pub fn inputs(&self, from: usize, to: usize) -> (usize, usize) {
        let (first, last) = (&self.windows[from], &self.windows[to - 1]);
        (first.start, last.start + last.len)
    }
}

/// Radius of a filter at scale 1. Nearest has none and never gets here.
pub fn radius(filter: Filter) -> f64 {
    match filter {
        Filter::Nearest => 0.0,
        Filter::Box => 0.5,
        Filter::Bilinear | Filter::Hamming => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

fn cubic(x: f64, weighting: Weighting) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    match weighting {
        Weighting::Pillow if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        Weighting::Pillow if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        Weighting::Aten if x < 1.0 => ((A + 2.0).mul_add(x, -(A + 3.0)) * x).mul_add(x, 1.0),
        Weighting::Aten if x < 2.0 => A.mul_add(x, -5.0 * A).mul_add(x, 8.0 * A).mul_add(x, -4.0 * A),
        _ => 0.0,
    }
}

fn evaluate(filter: Filter, x: f64, weighting: Weighting) -> f64 {
    match filter {
        Filter::Nearest => 0.0,
        Filter::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
        Filter::Bilinear => (1.0 - x.abs()).max(0.0),
        Filter::Hamming if x.abs() >= 1.0 => 0.0,
        Filter::Hamming if x == 0.0 => 1.0,
        Filter::Hamming => {
            let x = x.abs() * PI;
            // Pillow writes both constants in single precision.
            x.sin() / x * (f64::from(0.54f32) + f64::from(0.46f32) * x.cos())
        }
        Filter::Bicubic => cubic(x, weighting),
        Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        Filter::Lanczos => 0.0,
    }
}

/// Normalised weights for resampling `input` samples to `output`.
pub fn taps(input: usize, output: usize, filter: Filter, weighting: Weighting) -> Taps<f64> {
    let scale = input as f64 / output as f64;
    let stretch = scale.max(1.0);
    let support = radius(filter) * stretch;
    let inverse = 1.0 / stretch;
    let nominal = match weighting {
        Weighting::Pillow => usize::MAX,
        Weighting::Aten => support.ceil() as usize * 2 + 1,
    };
    let mut windows = Vec::with_capacity(output);
    let mut weights = Vec::with_capacity((support * 2.0 + 2.0) as usize * output);
    for i in 0..output {
        let center = (i as f64 + 0.5) * scale;
        let start = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(input);
        let (first, len) = (weights.len(), end.saturating_sub(start).min(nominal));
        weights.extend(
            (start..start + len).map(|k| evaluate(filter, (k as f64 - center + 0.5) * inverse, weighting)),
        );
        let total: f64 = weights[first..].iter().fold(0.0, |sum, weight| sum + weight);
        if total != 0.0 {
            weights[first..].iter_mut().for_each(|weight| *weight /= total);
        }
        windows.push(Window { start, len, first });
    }
    Taps { windows, weights }
}
