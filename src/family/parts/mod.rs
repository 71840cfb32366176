//! Pieces that several towers are composed of.

mod canvas;
#[cfg(feature = "torch")]
mod layout;
pub mod patch_grid;
pub mod position_table;
pub mod rotary;

pub use canvas::stretched;
#[cfg(feature = "torch")]
pub use layout::TowerLayout;
