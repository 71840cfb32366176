//! Every part of the CUDA library against its plain form, on a device, before a tower uses it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::cuda::{self, Kernel};
use super::ops::{
    Activation, LayerNorm, Linear, QkNorm, RmsNorm, Rotary, RotaryPairs, Rounding, Segments, activate,
    add_interpolated, attention, gated,
};
use super::patches::Expander;
use super::tensor::{Device, Tensor};
use crate::pixels::{Expansion, Levels, Normalize, SampleOrder};
use crate::{Dtype, Error, Result};

/// Odd sizes, more rows than a block has warps, more columns than it has threads.
const ROWS: usize = 37;
const COLUMNS: usize = 328;
const HEADS: usize = 3;
const DIM: usize = 40;
const ENTRIES: usize = 29;
const EPS: f64 = 1e-6;
/// Largest difference, as a part of the largest value. A wrong kernel is off by about the values themselves; float32
/// products may run in TF32 where the host has chosen so.
const BOUNDS: [(Dtype, f32); 3] = [(Dtype::F32, 4e-3), (Dtype::Bf16, 3e-2), (Dtype::F16, 6e-3)];

/// Why parts are not in use, by name; what was found on the devices that were checked so far.
static FOUND: Mutex<Option<Found>> = Mutex::new(None);

#[derive(Default)]
struct Found {
    devices: Vec<Device>,
    reasons: HashMap<&'static str, String>,
}

/// Runs the checks on `device` unless they have run there, and switches off each part that fails one.
///
/// On the calling thread's stream. A part that was switched off by hand stays off.
pub fn run(device: Device) -> Result<()> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    if device == Device::Cpu || found.devices.contains(&device) {
        return Ok(());
    }
    let mut mask = 0;
    for kernel in Kernel::ALL.into_iter().filter(|&kernel| cuda::is_enabled(kernel)) {
        match check(kernel, device) {
            Ok(()) => mask |= kernel.bit(),
            Err(error) if error.kind() == crate::ErrorKind::OutOfMemory => return Err(error),
            Err(error) => {
                found.reasons.insert(kernel.name(), format!("{device}: {error}"));
            }
        }
    }
    found.devices.push(device);
    cuda::enable(mask)
}

/// Why `kernel` was switched off by [`run`]; none where it passed or was not checked.
pub fn reason(kernel: Kernel) -> Option<String> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.as_ref()?.reasons.get(kernel.name()).cloned()
}

fn check(kernel: Kernel, device: Device) -> Result<()> {
    for (dtype, bound) in BOUNDS {
        let inputs = Inputs::new(dtype, device)?;
        let plain = cuda::with_kernels(0, || inputs.run(kernel))?;
        let fused = cuda::with_kernels(kernel.bit(), || inputs.run(kernel))?;
        for (plain, fused) in plain.iter().zip(&fused) {
            let (plain, fused) = (plain.values()?, fused.values()?);
            let largest = plain.iter().fold(0f32, |most, v| most.max(v.abs()));
            let difference = plain.iter().zip(&fused).fold(0f32, |most, (a, b)| {
                // A NaN on either side must not pass as equal.
                if (a - b).is_nan() { f32::INFINITY } else { most.max((a - b).abs()) }
            });
            // Values that are looked up are equal bit for bit.
            let bound = if kernel == Kernel::Patches { 0.0 } else { bound };
            if plain.len() != fused.len() || difference > bound * largest {
                return Err(Error::internal(format!(
                    "differs from its plain form by {difference:e} of {largest:e} in {}",
                    dtype.name()
                )));
            }
        }
    }
    Ok(())
}

struct Inputs {
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor,
    gates: Tensor,
    qkv: Tensor,
    head_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    table: Tensor,
    index: Tensor,
    share: Tensor,
    matrix: Tensor,
    segments: Segments,
    dtype: Dtype,
    device: Device,
}

impl Inputs {
    fn new(dtype: Dtype, device: Device) -> Result<Self> {
        let mut state = 1u32;
        // Numbers from -1 to 1, the same on every machine.
        let mut numbers = |shape: &[usize], scale: f32| -> Result<Tensor> {
            let count = shape.iter().product();
            let values: Vec<f32> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                scale * ((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
            })
            .take(count)
            .collect();
            Tensor::from_slice_on(&values, shape, device)
        };
        let turn = |f: fn(f32) -> f32| -> Result<Tensor> {
            let values: Vec<f32> = (0..ROWS * DIM / 2).map(|i| f(i as f32 * 0.37)).collect();
            Tensor::from_slice_on(&values, &[ROWS, DIM / 2], device)
        };
        let index: Vec<i64> = (0..4 * ROWS).map(|i| (i * 7 % ENTRIES) as i64).collect();
        Ok(Self {
            x: numbers(&[ROWS, COLUMNS], 3.0)?.cast(dtype)?,
            y: numbers(&[ROWS, COLUMNS], 3.0)?.cast(dtype)?,
            weight: numbers(&[COLUMNS], 2.0)?.cast(dtype)?,
            bias: numbers(&[COLUMNS], 1.0)?.cast(dtype)?,
            gates: numbers(&[ROWS, 2 * COLUMNS], 6.0)?.cast(dtype)?,
            qkv: numbers(&[ROWS, 3, HEADS, DIM], 2.0)?.cast(dtype)?,
            head_weight: numbers(&[DIM], 2.0)?.cast(dtype)?,
            cos: turn(f32::cos)?,
            sin: turn(f32::sin)?,
            table: numbers(&[ENTRIES, COLUMNS], 1.0)?.cast(dtype)?,
            index: Tensor::from_slice_on(&index, &[4, ROWS], device)?,
            share: numbers(&[4, ROWS], 1.0)?,
            matrix: numbers(&[COLUMNS, COLUMNS], 0.1)?.cast(dtype)?,
            segments: Segments::from_lengths([5, ROWS - 8, 3])?,
            dtype,
            device,
        })
    }

    /// What `kernel` is used for, in all its forms.
    fn run(&self, kernel: Kernel) -> Result<Vec<Tensor>> {
        let rms = RmsNorm { weight: Some(self.weight.share()?), eps: EPS };
        let layer = LayerNorm { weight: self.weight.share()?, bias: self.bias.share()?, eps: EPS };
        Ok(match kernel {
            Kernel::Norm => vec![rms.forward(&self.x)?, RmsNorm { weight: None, eps: EPS }.forward(&self.x)?],
            Kernel::AddNorm => {
                let (first, second) =
                    (rms.forward_sum(&self.x, &self.y)?, layer.forward_sum(&self.x, &self.y)?);
                vec![first.0, first.1, second.0, second.1]
            }
            Kernel::Rotary => {
                let norm = QkNorm { q: self.head_weight.share()?, k: self.head_weight.share()?, eps: EPS };
                let mut turned = Vec::new();
                for pairs in [RotaryPairs::Halves, RotaryPairs::Neighbours] {
                    for norm in [None, Some(&norm)] {
                        let rotary = Rotary { cos: self.cos.share()?, sin: self.sin.share()?, pairs };
                        let mut qkv =
                            Tensor::empty(&self.qkv.shape()?, self.qkv.dtype()?, self.qkv.device()?)?;
                        qkv.copy_from(&self.qkv)?;
                        rotary.apply(&mut qkv, norm)?;
                        turned.push(qkv);
                    }
                }
                turned
            }
            Kernel::Gated => vec![
                gated(&self.gates, Activation::Silu, f64::INFINITY)?,
                gated(&self.gates, Activation::GeluTanh, 2.5)?,
            ],
            Kernel::Activation => {
                vec![activate(&self.x, Activation::QuickGelu)?, activate(&self.x, Activation::ReluSquared)?]
            }
            Kernel::LinearGelu => {
                let linear = Linear::new(self.matrix.share()?, Some(self.bias.share()?))?;
                vec![linear.activated(&self.x, Activation::GeluTanh)?]
            }
            Kernel::Positions => vec![add_interpolated(&self.x, &self.table, &self.index, &self.share)?],
            Kernel::Attention => {
                vec![attention(&self.qkv, &self.segments, (DIM as f64).powf(-0.5), Rounding::Fused)?]
            }
            Kernel::Patches => self.patches()?,
        })
    }

    /// Noise with padding at every edge, in sides of which threads take several samples at once and one.
    fn patches(&self) -> Result<Vec<Tensor>> {
        let orders = [SampleOrder::ChannelFrame, SampleOrder::FrameChannel, SampleOrder::ChannelsLast];
        let mut matrices = Vec::new();
        for (side, frames, samples) in [(14, 2), (7, 1)]
            .into_iter()
            .flat_map(|(side, frames)| orders.map(|samples| (side, frames, samples)))
        {
            let normalize = Normalize::double([0.5, 0.4, 0.3], [0.2, 0.3, 0.25]).with_fill([-7.0, 0.25, 9.0]);
            let expansion = Expansion { normalize, side, frames, samples, dtype: self.dtype };
            let part = |rows: usize, shift: usize| {
                let side = side as u16;
                let edges = [[0, side, 0, side], [2, side, 0, 5], [0, 0, 3, 3], [1, side - 1, 2, side]];
                Levels {
                    edges: (0..rows).map(|row| edges[row % edges.len()]).collect(),
                    levels: (0..rows * expansion.level_columns())
                        .map(|i| (i * 37 + i / 251 + shift) as u8)
                        .collect(),
                }
            };
            let (first, second) = (part(ROWS, 0), part(3, 101));
            matrices.push(Expander::new(expansion.clone(), self.device)?.expand(&[&first, &second])?);
        }
        Ok(matrices)
    }
}
