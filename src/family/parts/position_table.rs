//! A learned square table of positions, read between its entries.

use super::patch_grid::block_order;
use crate::family::Grid;

/// The four entries of the table that each patch reads, and their weights, both [4, patches] row by row.
pub struct Taps {
    /// Rows of the flattened table; below `side * side`.
    pub index: Vec<i64>,
    /// Weights that sum to 1.
    pub weight: Vec<f32>,
}

/// Bilinear taps with aligned corners into a `side` x `side` table, in block order, repeated for each frame.
///
/// float32 throughout, as transformers computes them: the bits of the weights are part of the result.
pub fn aligned_bilinear(grids: &[Grid], merge: u32, side: u32) -> Taps {
    let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
    let mut index = vec![0; 4 * patches];
    let mut weight = vec![0.0; 4 * patches];
    let last = side - 1;
    let along = |position: u32, length: u32| {
        let at = position as f32 * last as f32 / (length.max(2) - 1) as f32;
        let low = (at.floor() as u32).min(last);
        (low, (low + 1).min(last), at - at.floor())
    };
    let mut patch = 0;
    for grid in grids {
        for _ in 0..grid.frames {
            for (row, column) in block_order(*grid, merge) {
                let (y0, y1, dy) = along(row, grid.height);
                let (x0, x1, dx) = along(column, grid.width);
                let corners = [
                    (y0, x0, (1.0 - dy) * (1.0 - dx)),
                    (y0, x1, (1.0 - dy) * dx),
                    (y1, x0, dy * (1.0 - dx)),
                    (y1, x1, dy * dx),
                ];
                for (tap, (y, x, share)) in corners.into_iter().enumerate() {
                    index[tap * patches + patch] = i64::from(y) * i64::from(side) + i64::from(x);
                    weight[tap * patches + patch] = share;
                }
                patch += 1;
            }
        }
    }
    Taps { index, weight }
}
