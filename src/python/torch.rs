//! The bridge to LibTorch as Python sees it: opening, and facts for `doctor` and tests.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::torch;

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

/// Tensors that the library owns at this moment; results that Python took do not count.
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

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open_bridge, module)?)?;
    module.add_function(wrap_pyfunction!(torch_version, module)?)?;
    module.add_function(wrap_pyfunction!(live_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(op_schemas, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_level, module)?)?;
    module.add_function(wrap_pyfunction!(set_plain_ops, module)?)
}
