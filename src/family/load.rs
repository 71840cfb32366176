//! A tower's weights: from the checkpoint's files to tensors on the device, in the dtype of execution.

use crate::checkpoint::Selection;
use crate::torch::ops::{LayerNorm, Linear, RmsNorm};
use crate::torch::{Device, Tensor};
use crate::{Dtype, Error, Result};

/// Reads tensors by name and makes layers of them.
pub struct Loader<'a> {
    selection: &'a Selection,
    dtype: Dtype,
    device: Device,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Loader<'a> {
    /// A loader that converts to `dtype` on `device` and tells `progress` of the bytes read.
    pub fn new(
        selection: &'a Selection,
        dtype: Dtype,
        device: Device,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        Self { selection, dtype, device, progress }
    }

    /// The dtype of execution.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Where the tower runs.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether the checkpoint has the optional tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.selection.has(name)
    }

    /// The tensor `name` as stored, on the host. NaN and infinities are refused.
    pub fn stored(&self, name: &str) -> Result<Tensor> {
        let info = self.selection.info(name)?;
        let tensor =
            Tensor::filled(info.shape, info.dtype, |bytes| self.selection.read_finite_into(name, bytes))?;
        (self.progress)(info.shape.iter().product::<usize>() as u64 * info.dtype.size() as u64);
        Ok(tensor)
    }

    /// `tensor`, on the host, in the dtype of execution on the device.
    pub fn place(&self, tensor: Tensor) -> Result<Tensor> {
        tensor.cast(self.dtype)?.to_device(Device::Cpu, self.device)
    }

    /// Refuses the tensor `name` unless all its elements are 1: a scale that a tower does without.
    pub fn check_ones(&self, name: &str) -> Result<()> {
        let tensor = self.selection.tensor(name)?;
        let one = match tensor.dtype {
            Dtype::F32 => 1f32.to_le_bytes().to_vec(),
            Dtype::Bf16 => half::bf16::ONE.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::ONE.to_le_bytes().to_vec(),
        };
        if tensor.bytes().chunks(one.len()).all(|element| element == one) {
            return Ok(());
        }
        Err(Error::checkpoint(format!("the tensor {name:?} is not all ones: this scale is not supported")))
    }

    /// The tensor `name` in the dtype of execution on the device.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.place(self.stored(name)?)
    }

    /// A linear layer of `{name}.weight`, viewed as [rows, rest], with `{name}.bias` if `bias`.
    pub fn linear(&self, name: &str, bias: bool) -> Result<Linear> {
        let weight = self.stored(&format!("{name}.weight"))?;
        let shape = weight.shape()?;
        let rows = shape.first().copied().unwrap_or(1);
        let flat = weight.reshape(&[rows, shape.iter().skip(1).product()])?;
        self.linear_of(flat, if bias { Some(self.tensor(&format!("{name}.bias"))?) } else { None })
    }

    /// A linear layer of a `weight` [out, in] on the host and a `bias` that is in place already.
    pub fn linear_of(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Linear::new(self.place(weight)?, bias)
    }

    /// [`Loader::linear`] by [`Linear::precise`].
    pub fn precise_linear(&self, name: &str, bias: bool) -> Result<Linear> {
        let bias = if bias { Some(self.tensor(&format!("{name}.bias"))?) } else { None };
        Linear::precise(self.tensor(&format!("{name}.weight"))?, bias)
    }

    /// One linear layer whose outputs are those of the layers `names`, side by side.
    pub fn linear_cat(&self, names: &[&str], bias: bool) -> Result<Linear> {
        let stack = |suffix: &str| -> Result<Tensor> {
            let parts = names.iter().map(|name| self.stored(&format!("{name}.{suffix}")));
            let parts = parts.map(|part| part?.cast(self.dtype)).collect::<Result<Vec<_>>>()?;
            crate::torch::ops::cat(&parts.iter().collect::<Vec<_>>(), 0)
        };
        let bias = if bias { Some(self.place(stack("bias")?)?) } else { None };
        self.linear_of(stack("weight")?, bias)
    }

    /// A layer norm of `{name}.weight` and `{name}.bias`.
    pub fn layer_norm(&self, name: &str, eps: f64) -> Result<LayerNorm> {
        let weight = self.tensor(&format!("{name}.weight"))?;
        Ok(LayerNorm { weight, bias: self.tensor(&format!("{name}.bias"))?, eps })
    }

    /// An RMS norm of `{name}.weight`.
    pub fn rms_norm(&self, name: &str, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: Some(self.tensor(&format!("{name}.weight"))?), eps })
    }
}
