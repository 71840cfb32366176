//! Pieces that several towers are composed of.

#[cfg(feature = "torch")]
mod attention;
#[cfg(feature = "torch")]
mod block;
mod canvas;
#[cfg(feature = "torch")]
mod layout;
#[cfg(feature = "torch")]
mod merger;
#[cfg(feature = "torch")]
mod mlp;
#[cfg(feature = "torch")]
mod norm;
pub mod patch_grid;
pub mod policy;
pub mod position_table;
pub mod processor;
#[cfg(feature = "torch")]
mod residual;
pub mod rotary;
pub mod sizes;
mod specs;
mod token_grid;
mod window;

#[cfg(feature = "torch")]
pub use attention::SelfAttention;
#[cfg(feature = "torch")]
pub use block::Block;
pub use canvas::stretched;
#[cfg(feature = "torch")]
pub use layout::TowerLayout;
#[cfg(feature = "torch")]
pub use merger::{NormPlace, PatchMerger};
#[cfg(feature = "torch")]
pub use mlp::Mlp;
#[cfg(feature = "torch")]
pub use norm::Norm;
#[cfg(feature = "torch")]
pub use residual::Residual;
pub use specs::Specs;
pub use token_grid::TokenGrid;
pub use window::Windows;
