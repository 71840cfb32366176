//! One stored result.

use std::io::{Read, Write};
use std::sync::Arc;

use foyer::Code;

use super::format;
use crate::family::Grid;
use crate::torch::{Device, HostBuffer, Tensor};
use crate::{Dtype, Error, Result};

/// Bytes that an entry takes beside its tensors: handles, grids, and Foyer's own record.
pub(super) const OVERHEAD_BYTES: u64 = 1 << 10;

/// The tensors of one result in host memory of their own, never written again.
pub struct Entry {
    pub(super) tensors: Vec<(&'static str, Tensor)>,
    pub(super) grids: Vec<Grid>,
    pub(super) offsets: Vec<usize>,
    pub(super) bytes: usize,
}

impl Entry {
    /// A copy of `tensors`, which live on `device`.
    ///
    /// # Errors
    /// `OutOfMemory`, or LibTorch's failure to copy.
    pub fn copy(
        tensors: &[(&'static str, Tensor)],
        device: Device,
        grids: &[Grid],
        offsets: &[usize],
    ) -> Result<Self> {
        let mut bytes = 0;
        let copied = tensors.iter().map(|(name, tensor)| {
            let (shape, dtype) = (tensor.shape()?, tensor.dtype()?);
            let source = tensor.share()?.to_device(device, Device::Cpu)?.contiguous()?;
            let source = source.host_bytes()?;
            let mut buffer = HostBuffer::new(source.len())?;
            buffer.bytes_mut().copy_from_slice(source);
            bytes += source.len();
            Ok((*name, buffer.into_tensor(&shape, dtype)?))
        });
        let tensors = copied.collect::<Result<Vec<_>>>()?;
        Ok(Self { tensors, grids: grids.to_vec(), offsets: offsets.to_vec(), bytes })
    }

    /// Tensors over the stored memory, "embeddings" first. They keep it alive on their own; each has a storage of its
    /// own, so that moving one into shared memory leaves all others and what is written to disk alone.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn tensors(&self) -> Result<Vec<(&'static str, Tensor)>> {
        self.tensors.iter().map(|(name, tensor)| Ok((*name, tensor.alias()?))).collect()
    }

    /// Patch grids.
    pub fn grids(&self) -> &[Grid] {
        &self.grids
    }

    /// First row of each grid's embeddings, and one past the last.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Whether all tensors have elements of `dtype`.
    pub fn has_dtype(&self, dtype: Dtype) -> bool {
        self.tensors.iter().all(|(_, tensor)| tensor.dtype().is_ok_and(|own| own == dtype))
    }

    /// Bytes of the tensors.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The embeddings.
    ///
    /// # Errors
    /// `Internal` if there are none.
    pub fn embeddings(&self) -> Result<&Tensor> {
        let first = self.tensors.first().filter(|(name, _)| *name == "embeddings");
        first.map(|(_, tensor)| tensor).ok_or_else(|| Error::internal("an entry has no embeddings"))
    }
}

/// An entry as Foyer holds it.
#[derive(Clone)]
pub(super) struct Stored(pub Arc<Entry>);

impl Stored {
    /// What counts against the budget of the memory tier.
    pub fn weight(&self) -> usize {
        self.0.bytes + OVERHEAD_BYTES as usize
    }
}

impl Code for Stored {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        format::write(&self.0, &[], writer).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let entry = format::read(reader, &[], u64::MAX, u64::MAX).map_err(foyer::Error::io_error)?;
        Ok(Self(Arc::new(entry)))
    }

    fn estimated_size(&self) -> usize {
        usize::try_from(format::stored_bytes(self.0.bytes as u64)).unwrap_or(usize::MAX)
    }
}
