//! Bindings of `crate::media`: hashes and base64.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::media::{base64, hash};

/// BLAKE3 of `data` as 64 hexadecimal digits.
#[pyfunction]
fn content_hash(py: Python<'_>, data: &[u8]) -> String {
    let digest = py.detach(|| hash::content_hash(data));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first eight bytes of BLAKE3 of `data`, read big-endian.
#[pyfunction]
fn content_hash_u64(py: Python<'_>, data: &[u8]) -> u64 {
    py.detach(|| hash::content_hash_u64(data))
}

/// `data` in base64, standard alphabet, padded.
#[pyfunction]
fn base64_encode(py: Python<'_>, data: &[u8]) -> String {
    py.detach(|| base64::encode(data))
}

/// Bytes of base64 text or of a data URL.
#[pyfunction]
fn base64_decode<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| base64::decode(text))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(content_hash, module)?)?;
    module.add_function(wrap_pyfunction!(content_hash_u64, module)?)?;
    module.add_function(wrap_pyfunction!(base64_encode, module)?)?;
    module.add_function(wrap_pyfunction!(base64_decode, module)?)
}
