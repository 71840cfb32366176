//! The op vocabulary that towers are written in. A fused kernel slots in under an op without a family noticing.
#![allow(unsafe_code)]

use std::ptr::null_mut;
use std::sync::OnceLock;

use super::cuda::{self, Kernel};
use super::sys::{self, RawTensor};
use super::tensor::{Device, Tensor};
use crate::{Dtype, Error, Result};

/// A pointwise non-linearity. Discriminants are those of `bridge/api.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// Identity.
    None = 0,
    /// GELU by the error function.
    Gelu = 1,
    /// GELU by the tanh approximation.
    GeluTanh = 2,
    /// x * sigmoid(x).
    Silu = 3,
    /// max(x, 0).
    Relu = 4,
    /// x * sigmoid(1.702 x).
    QuickGelu = 5,
    /// max(x, 0) squared.
    ReluSquared = 6,
}

/// Which elements of a head form a rotated pair. Discriminants are those of `bridge/api.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum RotaryPairs {
    /// (j, j + dim / 2): "rotate half".
    Halves = 0,
    /// (2j, 2j + 1): complex pairs.
    Neighbours = 1,
}

/// How a learned position table is resampled. Discriminants are those of `bridge/api.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Interpolation {
    /// Triangle.
    Bilinear = 0,
    /// Cubic, a = -0.75, clamped border.
    Bicubic = 1,
}

fn optional(tensor: Option<&Tensor>) -> RawTensor {
    tensor.map_or(null_mut(), Tensor::raw)
}

/// A linear layer `y = x W^T + b`, its weight packed for the CPU where that is faster.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    packed: bool,
}

impl Linear {
    /// Takes `weight` [out, in] and `bias` [out].
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        // SAFETY: the handle is live during the call.
        let packed = Tensor::make("pack_linear", |api, out| unsafe { (api.pack_linear)(weight.raw(), out) });
        Ok(match packed {
            Ok(packed) => Self { weight: packed, bias, packed: true },
            Err(error) if error.kind() == crate::ErrorKind::OutOfMemory => return Err(error),
            // No packed form for this device, dtype or CPU: the plain weight serves.
            Err(_) => Self { weight, bias, packed: false },
        })
    }

    /// The same, never packed in float32: the packed product rounds up to twice as much as ATen's (over rows of 9216,
    /// 5.8e-7 against 2.8e-7), in half the time. For towers whose float32 is compared with upstream's to the last bits.
    pub fn precise(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        match weight.dtype()? {
            Dtype::F32 => Ok(Self { weight, bias, packed: false }),
            _ => Self::new(weight, bias),
        }
    }

    /// `x` [rows, in] to [rows, out].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None, Activation::None)
    }

    /// `act(x W^T + b)`.
    pub fn activated(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        self.run(x, None, activation)
    }

    /// `residual + (x W^T + b)`.
    pub fn added_to(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual), Activation::None)
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
        let out = Tensor::make("linear", |api, out| {
            // SAFETY: all handles are live during the call; null stands for an absent bias or residual.
            unsafe {
                (api.linear)(
                    x.raw(),
                    self.weight.raw(),
                    optional(self.bias.as_ref()),
                    optional(residual),
                    self.packed.into(),
                    activation as i32,
                    out,
                )
            }
        });
        out.map_err(|error| match x.shape() {
            Ok(shape) => error.at(format!("linear on {shape:?}")),
            Err(_) => error,
        })
    }
}

/// Applies `activation` to every element of a contiguous tensor.
pub fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    // SAFETY: the handle is live during the call.
    Tensor::make("activation", |api, out| unsafe { (api.activation)(x.raw(), activation as i32, out) })
}

/// Element-wise sum, with broadcasting.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    // SAFETY: both handles are live during the call.
    Tensor::make("add", |api, out| unsafe { (api.add)(a.raw(), b.raw(), out) })
}

/// Concatenates along `axis`.
pub fn cat(tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
    let raw: Vec<RawTensor> = tensors.iter().map(|tensor| tensor.raw()).collect();
    // SAFETY: `raw` holds live handles during the call.
    Tensor::make("cat", |api, out| unsafe { (api.cat)(raw.as_ptr(), raw.len() as i64, axis as i64, out) })
}

/// Rows of `x` in the order of `index` (int64, [n]).
pub fn index_rows(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    // SAFETY: both handles are live during the call.
    Tensor::make("index_rows", |api, out| unsafe { (api.index_rows)(x.raw(), index.raw(), out) })
}

/// Layer norm over the last axis.
pub struct LayerNorm {
    /// Scale, [columns].
    pub weight: Tensor,
    /// Shift, [columns].
    pub bias: Tensor,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Normalises `x` [.., columns].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::make("layer_norm", |api, out| {
            // SAFETY: all handles are live during the call.
            unsafe { (api.layer_norm)(x.raw(), self.weight.raw(), self.bias.raw(), self.eps, out) }
        })
    }

    /// `x + y`, both contiguous, and its norm.
    pub fn forward_sum(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        forward_sum(x, y, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// Whether norms add their inputs on `device` in the same pass, so that a sum is best left to them.
pub fn sums_in_norms(device: Device) -> bool {
    device != Device::Cpu && cuda::is_enabled(Kernel::AddNorm)
}

/// `x + y` and its norm; without `bias` an RMS norm.
fn forward_sum(
    x: &Tensor,
    y: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let mut sum = null_mut();
    let normed = Tensor::make("add_norm", |api, out| {
        // SAFETY: all handles are live during the call; null stands for an absent weight or bias.
        unsafe { (api.add_norm)(x.raw(), y.raw(), optional(weight), optional(bias), eps, &mut sum, out) }
    })?;
    Ok((Tensor::from_raw("add_norm", sum)?, normed))
}

/// RMS norm over the last axis, in float32 and rounded once.
///
/// transformers rounds twice, before and behind the weight, in some families; one rounding is nearer to float32.
pub struct RmsNorm {
    /// Scale, [columns]; none for a weightless norm.
    pub weight: Option<Tensor>,
    /// Added to the mean square.
    pub eps: f64,
}

impl RmsNorm {
    /// Normalises a contiguous `x` [.., columns].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::make("rms_norm", |api, out| {
            // SAFETY: all handles are live during the call; null stands for an absent weight.
            unsafe { (api.rms_norm)(x.raw(), optional(self.weight.as_ref()), self.eps, out) }
        })
    }

    /// `x + y`, both contiguous, and its norm.
    pub fn forward_sum(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        forward_sum(x, y, self.weight.as_ref(), None, self.eps)
    }
}

/// A convolution over rows that treats each column on its own.
pub struct DepthwiseConv {
    /// [taps, columns].
    pub weight: Tensor,
    /// [columns].
    pub bias: Tensor,
}

impl DepthwiseConv {
    /// `x` [rows + taps - 1, columns], contiguous, to [rows, columns]; summed in float32 and rounded once.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::make("depthwise", |api, out| {
            // SAFETY: all handles are live during the call.
            unsafe { (api.depthwise)(x.raw(), self.weight.raw(), self.bias.raw(), out) }
        })
    }
}

/// `act(min(gate, limit)) * clamp(up, -limit, limit)` for contiguous `x` = [rows, gate | up].
pub fn gated(x: &Tensor, activation: Activation, limit: f64) -> Result<Tensor> {
    // SAFETY: the handle is live during the call.
    Tensor::make("gated", |api, out| unsafe { (api.gated)(x.raw(), activation as i32, limit, out) })
}

/// Rotation angles of every row, as float32 cosines and sines [rows, dim / 2].
pub struct Rotary {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
    /// Which elements pair up.
    pub pairs: RotaryPairs,
}

/// RMS norm of q and k over the head, applied before the rotation.
pub struct QkNorm {
    /// Weight for q, [dim].
    pub q: Tensor,
    /// Weight for k, [dim].
    pub k: Tensor,
    /// Added to the mean square.
    pub eps: f64,
}

impl Rotary {
    /// Rotates q and k of packed `qkv` [rows, 3, heads, dim] in place.
    ///
    /// The caller must hold the only reference to the memory of `qkv`.
    pub fn apply(&self, qkv: &mut Tensor, norm: Option<&QkNorm>) -> Result<()> {
        let api = sys::api()?;
        // SAFETY: all handles are live during the call; `qkv` is borrowed mutably.
        let status = unsafe {
            (api.rotary)(
                qkv.raw(),
                self.cos.raw(),
                self.sin.raw(),
                optional(norm.map(|norm| &norm.q)),
                optional(norm.map(|norm| &norm.k)),
                norm.map_or(0.0, |norm| norm.eps),
                self.pairs as i32,
            )
        };
        sys::check("rotary", status, api)
    }
}

/// Where attention rounds. Discriminants are those of `bridge/api.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Rounding {
    /// As Torch's fused kernel does.
    #[default]
    Fused = 0,
    /// Once, behind products and softmax in float32.
    Once = 1,
}

/// Cumulative row counts of independent stretches of a sequence: `[0, n1, n1 + n2, ..]`.
pub struct Segments {
    edges: Vec<i64>,
    /// The same on the device that attention runs on, as int32; made when it is first asked for.
    on_device: OnceLock<Tensor>,
}

impl Segments {
    /// Segments of these lengths, each at least 1.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Result<Self> {
        let mut edges = vec![0i64];
        let mut total = 0i64;
        for length in lengths {
            let length = i64::try_from(length).ok().filter(|&n| n > 0);
            total = length
                .and_then(|n| total.checked_add(n))
                .ok_or_else(|| Error::internal("a segment of attention must have between 1 and 2^63 rows"))?;
            edges.push(total);
        }
        Ok(Self { edges, on_device: OnceLock::new() })
    }

    /// Rows of all segments.
    pub fn rows(&self) -> usize {
        self.edges.last().map_or(0, |&n| n as usize)
    }

    /// The edges on `device`; none on the host, or where they pass int32.
    fn on(&self, device: Device) -> Result<Option<&Tensor>> {
        if device == Device::Cpu {
            return Ok(None);
        }
        if let Some(edges) = self.on_device.get() {
            return Ok(Some(edges));
        }
        let Some(edges) = self.edges.iter().map(|&n| i32::try_from(n).ok()).collect::<Option<Vec<_>>>()
        else {
            return Ok(None);
        };
        let edges = Tensor::from_slice_on(&edges, &[edges.len()], device)?;
        Ok(Some(self.on_device.get_or_init(|| edges)))
    }
}

/// Softmax attention within each segment of packed `qkv` [rows, 3, heads, dim]; gives [rows, heads * dim].
pub fn attention(qkv: &Tensor, segments: &Segments, scale: f64, rounding: Rounding) -> Result<Tensor> {
    let (edges, count) = (segments.edges.as_ptr(), segments.edges.len() as i64);
    let on_device = optional(segments.on(qkv.device()?)?);
    Tensor::make("attention", |api, out| {
        // SAFETY: both handles are live and the edges outlive the call.
        unsafe { (api.attention)(qkv.raw(), edges, count, on_device, scale, rounding as i32, out) }
    })
}

/// `x + sum of four weighted rows of table`, the sum in float32 and rounded once.
///
/// `index` int64 [4, rows] within the table, `weight` float32 [4, rows].
pub fn add_interpolated(x: &Tensor, table: &Tensor, index: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Tensor::make("add_interpolated", |api, out| {
        // SAFETY: all handles are live during the call.
        unsafe { (api.add_interpolated)(x.raw(), table.raw(), index.raw(), weight.raw(), out) }
    })
}

/// Resamples `table` [height, width, channels] to [out_height, out_width, channels], corners not aligned.
pub fn resample_table(
    table: &Tensor,
    out_height: usize,
    out_width: usize,
    interpolation: Interpolation,
) -> Result<Tensor> {
    Tensor::make("resample_table", |api, out| {
        // SAFETY: the handle is live during the call.
        unsafe {
            (api.resample_table)(table.raw(), out_height as i64, out_width as i64, interpolation as i32, out)
        }
    })
}
