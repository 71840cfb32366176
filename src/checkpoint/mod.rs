//! Checkpoint folders: configuration files and the weights of one tower.
//!
//! Every file of a checkpoint is hostile until it is checked. [`Checkpoint`] reads the configuration, [`Node`]
//! asks it for values of a stated form, [`Weights`] knows the names of all tensors, and [`Selection`] reads those
//! of one tower. Files that the tower does not need are never opened.

mod config;
pub mod demo;
mod fault;
mod file;
mod header;
mod index;
mod json;
mod node;
mod select;
mod selection;
pub mod write;

pub use config::Checkpoint;
pub use index::Weights;
pub use node::Node;
pub use select::TensorSpec;
pub use selection::{Selection, Tensor, TensorInfo};
