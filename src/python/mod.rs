//! The extension module `mm_libtorch_encoder._native`.

mod audio;
mod cache;
mod encoder;
mod encoding;
mod errors;
mod graphs;
mod image;
mod mailbox;
mod media;
mod pixels;
mod pool;
mod processor;
mod requests;
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
    encoding::register(module)?;
    mailbox::register(module)?;
    requests::register(module)?;
    cache::register(module)?;
    graphs::register(module)?;
    encoder::register(module)
}
