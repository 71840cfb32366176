//! The extension module `mm_libtorch_encoder._native`.

mod audio;
mod encoder;
mod errors;
mod image;
mod media;
mod pixels;
mod pool;
mod processor;
mod torch;

use pyo3::prelude::*;

/// Native parts of the package; use `mm_libtorch_encoder`, not this module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    audio::register(module)?;
    image::register(module)?;
    media::register(module)?;
    pixels::register(module)?;
    processor::register(module)?;
    torch::register(module)?;
    encoder::register(module)
}
