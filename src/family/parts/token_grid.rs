//! Where the rows of an image's embeddings stand over its patches.

use crate::family::Grid;

/// Longest side of a token, in patches, that [`TokenGrid::merged`] looks for.
const MAX_SIDE: u32 = 16;

/// Tokens as a raster over the patches of a still image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGrid {
    /// Patches that a token is high and wide; those at the lower and right edge may reach beyond the picture.
    pub side: u32,
    /// Lines of tokens.
    pub rows: usize,
    /// Tokens of a line.
    pub columns: usize,
    /// Row of the embeddings that is the first token.
    pub first: usize,
    /// Rows of the embeddings from one line to the next.
    pub stride: usize,
}

impl TokenGrid {
    /// Squares of patches that tile `grid` as `tokens` tokens and nothing else; none where no square does.
    pub fn merged(grid: Grid, tokens: usize) -> Option<Self> {
        let fits = |side: &u32| {
            let whole = grid.height.is_multiple_of(*side) && grid.width.is_multiple_of(*side);
            whole && (grid.height / side) as usize * (grid.width / side) as usize == tokens
        };
        let side = (1..=MAX_SIDE).find(fits).filter(|_| grid.frames == 1)?;
        let columns = (grid.width / side) as usize;
        Some(Self { side, rows: (grid.height / side) as usize, columns, first: 0, stride: columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_found_from_the_number_of_tokens() {
        let found = |height, width, tokens| {
            TokenGrid::merged(Grid::still(height, width), tokens)
                .map(|grid| (grid.side, grid.rows, grid.columns, grid.first, grid.stride))
        };
        assert_eq!(found(26, 40, 260), Some((2, 13, 20, 0, 20)));
        assert_eq!(found(3, 5, 15), Some((1, 3, 5, 0, 5)));
        assert_eq!(found(9, 6, 6), Some((3, 3, 2, 0, 2)));
        for tokens in [0, 1, 17, 259, 261] {
            assert_eq!(found(26, 40, tokens), None);
        }
        assert_eq!(TokenGrid::merged(Grid { frames: 2, height: 4, width: 4 }, 8), None);
    }
}
