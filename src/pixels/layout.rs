//! Where the patches of a canvas go in the patch matrix.

use std::ops::Range;

use super::view::{MAX_SIDE, check_size};
use super::{Canvas, PatchLayout, PatchOrder, SampleOrder};
use crate::{Error, Result};

/// Largest side of a patch, in pixels.
pub const MAX_PATCH: u32 = 256;
/// Most copies of a still image in one patch.
pub const MAX_FRAMES: u32 = 16;

/// Channels of a canvas.
pub const CHANNELS: usize = 3;

impl PatchLayout {
    /// Refuses patches and blocks that tile no canvas, and too many frames.
    ///
    /// # Errors
    /// `Argument` with a sentence on the first fault.
    pub fn check(&self) -> Result<()> {
        let (patch, frames, merge) = (self.patch, self.frames, self.merge());
        if !(1..=MAX_PATCH).contains(&patch) {
            return Err(Error::argument(format!("a patch side of {patch} is not within 1..={MAX_PATCH}")));
        }
        if !(1..=MAX_FRAMES).contains(&frames) {
            return Err(Error::argument(format!("{frames} frames are not within 1..={MAX_FRAMES}")));
        }
        if !merge.checked_mul(patch).is_some_and(|side| (1..=MAX_SIDE).contains(&side)) {
            return Err(Error::argument(format!(
                "blocks of {merge}x{merge} patches of {patch} pixels: a block has a side of 1 to {MAX_SIDE} pixels"
            )));
        }
        Ok(())
    }

    /// Patches along a block's side.
    fn merge(&self) -> u32 {
        match self.order {
            PatchOrder::Raster => 1,
            PatchOrder::Blocks(merge) => merge,
        }
    }
}

/// See [`Geometry::places`]; `area` is that of a patch, in pixels.
pub fn places(samples: SampleOrder, area: usize, frames: usize) -> Vec<Vec<usize>> {
    let (planes, plane_stride, frame_stride) = match samples {
        SampleOrder::ChannelFrame => (CHANNELS, frames * area, area),
        SampleOrder::FrameChannel => (CHANNELS, area, CHANNELS * area),
        SampleOrder::ChannelsLast => (1, 0, CHANNELS * area),
    };
    let copies = |plane| (0..frames).map(|frame| plane * plane_stride + frame * frame_stride).collect();
    (0..planes).map(copies).collect()
}

/// A checked canvas and layout.
#[derive(Clone, Debug)]
pub struct Geometry {
    canvas: Canvas,
    layout: PatchLayout,
    /// Patches a column and a row.
    grid: (usize, usize),
}

impl Geometry {
    /// Checks that the content lies on the canvas and that patches and blocks tile it.
    pub fn new(canvas: Canvas, layout: PatchLayout) -> Result<Self> {
        check_size("canvas", canvas.width, canvas.height)?;
        layout.check()?;
        let merge = layout.merge();
        let unit = merge * layout.patch;
        if !canvas.width.is_multiple_of(unit) || !canvas.height.is_multiple_of(unit) {
            return Err(Error::argument(format!(
                "a canvas of {}x{} is not a multiple of blocks of {merge}x{merge} patches of {} pixels",
                canvas.width, canvas.height, layout.patch
            )));
        }
        let reach =
            |offset: u32, content: u32, full: u32| offset.checked_add(content).is_some_and(|end| end <= full);
        if !reach(canvas.left, canvas.content_width, canvas.width)
            || !reach(canvas.top, canvas.content_height, canvas.height)
        {
            return Err(Error::argument(format!(
                "content of {}x{} at ({}, {}) leaves the canvas of {}x{}",
                canvas.content_width,
                canvas.content_height,
                canvas.left,
                canvas.top,
                canvas.width,
                canvas.height
            )));
        }
        let grid = ((canvas.height / layout.patch) as usize, (canvas.width / layout.patch) as usize);
        Ok(Self { canvas, layout, grid })
    }

    /// Pixels a canvas row.
    pub fn width(&self) -> usize {
        self.canvas.width as usize
    }

    /// Canvas rows.
    pub fn height(&self) -> usize {
        self.canvas.height as usize
    }

    /// Canvas rows that the content covers. Empty if the content is.
    pub fn content_rows(&self) -> Range<usize> {
        let top = self.canvas.top as usize;
        let rows = if self.canvas.content_width == 0 { 0 } else { self.canvas.content_height as usize };
        top..top + rows
    }

    /// Canvas columns that the content covers.
    pub fn content_columns(&self) -> Range<usize> {
        let left = self.canvas.left as usize;
        left..left + self.canvas.content_width as usize
    }

    /// Number of patches.
    pub fn patches(&self) -> usize {
        self.grid.0 * self.grid.1
    }

    /// Samples of one patch.
    pub fn columns(&self) -> usize {
        CHANNELS * self.layout.frames as usize * self.patch() * self.patch()
    }

    /// Matrix elements of `rows` canvas rows.
    pub fn elements(&self, rows: usize) -> usize {
        rows * self.width() * CHANNELS * self.layout.frames as usize
    }

    /// Canvas rows whose patches are contiguous in the matrix.
    pub fn unit(&self) -> usize {
        self.patch() * self.merge()
    }

    /// Whether the samples of one pixel stand together.
    pub fn channels_last(&self) -> bool {
        self.layout.samples == SampleOrder::ChannelsLast
    }

    /// Pixels of a patch's side.
    pub fn patch(&self) -> usize {
        self.layout.patch as usize
    }

    /// Patches a row of the grid.
    pub fn grid_width(&self) -> usize {
        self.grid.1
    }

    fn merge(&self) -> usize {
        match self.layout.order {
            PatchOrder::Raster => 1,
            PatchOrder::Blocks(merge) => merge as usize,
        }
    }

    /// Where the copies of a patch's `[channel][y][x]` planes (or of all its pixels, if channels come last) begin in
    /// its row of the matrix: for each plane, one place a frame.
    pub fn places(&self) -> Vec<Vec<usize>> {
        places(self.layout.samples, self.patch() * self.patch(), self.layout.frames as usize)
    }

    /// The part of the content that falls into each patch, in the order of the matrix: first line, one past the last,
    /// first column and one past the last, counted from the patch's corner.
    pub fn edges(&self) -> Vec<[u16; 4]> {
        let mut edges = vec![[0; 4]; self.patches()];
        // A side is at most MAX_PATCH.
        let narrow = |range: Range<usize>| [range.start as u16, range.end as u16];
        for row in 0..self.grid.0 {
            let [top, bottom] = narrow(self.overlap(row, self.content_rows()));
            for column in 0..self.grid.1 {
                let [left, right] = narrow(self.overlap(column, self.content_columns()));
                edges[self.index(row, column)] = [top, bottom, left, right];
            }
        }
        edges
    }

    /// The part of `content` that falls into the patch with this number along an axis, counted from the patch's edge.
    pub fn overlap(&self, number: usize, content: Range<usize>) -> Range<usize> {
        let patch = self.patch();
        let inside = |edge: usize| edge.saturating_sub(number * patch).min(patch);
        inside(content.start)..inside(content.end)
    }

    /// Matrix row of the patch at (`row`, `column`) of the grid.
    pub fn index(&self, row: usize, column: usize) -> usize {
        let merge = self.merge();
        let block = row / merge * (self.grid.1 / merge) + column / merge;
        (block * merge + row % merge) * merge + column % merge
    }
}
