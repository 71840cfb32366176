//! Axial rotary angles: half of a head's pairs turn with the patch row, half with the column.

use super::patch_grid::block_order;
use crate::Result;
use crate::checkpoint::Node;
use crate::family::Grid;

/// Cosines and sines of every patch, [patches, dim / 2] row by row.
pub struct Angles {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
    /// dim / 2.
    pub columns: usize,
}

impl Angles {
    /// The same in another order: groups of `rows` consecutive patches, taken in the order of `groups`, each of which
    /// is the number of one.
    pub fn regrouped(&self, groups: &[i64], rows: usize) -> Self {
        let chunk = rows * self.columns;
        let pick = |table: &[f32]| {
            let mut out = Vec::with_capacity(table.len());
            for &group in groups {
                let start = group as usize * chunk;
                out.extend_from_slice(table.get(start..start + chunk).unwrap_or(&[]));
            }
            out
        };
        Self { cos: pick(&self.cos), sin: pick(&self.sin), columns: self.columns }
    }
}

/// `theta^(-2j / (dim / 2))` for j in 0..dim / 4, in float32 as Torch computes it.
pub fn inverse_frequencies(dim: usize, theta: f64) -> Vec<f32> {
    let half = (dim / 2) as f32;
    (0..dim / 4).map(|j| 1.0 / theta.powf(f64::from((2 * j) as f32 / half)) as f32).collect()
}

/// Angles `[row * f_0, row * f_1 .., column * f_0, column * f_1 ..]` of all `grids` in block order, repeated for each
/// frame.
pub fn axial(grids: &[Grid], merge: u32, dim: usize, theta: f64) -> Angles {
    angles(grids, merge, 0, dim, theta, |row, column, out| {
        out.extend_from_slice(row);
        out.extend_from_slice(column);
    })
}

/// Angles `[column * f_0, row * f_0, column * f_1, row * f_1 ..]` of all `grids` in block order, repeated for each
/// frame.
pub fn interleaved(grids: &[Grid], merge: u32, dim: usize, theta: f64) -> Angles {
    angles(grids, merge, 0, dim, theta, |row, column, out| {
        out.extend(column.iter().zip(row).flat_map(|(&column, &row)| [column, row]));
    })
}

/// Angles `[column * f_0, column * f_1 .., row * f_0, row * f_1 ..]` of all `grids` in raster order, rows and columns
/// counted from 1, repeated for each frame.
pub fn column_first(grids: &[Grid], dim: usize, theta: f64) -> Angles {
    angles(grids, 1, 1, dim, theta, |row, column, out| {
        out.extend_from_slice(column);
        out.extend_from_slice(row);
    })
}

/// Angles of all patches, the first row and column being number `first`; `join` appends those of a patch from those of its row and of its column.
fn angles(
    grids: &[Grid],
    merge: u32,
    first: u32,
    dim: usize,
    theta: f64,
    join: impl Fn(&[f32], &[f32], &mut Vec<f32>),
) -> Angles {
    let frequencies = inverse_frequencies(dim, theta);
    let side = grids.iter().flat_map(|grid| [grid.height, grid.width]).max().unwrap_or(0);
    // One turn of the table for each position; patches only copy from it.
    let turns: Vec<(Vec<f32>, Vec<f32>)> = (0..side)
        .map(|position| {
            let angles = frequencies.iter().map(|f| f64::from((position + first) as f32 * f));
            angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip()
        })
        .collect();
    let columns = 2 * frequencies.len();
    let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
    let mut cos = Vec::with_capacity(patches * columns);
    let mut sin = Vec::with_capacity(patches * columns);
    for grid in grids {
        for _ in 0..grid.frames {
            for (row, column) in block_order(*grid, merge) {
                let ((row_cos, row_sin), (column_cos, column_sin)) =
                    (&turns[row as usize], &turns[column as usize]);
                join(row_cos, column_cos, &mut cos);
                join(row_sin, column_sin, &mut sin);
            }
        }
    }
    Angles { cos, sin, columns }
}

/// Rotary base of a `vision_config`: `rope_parameters.rope_theta`, `rope_theta`, or 10000. Axial rotation only.
pub fn theta(node: Node<'_>) -> Result<f64> {
    const DEFAULT: f64 = 10_000.0;
    let range = 1.0..=1e9;
    if node.get("rope_parameters").is_none() {
        return node.f64_or("rope_theta", DEFAULT, range);
    }
    let parameters = node.object("rope_parameters")?;
    let kind = parameters.str_or("rope_type", "axial")?;
    if kind != "axial" && kind != "default" {
        return Err(parameters.fault(format!("has rope_type {kind:?}: only axial is supported")));
    }
    parameters.f64_or("rope_theta", DEFAULT, range)
}
