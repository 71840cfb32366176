//! Partition of a merged grid into square windows, ragged at the right and bottom edges.

use crate::family::Grid;

/// Merged tokens in the order of their windows.
#[derive(Debug, PartialEq, Eq)]
pub struct Windows {
    /// For each place in window order, the token of raster order that stands there.
    pub order: Vec<i64>,
    /// Tokens of each window; none is empty.
    pub lengths: Vec<usize>,
}

impl Windows {
    /// Windows of `side` x `side` merged tokens of every frame of `grids`, windows and their insides in raster order.
    ///
    /// `merge` and `side` are at least 1.
    pub fn partition(grids: &[Grid], merge: u32, side: u32) -> Self {
        let mut this = Self { order: Vec::new(), lengths: Vec::new() };
        let mut first = 0;
        for grid in grids {
            let (rows, columns) = (grid.height / merge, grid.width / merge);
            for _ in 0..grid.frames {
                for top in (0..rows).step_by(side as usize) {
                    for left in (0..columns).step_by(side as usize) {
                        let before = this.order.len();
                        for row in top..rows.min(top.saturating_add(side)) {
                            let start = first + i64::from(row) * i64::from(columns);
                            let end = columns.min(left.saturating_add(side));
                            this.order.extend((left..end).map(|column| start + i64::from(column)));
                        }
                        this.lengths.push(this.order.len() - before);
                    }
                }
                first += i64::from(rows) * i64::from(columns);
            }
        }
        this
    }

    /// For each token of raster order, its place in window order.
    pub fn inverse(&self) -> Vec<i64> {
        let mut inverse = vec![0; self.order.len()];
        for (place, &token) in self.order.iter().enumerate() {
            if let Some(slot) = inverse.get_mut(token as usize) {
                *slot = place as i64;
            }
        }
        inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_windows_keep_every_token_once() {
        let grids = [Grid { frames: 2, height: 6, width: 10 }, Grid::still(4, 4)];
        let windows = Windows::partition(&grids, 2, 2);
        assert_eq!(windows.lengths, [4, 4, 2, 2, 2, 1, 4, 4, 2, 2, 2, 1, 4]);
        assert_eq!(windows.order[..10], [0, 1, 5, 6, 2, 3, 7, 8, 4, 9]);
        let inverse = windows.inverse();
        for (place, &token) in windows.order.iter().enumerate() {
            assert_eq!(inverse[token as usize], place as i64);
        }
    }
}
