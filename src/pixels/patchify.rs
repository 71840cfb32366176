//! Where each row of the canvas goes in the patch matrix.

use std::ops::Range;

use bytemuck::Pod;

use super::output::Part;
use super::view::check_size;
use super::{Canvas, PatchLayout, PatchOrder, SampleOrder};
use crate::{Error, Result};

/// Largest side of a patch, in pixels.
pub const MAX_PATCH: u32 = 256;
/// Most copies of a still image in one patch.
pub const MAX_FRAMES: u32 = 16;

/// Channels of a canvas.
pub const CHANNELS: usize = 3;

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
        if !(1..=MAX_PATCH).contains(&layout.patch) {
            return Err(Error::argument(format!(
                "a patch side of {} is not within 1..={MAX_PATCH}",
                layout.patch
            )));
        }
        if !(1..=MAX_FRAMES).contains(&layout.frames) {
            return Err(Error::argument(format!("{} frames are not within 1..={MAX_FRAMES}", layout.frames)));
        }
        let merge = match layout.order {
            PatchOrder::Raster => 1,
            PatchOrder::Blocks(merge) => merge,
        };
        let unit = merge.checked_mul(layout.patch).unwrap_or(0);
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

    fn patch(&self) -> usize {
        self.layout.patch as usize
    }

    fn merge(&self) -> usize {
        match self.layout.order {
            PatchOrder::Raster => 1,
            PatchOrder::Blocks(merge) => merge as usize,
        }
    }

    /// Matrix row of the patch at (`row`, `column`) of the grid.
    fn index(&self, row: usize, column: usize) -> usize {
        let merge = self.merge();
        let block = row / merge * (self.grid.1 / merge) + column / merge;
        (block * merge + row % merge) * merge + column % merge
    }

    /// Writes canvas row `y` into `part`, which holds the matrix from canvas row `first` on.
    ///
    /// `samples` is the row as [`Line`] lays it out: one plane a channel, or one plane of whole pixels.
    pub fn scatter<T: Pod>(&self, part: &mut Part<T>, first: usize, y: usize, line: &Line<T>) {
        match line.samples.len() / self.grid.1 / line.planes {
            14 => self.scatter_segments(part, first, y, line, |segment| segment.first_chunk::<14>()),
            16 => self.scatter_segments(part, first, y, line, |segment| segment.first_chunk::<16>()),
            120 => self.scatter_segments(part, first, y, line, |segment| segment.first_chunk::<120>()),
            length => self.scatter_segments(part, first, y, line, |segment| segment.get(..length)),
        }
    }

    #[inline(always)]
    fn scatter_segments<'a, T: Pod, S: AsRef<[T]> + ?Sized + 'a>(
        &self,
        part: &mut Part<T>,
        first: usize,
        y: usize,
        line: &'a Line<T>,
        segment: impl Fn(&'a [T]) -> Option<&'a S>,
    ) {
        let patch = self.patch();
        let area = patch * patch;
        let frames = self.layout.frames as usize;
        let (plane_stride, frame_stride, row_stride) = match self.layout.samples {
            SampleOrder::ChannelFrame => (frames * area, area, patch),
            SampleOrder::FrameChannel => (area, CHANNELS * area, patch),
            SampleOrder::ChannelsLast => (0, CHANNELS * area, CHANNELS * patch),
        };
        let (row, columns) = (y / patch, self.columns());
        let skipped = self.index(first / patch, 0);
        let width = line.samples.len() / line.planes;
        for column in 0..self.grid.1 {
            let patch_start = (self.index(row, column) - skipped) * columns + y % patch * row_stride;
            for plane in 0..line.planes {
                let start = plane * width + column * (width / self.grid.1);
                let Some(segment) = segment(&line.samples[start..]) else { return };
                for frame in 0..frames {
                    part.write(patch_start + plane * plane_stride + frame * frame_stride, segment.as_ref());
                }
            }
        }
    }
}

/// One canvas row of a tower's values: three planes, or one plane of interleaved pixels for channels-last layouts.
#[derive(Clone, Debug)]
pub struct Line<T> {
    planes: usize,
    samples: Vec<T>,
}

impl<T: Pod> Line<T> {
    /// A row of padding.
    pub fn filled(geometry: &Geometry, fill: [T; CHANNELS]) -> Self {
        if geometry.channels_last() {
            return Self { planes: 1, samples: fill.repeat(geometry.width()) };
        }
        let plane = |value| std::iter::repeat_n(value, geometry.width());
        Self { planes: CHANNELS, samples: fill.into_iter().flat_map(plane).collect() }
    }

    /// The samples of canvas columns `columns`: one slice a plane (`Ok`) or one slice of whole pixels (`Err`).
    pub fn content(&mut self, columns: Range<usize>) -> Content<'_, T> {
        if self.planes == 1 {
            return Content::Pixels(&mut self.samples[columns.start * CHANNELS..columns.end * CHANNELS]);
        }
        let width = self.samples.len() / CHANNELS;
        let (first, rest) = self.samples.split_at_mut(width);
        let (second, third) = rest.split_at_mut(width);
        Content::Planes([first, second, third].map(|plane| &mut plane[columns.clone()]))
    }
}

/// The part of a [`Line`] that content covers.
pub enum Content<'a, T> {
    /// One slice a channel.
    Planes([&'a mut [T]; CHANNELS]),
    /// Whole pixels.
    Pixels(&'a mut [T]),
}
