//! Nearest neighbour: which input sample each output copies.

use std::ops::Range;

use crate::pixels::view::View;

/// Source column of each output column and source row of each output row.
#[derive(Clone, Debug)]
pub struct Nearest {
    columns: Vec<Option<usize>>,
    rows: Vec<Option<usize>>,
}

impl Nearest {
    /// Pillow's scaling transform: the position is a running sum, so that its rounding error grows along the axis.
    /// Where it ends up beyond the last sample the output stays 0.
    pub fn pillow(source: (usize, usize), target: (usize, usize)) -> Self {
        let axis = |input: usize, output: usize| {
            let step = input as f64 / output as f64;
            let positions = std::iter::successors(Some(step * 0.5), move |position| Some(position + step));
            positions
                .take(output)
                .map(|position| Some(position as usize).filter(|&index| index < input))
                .collect()
        };
        Self { columns: axis(source.0, target.0), rows: axis(source.1, target.1) }
    }

    /// ATen's `nearest`: `floor(i * scale)` in single precision.
    pub fn aten(source: (usize, usize), target: (usize, usize)) -> Self {
        let axis = |input: usize, output: usize| {
            let scale = input as f32 / output as f32;
            (0..output).map(|i| Some(((i as f32 * scale) as usize).min(input - 1))).collect()
        };
        Self { columns: axis(source.0, target.0), rows: axis(source.1, target.1) }
    }

    /// Hands each output row of `band` to `sink`, in order.
    pub fn rows(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[u8])) {
        let channels = view.channels();
        let mut out = vec![0; self.columns.len() * channels];
        for row in &self.rows[band] {
            let row = row.map(|y| view.row(y));
            for (pixel, column) in out.chunks_exact_mut(channels).zip(&self.columns) {
                match (row, column) {
                    (Some(row), Some(x)) => pixel.copy_from_slice(&row[x * channels..][..channels]),
                    _ => pixel.fill(0),
                }
            }
            sink(&out);
        }
    }
}
