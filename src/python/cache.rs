//! Settings and counts of the cache as Python sees them.

use std::path::PathBuf;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cache::{CacheConfig, CacheStats};
use crate::torch;

/// Fields of `CacheConfig`, in order.
pub type Fields<'py> = (Bound<'py, PyAny>, Option<PathBuf>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// The settings in `fields`; numbers beyond 64 bits are left to the check of the rest.
pub fn config(fields: Fields<'_>) -> PyResult<CacheConfig> {
    let number = |value: &Bound<'_, PyAny>| match value.extract::<u64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(u64::MAX),
        other => other,
    };
    let (memory, disk_path, disk, entry) = fields;
    Ok(CacheConfig {
        memory_bytes: number(&memory)?,
        disk_path,
        disk_bytes: number(&disk)?,
        max_entry_bytes: number(&entry)?,
    })
}

/// Raises ValueError for settings that cannot work.
#[pyfunction]
fn check_cache(
    memory_bytes: Bound<'_, PyAny>,
    disk_path: Option<PathBuf>,
    disk_bytes: Bound<'_, PyAny>,
    max_entry_bytes: Bound<'_, PyAny>,
) -> PyResult<()> {
    Ok(config((memory_bytes, disk_path, disk_bytes, max_entry_bytes))?.check()?)
}

/// Counts by name.
pub fn counts(py: Python<'_>, stats: CacheStats) -> PyResult<Bound<'_, PyDict>> {
    let rows = [
        ("memory_hits", stats.memory_hits),
        ("disk_hits", stats.disk_hits),
        ("misses", stats.misses),
        ("joins", stats.joins),
        ("bypasses", stats.bypasses),
        ("errors", stats.errors),
        ("memory_bytes", stats.memory_bytes),
        ("disk_bytes", stats.disk_bytes),
        ("live_cpu_bytes_process", torch::live_host_bytes()),
    ];
    let out = PyDict::new(py);
    for (name, count) in rows {
        out.set_item(name, count)?;
    }
    Ok(out)
}

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check_cache, module)?)
}
