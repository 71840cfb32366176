//! Band-limited resampling by torchaudio's default: a sinc of six zero crossings in a Hann window.

use std::f32::consts::PI;

use crate::{Error, Result};

/// Zero crossings of the sinc on each side.
const CROSSINGS: f64 = 6.0;
/// Cutoff, as a share of the lower rate's half.
const ROLLOFF: f64 = 0.99;
/// Partial sums of one output.
const LANES: usize = 4;

/// Samples that `length` of them at `from` hertz become at `to`.
pub fn resampled_length(length: u64, from: u32, to: u32) -> u64 {
    let divisor = greatest_divisor(from, to);
    let (from, to) = (u64::from(from / divisor), u64::from(to / divisor));
    (length * to).div_ceil(from)
}

/// `samples` at `from` hertz, at `to` hertz. Weights are computed in float32 as torchaudio does, and summed in float64.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>> {
    let length = resampled_length(samples.len() as u64, from, to) as usize;
    let mut out = Vec::new();
    out.try_reserve_exact(length)
        .map_err(|_| Error::out_of_memory("no memory for the samples of a sound at another rate"))?;
    if from == to {
        out.extend_from_slice(samples);
        return Ok(out);
    }
    let divisor = greatest_divisor(from, to);
    let (old, new) = (from / divisor, to / divisor);
    // Output number `m * new + k` is phase k of the input from `m * old` on.
    let phases = (0..new.min(u32::try_from(length).unwrap_or(u32::MAX)))
        .map(|phase| Phase::new(phase, old, new))
        .collect::<Vec<_>>();
    let mut first = 0;
    while out.len() < length {
        let left = length - out.len();
        out.extend(phases.iter().take(left).map(|phase| phase.apply(samples, first)));
        first += i64::from(old);
    }
    Ok(out)
}

/// The weights of one phase that are not nothing.
struct Phase {
    /// Place of the first, from the phase's input on.
    first: i64,
    weights: Vec<f32>,
}

impl Phase {
    fn new(phase: u32, old: u32, new: u32) -> Self {
        let base = f64::from(old.min(new)) * ROLLOFF;
        let width = (CROSSINGS * f64::from(old) / base).ceil();
        // The kernel's places go from -width to width + old; most of them are outside of the window.
        let middle = f64::from(old) * f64::from(phase) / f64::from(new);
        let first = (middle - width - 1.0).floor().max(-width) as i64;
        let last = (middle + width + 1.0).ceil().min(width + f64::from(old) - 1.0) as i64;
        let scale = (base / f64::from(old)) as f32;
        // Step by step upstream's float32 operations: at high rates their rounding is what shapes the kernel.
        let weight = |place: i64| {
            let t = -(phase as f32) / new as f32 + place as f32 / old as f32;
            let t = t * base as f32;
            let crossings = CROSSINGS as f32;
            if t.abs() >= crossings {
                return 0.0;
            }
            let window = (t * PI / crossings / 2.0).cos();
            let t = t * PI;
            let sinc = if t == 0.0 { 1.0 } else { t.sin() / t };
            sinc * (window * window * scale)
        };
        Self { first, weights: (first..=last).map(weight).collect() }
    }

    /// The sum at the input `from`; outside of `samples` there is silence.
    fn apply(&self, samples: &[f32], from: i64) -> f32 {
        let begin = from + self.first;
        let skip = usize::try_from(-begin).unwrap_or(0);
        let weights = self.weights.get(skip..).unwrap_or_default();
        let inputs =
            usize::try_from(begin.max(0)).ok().and_then(|begin| samples.get(begin..)).unwrap_or_default();
        let count = weights.len().min(inputs.len());
        let (weights, inputs) = (&weights[..count], &inputs[..count]);
        let mut sums = [0.0f64; LANES];
        let (weight_groups, weight_rest) = weights.as_chunks::<LANES>();
        let (input_groups, input_rest) = inputs.as_chunks::<LANES>();
        for (weights, inputs) in weight_groups.iter().zip(input_groups) {
            for lane in 0..LANES {
                sums[lane] += f64::from(weights[lane]) * f64::from(inputs[lane]);
            }
        }
        let rest =
            weight_rest.iter().zip(input_rest).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
        (sums.iter().sum::<f64>() + rest) as f32
    }
}

fn greatest_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
