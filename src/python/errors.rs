//! Exceptions, and the one place where [`Error`] becomes one of them.
//!
//! They name the package as their home, where users import them from, so that they also pickle.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::{Error, ErrorKind};

pyo3::create_exception!(
    mm_libtorch_encoder,
    MediaError,
    PyValueError,
    "A media item is damaged, unsupported or over a limit."
);
pyo3::create_exception!(
    mm_libtorch_encoder,
    CheckpointError,
    PyValueError,
    "A checkpoint is missing parts, contradictory or unsupported."
);
pyo3::create_exception!(
    mm_libtorch_encoder,
    RuntimeMismatch,
    PyRuntimeError,
    "The host's Torch does not fit this build."
);
pyo3::create_exception!(
    mm_libtorch_encoder,
    EncoderClosed,
    PyRuntimeError,
    "The encoder was closed or belongs to another process."
);
pyo3::create_exception!(
    mm_libtorch_encoder,
    QueueFull,
    PyRuntimeError,
    "The queue stayed full for as long as the call would wait."
);
pyo3::create_exception!(
    mm_libtorch_encoder,
    DeviceOutOfMemory,
    PyRuntimeError,
    "The device or host ran out of memory."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Media => MediaError::new_err(text),
            ErrorKind::Checkpoint => CheckpointError::new_err(text),
            ErrorKind::Argument => PyValueError::new_err(text),
            ErrorKind::Runtime => RuntimeMismatch::new_err(text),
            ErrorKind::Closed => EncoderClosed::new_err(text),
            ErrorKind::QueueFull => QueueFull::new_err(text),
            ErrorKind::OutOfMemory => DeviceOutOfMemory::new_err(text),
            ErrorKind::Internal => PyRuntimeError::new_err(text),
        }
    }
}

/// Adds the exception classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("MediaError", py.get_type::<MediaError>())?;
    module.add("CheckpointError", py.get_type::<CheckpointError>())?;
    module.add("RuntimeMismatch", py.get_type::<RuntimeMismatch>())?;
    module.add("EncoderClosed", py.get_type::<EncoderClosed>())?;
    module.add("QueueFull", py.get_type::<QueueFull>())?;
    module.add("DeviceOutOfMemory", py.get_type::<DeviceOutOfMemory>())
}
