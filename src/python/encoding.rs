//! One item's result on its way to Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::encoder::{Encoded, Times};
use crate::family::Grid;
use crate::torch::Event;
use crate::{Result, torch};

/// One item's result; `id` is for `torch.ops.mm_libtorch_encoder.take`. What nobody takes is freed with it.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
pub struct Encoding {
    id: i64,
    ready: Option<Arc<Event>>,
    names: Vec<&'static str>,
    hash: String,
    grids: Vec<Grid>,
    offsets: Vec<usize>,
    times: Times,
}

impl Encoding {
    /// Publishes the tensors of `encoded`.
    pub fn new(encoded: Encoded) -> Result<Self> {
        let Encoded { tensors, ready, hash, grids, offsets, times } = encoded;
        let (names, tensors) = tensors.into_iter().unzip();
        Ok(Self { id: torch::publish(tensors)?, ready, names, hash, grids, offsets, times })
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        torch::discard(self.id);
    }
}

#[pymethods]
impl Encoding {
    #[getter]
    fn id(&self) -> i64 {
        self.id
    }

    #[getter]
    fn names(&self) -> Vec<&'static str> {
        self.names.clone()
    }

    #[getter]
    fn mm_hash(&self) -> &str {
        &self.hash
    }

    #[getter]
    fn embedding_offsets(&self) -> Vec<usize> {
        self.offsets.clone()
    }

    #[getter]
    fn grid_thws(&self) -> Vec<(u32, u32, u32)> {
        self.grids.iter().map(|grid| (grid.frames, grid.height, grid.width)).collect()
    }

    /// Whether a stream has to wait for the result: not on the CPU, nor where a cache has it in the host's memory.
    #[getter]
    fn fenced(&self) -> bool {
        self.ready.is_some()
    }

    /// Makes the CUDA stream `stream`, a number of Torch's, wait for the result; a no-op on the CPU.
    fn precede(&self, stream: usize) -> PyResult<()> {
        Ok(self.ready.as_ref().map_or(Ok(()), |ready| ready.precede(stream))?)
    }

    /// Milliseconds spent in each stage.
    #[getter]
    fn milliseconds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        for (stage, time) in self.times.stages() {
            out.set_item(stage, time.as_secs_f64() * 1e3)?;
        }
        Ok(out)
    }
}

/// Adds the class of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Encoding>()
}
