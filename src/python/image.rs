//! Bindings of `crate::image` on NumPy arrays.

use pyo3::prelude::*;

/// Adds the functions of this file.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
