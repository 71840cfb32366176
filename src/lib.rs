//! Native multimodal encoder: media bytes in, embeddings of a checkpoint's tower out.
//!
//! Data flows one way: [`image`] and [`audio`] decode, [`pixels`] resizes and lays out patches, a [`family`] says which
//! sizes and constants apply and runs its tower, [`encoder`] owns order, limits and failure.

pub mod audio;
#[cfg(feature = "torch")]
pub mod cache;
pub mod checkpoint;
pub mod dtype;
#[cfg(feature = "torch")]
pub mod encoder;
pub mod error;
pub mod family;
pub mod image;
pub mod media;
pub mod memory;
pub mod pixels;
pub mod prepare;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "torch")]
pub mod torch;

pub use dtype::Dtype;
pub use error::{Error, ErrorKind, Result};

#[cfg(feature = "python")]
#[global_allocator]
static ALLOCATOR: memory::LargeBlocks = memory::LargeBlocks;
