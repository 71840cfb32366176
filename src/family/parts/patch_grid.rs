//! The order in which a grid's patches stand in the matrix.

use crate::family::Grid;
use crate::{Error, Result};

/// (row, column) of every patch of one frame, in blocks of `merge` x `merge`: blocks in raster order, raster order
/// inside a block. `merge` 1 is plain raster order. Both sides of the grid must be multiples of `merge`.
pub fn block_order(grid: Grid, merge: u32) -> impl Iterator<Item = (u32, u32)> {
    let (rows, columns) = (grid.height / merge, grid.width / merge);
    (0..rows).flat_map(move |block_row| {
        (0..columns).flat_map(move |block_column| {
            (0..merge).flat_map(move |row| {
                (0..merge).map(move |column| (block_row * merge + row, block_column * merge + column))
            })
        })
    })
}

/// For each patch of all `grids` in block order, its row in a matrix in raster order that has `before` further rows
/// ahead of every grid.
pub fn block_rows(grids: &[Grid], merge: u32, before: usize) -> Vec<i64> {
    let mut rows = Vec::with_capacity(grids.iter().map(|grid| grid.patches()).sum());
    let mut first = 0;
    for grid in grids {
        first += before;
        for _ in 0..grid.frames {
            let row = |(y, x): (u32, u32)| (first + y as usize * grid.width as usize + x as usize) as i64;
            rows.extend(block_order(*grid, merge).map(row));
            first += grid.frame_patches();
        }
    }
    rows
}

/// Rows of embeddings of a grid whose `merge` x `merge` blocks become one token each.
pub fn merged_tokens(grid: Grid, merge: u32) -> Result<usize> {
    let whole = |side: u32| side > 0 && side.is_multiple_of(merge);
    if grid.frames == 0 || !whole(grid.height) || !whole(grid.width) {
        return Err(Error::argument(format!(
            "a grid of {}x{}x{} patches: frames must be at least 1, and rows and columns multiples of {merge}",
            grid.frames, grid.height, grid.width
        )));
    }
    Ok(grid.patches() / (merge * merge) as usize)
}

/// [`merged_tokens`] of a tower that sees still images alone.
pub fn still_tokens(grid: Grid, merge: u32) -> Result<usize> {
    if grid.frames != 1 {
        return Err(Error::argument(format!(
            "a grid of {} frames: this tower sees still images",
            grid.frames
        )));
    }
    merged_tokens(grid, merge)
}
