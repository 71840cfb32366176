//! A learned square table of positions, read between its entries.

use super::patch_grid::block_order;
use crate::family::Grid;

/// The four entries of the table that each patch reads, and their weights, both [4, patches] row by row.
pub struct Taps {
    /// Rows of the flattened table; below `side * side`.
    pub index: Vec<i64>,
    /// Weights; they sum to 1, or to less where an entry would be outside of the table.
    pub weight: Vec<f32>,
}

/// The two entries along one side of the table between which a position falls, with their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    low: u32,
    high: u32,
    low_weight: f32,
    high_weight: f32,
}

/// How positions along a side of `length` patches fall into a side of the table. All arithmetic is in float32, as
/// transformers computes it: the bits of the weights are part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// The outermost patches read the outermost entries.
    Corners,
    /// Patches and entries are cells of equal areas; beyond the middle of the outermost entry stands its value.
    Centers,
    /// The same, but beyond the outermost entries there is nothing.
    CentersInNothing,
}

impl Alignment {
    /// Where `position` of `length` falls among `side` entries.
    pub fn between(self, position: u32, length: u32, side: u32) -> Between {
        let last = side - 1;
        let at = match self {
            Self::Corners => position as f32 * last as f32 / (length.max(2) - 1) as f32,
            Self::Centers => (side as f32 / length as f32 * (position as f32 + 0.5) - 0.5).max(0.0),
            Self::CentersInNothing => (position as f32 + 0.5) * side as f32 / length as f32 - 0.5,
        };
        let floor = at.floor();
        let low_weight = 1.0 - (at - floor);
        // ATen keeps the difference itself; transformers' own arithmetic goes by distances from the entries.
        let high_weight = if self == Self::Centers { at - floor } else { 1.0 - low_weight };
        if self == Self::CentersInNothing && floor < 0.0 {
            return Between { low: 0, high: 0, low_weight: 0.0, high_weight };
        }
        let low = (floor as u32).min(last);
        let beyond = self == Self::CentersInNothing && low == last;
        let high_weight = if beyond { 0.0 } else { high_weight };
        Between { low, high: (low + 1).min(last), low_weight, high_weight }
    }
}

/// The taps of patches at (row, column) between entries of a `side` x `side` table.
pub fn taps(side: u32, places: impl ExactSizeIterator<Item = (Between, Between)>) -> Taps {
    let patches = places.len();
    let mut index = vec![0; 4 * patches];
    let mut weight = vec![0.0; 4 * patches];
    for (patch, (y, x)) in places.enumerate() {
        let corners = [
            (y.low, x.low, y.low_weight * x.low_weight),
            (y.low, x.high, y.low_weight * x.high_weight),
            (y.high, x.low, y.high_weight * x.low_weight),
            (y.high, x.high, y.high_weight * x.high_weight),
        ];
        for (tap, (row, column, share)) in corners.into_iter().enumerate() {
            index[tap * patches + patch] = i64::from(row) * i64::from(side) + i64::from(column);
            weight[tap * patches + patch] = share;
        }
    }
    Taps { index, weight }
}

/// Taps of all patches of `grids` with aligned corners, in block order, repeated for each frame.
pub fn aligned_bilinear(grids: &[Grid], merge: u32, side: u32) -> Taps {
    let along = |position, length| Alignment::Corners.between(position, length, side);
    let mut places = Vec::new();
    for grid in grids {
        for _ in 0..grid.frames {
            let order = block_order(*grid, merge);
            places.extend(order.map(|(y, x)| (along(y, grid.height), along(x, grid.width))));
        }
    }
    taps(side, places.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_outside_of_the_table_weigh_nothing() {
        let at = |position| Alignment::CentersInNothing.between(position, 8, 4);
        assert_eq!(at(0), Between { low: 0, high: 0, low_weight: 0.0, high_weight: 0.75 });
        assert_eq!(at(1), Between { low: 0, high: 1, low_weight: 0.75, high_weight: 0.25 });
        assert_eq!(at(7), Between { low: 3, high: 3, low_weight: 0.75, high_weight: 0.0 });
    }

    #[test]
    fn the_border_goes_on_where_it_is_asked_to() {
        let at = |position| Alignment::Centers.between(position, 8, 4);
        assert_eq!(at(0), Between { low: 0, high: 1, low_weight: 1.0, high_weight: 0.0 });
        assert_eq!(at(7), Between { low: 3, high: 3, low_weight: 0.75, high_weight: 0.25 });
    }
}
