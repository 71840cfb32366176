//! A tower's input on its device from 8-bit levels.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use super::cuda::{self, Kernel};
use super::sys;
use super::tensor::{Device, Tensor};
use crate::pixels::{Expansion, Levels, PixelValues, SampleOrder, Samples, TABLE_COLUMNS};
use crate::{Dtype, Error, Result};

/// An [`Expansion`] whose table lies on a device.
pub struct Expander {
    expansion: Expansion,
    table: Tensor,
    device: Device,
}

impl Expander {
    /// Puts the table on `device`, in the order of the calling thread's stream.
    pub fn new(expansion: Expansion, device: Device) -> Result<Self> {
        let shape = [3, TABLE_COLUMNS];
        let table = match expansion.dtype {
            Dtype::F32 => Tensor::from_slice_on(&expansion.table::<f32>(), &shape, device),
            Dtype::Bf16 => Tensor::from_slice_on(&expansion.table::<half::bf16>(), &shape, device),
            Dtype::F16 => Tensor::from_slice_on(&expansion.table::<half::f16>(), &shape, device),
        }?;
        Ok(Self { expansion, table, device })
    }

    /// Whether the device's kernel is in use. Where it is not, [`Expander::expand`] costs more than values do.
    pub fn in_use(&self) -> bool {
        cuda::is_enabled(Kernel::Patches)
    }

    /// How levels become values.
    pub fn expansion(&self) -> &Expansion {
        &self.expansion
    }

    /// The patch matrix of all `parts`, one under the other, on the device.
    ///
    /// Bytes travel there, and its kernel makes the values; without the kernel the host makes the same ones.
    pub fn expand(&self, parts: &[&Levels]) -> Result<Tensor> {
        let rows = parts.iter().map(|part| part.rows()).sum();
        // Edges first: levels behind them begin at a multiple of 8 bytes.
        let edges = parts.iter().map(|part| bytemuck::cast_slice(&part.edges));
        let bytes: Vec<&[u8]> = edges.chain(parts.iter().map(|part| &part.levels[..])).collect();
        let packed = Tensor::from_parts_on(&bytes, &[self.expansion.bytes(rows)], self.device)?;
        match self.on_device(&packed, rows)? {
            Some(matrix) => Ok(matrix),
            None => Tensor::from_values(&[&self.expansion.expand(parts)?], self.device),
        }
    }

    /// None where the kernel is not in use.
    fn on_device(&self, packed: &Tensor, rows: usize) -> Result<Option<Tensor>> {
        let Expansion { side, frames, samples, .. } = self.expansion;
        // The codes of `MmSampleOrder`.
        let order = match samples {
            SampleOrder::ChannelFrame => 0,
            SampleOrder::FrameChannel => 1,
            SampleOrder::ChannelsLast => 2,
        };
        let api = sys::api()?;
        let mut out = null_mut();
        // SAFETY: both handles are live during the call; side and frames are far below `i32::MAX` (pixels::MAX_PATCH).
        let status = unsafe {
            let (rows, side, frames) = (rows as i64, side as i32, frames as i32);
            (api.expand_patches)(packed.raw(), self.table.raw(), rows, side, frames, order, &mut out)
        };
        sys::check("expand_patches", status, api)?;
        if out.is_null() { Ok(None) } else { Tensor::from_raw("expand_patches", out).map(Some) }
    }
}

impl Tensor {
    /// Patch matrices of one dtype, one under the other, on `device`.
    pub fn from_values(parts: &[&PixelValues], device: Device) -> Result<Self> {
        let columns = parts.first().map_or(0, |part| part.columns);
        if parts.iter().any(|part| part.columns != columns) {
            return Err(Error::internal("patch matrices of different width cannot be packed"));
        }
        let shape = [parts.iter().map(|part| part.rows).sum(), columns];
        macro_rules! pack {
            ($kind:ident) => {{
                let parts = parts.iter().map(|part| match &part.samples {
                    Samples::$kind(samples) => Ok(&samples[..]),
                    _ => Err(Error::internal("patch matrices of different dtype cannot be packed")),
                });
                Tensor::from_parts_on(&parts.collect::<Result<Vec<_>>>()?, &shape, device)
            }};
        }
        match parts.first().map(|part| &part.samples) {
            Some(Samples::Bf16(_)) => pack!(Bf16),
            Some(Samples::F16(_)) => pack!(F16),
            _ => pack!(F32),
        }
    }
}
