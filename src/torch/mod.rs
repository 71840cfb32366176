//! The one door to LibTorch: a C++ bridge, opened by path, that calls the host's own Torch.
//!
//! `bridge/` is the C++ side, [`Tensor`] an owned handle, [`ops`] the vocabulary that towers are written in.

pub mod cuda;
mod graph;
mod host;
pub mod ops;
mod patches;
pub mod self_check;
mod stream;
mod sys;
mod tensor;
mod uploads;

pub use graph::Graph;
pub use host::{HostBuffer, live_host_bytes};
pub use patches::Expander;
pub use stream::{Event, Stream};
pub use sys::{
    Schema, bridge_file, disable_gradients, kernel_level, live_tensors, open, schemas, set_plain,
    share_threads, torch_version,
};
pub use tensor::{Device, Tensor, discard, publish};
pub use uploads::Uploads;
