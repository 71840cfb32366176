//! Pieces that several towers are composed of.

mod canvas;
#[cfg(feature = "torch")]
mod layout;
pub mod patch_grid;
pub mod policy;
pub mod position_table;
pub mod processor;
pub mod rotary;

pub use canvas::stretched;
#[cfg(feature = "torch")]
pub use layout::TowerLayout;
