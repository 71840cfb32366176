//! Memory of graphs: LibTorch's allocator has a way to private pools in Python alone.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::encoder::{GraphLimits, GraphMemory, GraphPool, GraphSettings};
use crate::{Error, Result};

/// Fields of `GraphConfig`, in order.
pub type Fields<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// `device.Pool`, or what stands for it.
#[derive(Debug)]
struct Memory(Py<PyAny>);

/// One of its pools.
struct Pool(Option<Py<PyAny>>);

impl GraphMemory for Memory {
    fn enter(&self, index: u16) -> Result<Box<dyn GraphPool>> {
        let pool = attached(|py| self.0.call1(py, (index,)))?;
        Ok(Box::new(Pool(Some(pool))))
    }
}

impl GraphPool for Pool {
    fn leave(&mut self) -> Result<usize> {
        let Some(pool) = &self.0 else { return Ok(0) };
        attached(|py| pool.call_method0(py, "leave")?.extract(py))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let pool = self.0.take();
        // At the interpreter's end its memory goes with the process.
        let mut pool = std::mem::ManuallyDrop::new(pool);
        let _ = Python::try_attach(|_| drop(pool.take()));
    }
}

/// `call`, attached to the interpreter for as long as it runs.
fn attached<R>(call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
    let told = Python::try_attach(|py| {
        call(py).map_err(|error| {
            let text = error.value(py).to_string();
            let line = text.lines().next().unwrap_or_default();
            Error::internal(format!("Torch's memory pool: {line}"))
        })
    });
    told.unwrap_or_else(|| Err(Error::closed("the interpreter is ending")))
}

fn limits(fields: Fields<'_>) -> PyResult<GraphLimits> {
    // Numbers beyond 64 bits are left to the check of the rest.
    let number = |value: &Bound<'_, PyAny>| match value.extract::<usize>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(usize::MAX),
        other => other,
    };
    let (hits, graphs, tokens, bytes) = fields;
    Ok(GraphLimits {
        min_hits: number(&hits)?,
        max_graphs: number(&graphs)?,
        max_tokens: number(&tokens)?,
        max_bytes: number(&bytes)?,
    })
}

/// The settings in `fields`, of graphs in memory of `pool`.
pub fn settings(fields: Fields<'_>, pool: Py<PyAny>) -> PyResult<GraphSettings> {
    Ok(GraphSettings { limits: limits(fields)?, memory: std::sync::Arc::new(Memory(pool)) })
}

/// Raises ValueError for numbers out of their range.
#[pyfunction]
fn check_graphs(
    min_hits: Bound<'_, PyAny>,
    max_graphs: Bound<'_, PyAny>,
    max_tokens: Bound<'_, PyAny>,
    max_bytes: Bound<'_, PyAny>,
) -> PyResult<()> {
    Ok(limits((min_hits, max_graphs, max_tokens, max_bytes))?.check()?)
}

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(check_graphs, module)?)
}
