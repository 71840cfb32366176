//! What a tower needs to know of the grids it runs: segments, rotary angles, position taps; on its device.

use super::position_table::Taps;
use super::rotary::Angles;
use crate::Result;
use crate::family::Grid;
use crate::torch::ops::{Rotary, RotaryPairs, Segments, add_interpolated, index_rows};
use crate::torch::{Device, Tensor};

/// Tensors and segments that depend on the grids alone.
pub struct TowerLayout;

impl TowerLayout {
    /// One segment for each frame of each grid.
    pub fn frame_segments(grids: &[Grid]) -> Result<Segments> {
        Segments::from_lengths(
            grids.iter().flat_map(|grid| std::iter::repeat_n(grid.frame_patches(), grid.frames as usize)),
        )
    }

    /// One segment for each grid, all its frames together.
    pub fn grid_segments(grids: &[Grid]) -> Result<Segments> {
        Segments::from_lengths(grids.iter().map(|grid| grid.patches()))
    }

    /// Rotary tables of `angles` on `device`.
    pub fn rotary(angles: &Angles, pairs: RotaryPairs, device: Device) -> Result<Rotary> {
        let shape = [angles.cos.len() / angles.columns.max(1), angles.columns];
        let table = |values: &[f32]| Tensor::from_slice_on(values, &shape, device);
        Ok(Rotary { cos: table(&angles.cos)?, sin: table(&angles.sin)?, pairs })
    }

    /// `x` plus the entries of `table` [side * side, columns] that `taps` read for each row.
    pub fn add_positions(x: &Tensor, table: &Tensor, taps: &Taps, device: Device) -> Result<Tensor> {
        let shape = [4, taps.index.len() / 4];
        let index = Tensor::from_slice_on(&taps.index, &shape, device)?;
        let weight = Tensor::from_slice_on(&taps.weight, &shape, device)?;
        add_interpolated(x, table, &index, &weight)
    }

    /// The rows of `x` that `index` names, in its order.
    pub fn picked(x: &Tensor, index: &[i64], device: Device) -> Result<Tensor> {
        index_rows(x, &Tensor::from_slice_on(index, &[index.len()], device)?)
    }
}
