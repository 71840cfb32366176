//! The bridge to LibTorch as Python sees it: opening, and facts for `doctor` and tests.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::torch::cuda::{self, Kernel};
use crate::torch::{self, self_check};

/// Opens the bridge at `path`; `import torch` must have run. A second call is a no-op.
#[pyfunction]
fn open_bridge(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    Ok(py.detach(|| torch::open(path.as_os_str()))?)
}

/// (major, minor, patch) of the running LibTorch.
#[pyfunction]
fn torch_version() -> PyResult<(u8, u8, u8)> {
    Ok(torch::torch_version()?)
}

/// Tensors that the library owns at this moment; of results that Python took, those alone whose memory is shared.
#[pyfunction]
fn live_tensors() -> PyResult<i64> {
    Ok(torch::live_tensors()?)
}

/// (name, overload, schema) of every ATen operator the bridge calls through the dispatcher.
#[pyfunction]
fn op_schemas() -> PyResult<Vec<(String, String, String)>> {
    Ok(torch::schemas()?.into_iter().map(|row| (row.name, row.overload, row.schema)).collect())
}

/// Instruction set of the fused CPU kernels: "base", "avx2" or "avx512".
#[pyfunction]
fn kernel_level() -> PyResult<String> {
    Ok(torch::kernel_level()?)
}

/// Composes every operator of plain ATen calls instead of the fused forms; for comparison.
#[pyfunction]
fn set_plain_ops(plain: bool) -> PyResult<()> {
    Ok(torch::set_plain(plain)?)
}

/// Opens the CUDA library at `path`; the bridge must be open. A second call is a no-op.
#[pyfunction]
fn open_cuda(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    Ok(py.detach(|| cuda::open(path.as_os_str()))?)
}

/// Name, compute capability, driver and memory of a CUDA device; RuntimeMismatch says why it cannot be used.
#[pyfunction]
fn cuda_device(py: Python<'_>, index: u16) -> PyResult<Bound<'_, PyDict>> {
    let facts = py.detach(|| cuda::device(index))?;
    let out = PyDict::new(py);
    out.set_item("name", facts.name)?;
    out.set_item("capability", facts.capability)?;
    out.set_item("driver", facts.driver)?;
    out.set_item("memory", facts.memory)?;
    Ok(out)
}

/// The CUDA library's parts: name, whether it is in use, and why the check on a device switched it off, if it did.
#[pyfunction]
fn cuda_kernels() -> Vec<(&'static str, bool, Option<String>)> {
    let fact = |kernel| (Kernel::name(kernel), cuda::is_enabled(kernel), self_check::reason(kernel));
    Kernel::ALL.into_iter().map(fact).collect()
}

/// Uses exactly these parts of the CUDA library from now on.
#[pyfunction]
fn set_cuda_kernels(names: Vec<String>) -> PyResult<()> {
    let mut mask = 0;
    for name in names {
        let Some(kernel) = Kernel::ALL.iter().find(|kernel| kernel.name() == name) else {
            let known = Kernel::ALL.map(Kernel::name).join(", ");
            return Err(PyValueError::new_err(format!(
                "the CUDA library has no part {name:?}: it has {known}"
            )));
        };
        mask |= kernel.bit();
    }
    Ok(cuda::enable(mask)?)
}

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open_bridge, module)?)?;
    module.add_function(wrap_pyfunction!(torch_version, module)?)?;
    module.add_function(wrap_pyfunction!(live_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(op_schemas, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_level, module)?)?;
    module.add_function(wrap_pyfunction!(set_plain_ops, module)?)?;
    module.add_function(wrap_pyfunction!(open_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_device, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_kernels, module)?)?;
    module.add_function(wrap_pyfunction!(set_cuda_kernels, module)?)
}
