//! Canvas rows to rows of the patch matrix.
//!
//! The levels of one row of patches are first sorted into patches, in a buffer that stays in the cache; then each
//! patch is normalised and written in one go, so that the matrix, which does not fit the cache, is written in order.

use std::ops::Range;

use bytemuck::Pod;

use super::layout::{CHANNELS, Geometry};
use super::output::Part;
use super::work::Work;

/// Which channels a run of samples holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One.
    Plane(usize),
    /// All, a pixel after the other.
    Interleaved,
}

/// From resized samples `S` to the tower's values `T`.
pub trait Convert<S, T>: Sync {
    /// Splits pixels into planes.
    fn split(&self, row: &[S], planes: [&mut [S]; CHANNELS]);

    /// Splits pixels into line `line` of the planes of patches `patch` pixels wide, from the first one on, as far as
    /// there is a quicker way than [`Self::split`]. Gives the pixels done, whole lines.
    fn split_lines(&self, _row: &[S], _patches: &mut [S], _patch: usize, _line: usize) -> usize {
        0
    }

    /// Values of a run of samples.
    fn convert(&self, samples: &[S], channels: Channels, values: &mut [T]);
}

/// Takes the content's rows of one band of the canvas in order and writes all patches of the band.
pub struct Writer<'a, 'b, S, T, C> {
    geometry: &'a Geometry,
    converter: &'a C,
    part: &'a mut Part<'b, T>,
    /// Canvas rows of the band, and those of them that content covers.
    band: Range<usize>,
    content: Range<usize>,
    /// The next canvas row.
    y: usize,
    places: Vec<Vec<usize>>,
    fill: [T; CHANNELS],
    /// The content's part of one row of pixels, a plane a channel; unused if channels come last.
    planes: Work<S>,
    /// One row of patches: `[column][channel][y][x]`, or `[column][y][x][channel]`.
    samples: Work<S>,
    /// One row of the matrix: all copies of one patch.
    values: Work<T>,
}

impl<'a, 'b, S: Copy + Default, T: Pod, C: Convert<S, T>> Writer<'a, 'b, S, T, C> {
    /// A writer of the canvas rows `band` into `part`. Padding is `fill`.
    pub fn new(
        geometry: &'a Geometry,
        converter: &'a C,
        fill: [T; CHANNELS],
        band: Range<usize>,
        part: &'a mut Part<'b, T>,
    ) -> Self {
        let content = geometry.content_rows();
        let content = content.start.clamp(band.start, band.end)..content.end.clamp(band.start, band.end);
        let samples = CHANNELS * geometry.patch() * geometry.patch();
        Self {
            geometry,
            converter,
            part,
            y: band.start,
            band,
            content,
            places: geometry.places(),
            fill,
            planes: Work::new(S::default(), CHANNELS * geometry.content_columns().len()),
            samples: Work::new(S::default(), samples * geometry.grid_width()),
            values: Work::new(fill[0], geometry.columns()),
        }
    }

    /// Canvas rows of this band that content covers.
    pub fn content(&self) -> Range<usize> {
        self.content.clone()
    }

    /// Takes the next row of the content.
    pub fn push(&mut self, row: &[S]) {
        self.pad_until(self.content.start);
        let patch = self.geometry.patch();
        let columns = self.geometry.content_columns();
        let line = self.y % patch;
        let size = CHANNELS * patch * patch;
        if self.geometry.channels_last() {
            let lines = Lines { length: CHANNELS * patch, size, line };
            lines.place(row, columns.start * CHANNELS, &mut self.samples);
        } else {
            let done = if columns.start.is_multiple_of(patch) {
                let patches = &mut self.samples[columns.start / patch * size..];
                self.converter.split_lines(row, patches, patch, line)
            } else {
                0
            };
            let (row, left) = (&row[done * CHANNELS..], columns.len() - done);
            let (first, rest) = self.planes[..left * CHANNELS].split_at_mut(left);
            let (second, third) = rest.split_at_mut(left);
            self.converter.split(row, [&mut *first, &mut *second, &mut *third]);
            for (channel, plane) in [first, second, third].into_iter().enumerate() {
                let lines = Lines { length: patch, size, line: channel * patch + line };
                lines.place(plane, columns.start + done, &mut self.samples);
            }
        }
        self.step();
    }

    /// Pads what is left of the band.
    pub fn finish(mut self) {
        self.pad_until(self.band.end);
    }

    fn pad_until(&mut self, end: usize) {
        while self.y < end {
            self.step();
        }
    }

    fn step(&mut self) {
        self.y += 1;
        if self.y.is_multiple_of(self.geometry.patch()) {
            self.flush();
        }
    }

    /// Normalises and writes the row of patches that ends above canvas row `y`.
    fn flush(&mut self) {
        let patch = self.geometry.patch();
        let (row, first) = (self.y / patch - 1, self.geometry.index(self.band.start / patch, 0));
        let size = CHANNELS * patch * patch;
        let run = size / self.places.len();
        let interleaved = self.places.len() == 1;
        let apart = self.part.streams_runs(run);
        let rows = self.geometry.overlap(row, self.content.clone());
        for column in 0..self.geometry.grid_width() {
            let columns = self.geometry.overlap(column, self.geometry.content_columns());
            let start = (self.geometry.index(row, column) - first) * self.values.len();
            let samples = self.samples[column * size..][..size].chunks(run);
            for (plane, samples) in samples.enumerate() {
                let channels = if interleaved { Channels::Interleaved } else { Channels::Plane(plane) };
                let places = &self.places[plane];
                let values = &mut self.values[places[0]..][..run];
                if !rows.is_empty() && !columns.is_empty() {
                    self.converter.convert(samples, channels, values);
                }
                if rows.len() < patch || columns.len() < patch {
                    pad(values, channels, patch, &rows, &columns, &self.fill);
                }
                if apart {
                    places.iter().for_each(|place| self.part.write(start + place, values));
                } else {
                    let copies = places.iter().skip(1);
                    copies.for_each(|&place| self.values.copy_within(places[0]..places[0] + run, place));
                }
            }
            if !apart {
                self.part.write(start, &self.values);
            }
        }
    }
}

/// Fills the values of one plane of a patch outside of the content's `rows` and `columns`.
pub fn pad<T: Copy>(
    values: &mut [T],
    channels: Channels,
    patch: usize,
    rows: &Range<usize>,
    columns: &Range<usize>,
    fill: &[T; CHANNELS],
) {
    for (i, value) in values.iter_mut().enumerate() {
        let (channel, pixel) = match channels {
            Channels::Plane(channel) => (channel, i),
            Channels::Interleaved => (i % CHANNELS, i / CHANNELS),
        };
        if !rows.contains(&(pixel / patch)) || !columns.contains(&(pixel % patch)) {
            *value = fill[channel];
        }
    }
}

/// One line of each patch of a row of patches.
struct Lines {
    /// Samples of a line, and of a patch.
    length: usize,
    size: usize,
    /// Number of the line within its patch.
    line: usize,
}

impl Lines {
    /// Copies a row that begins at sample `start` of the canvas into the patches.
    fn place<S: Copy>(&self, row: &[S], start: usize, patches: &mut [S]) {
        match self.length {
            14 => self.place_each::<14, S>(row, start, patches),
            16 => self.place_each::<16, S>(row, start, patches),
            42 => self.place_each::<42, S>(row, start, patches),
            48 => self.place_each::<48, S>(row, start, patches),
            _ => self.place_each::<0, S>(row, start, patches),
        }
    }

    /// [`Self::place`] where a line has `N` samples, or any number for 0: lines of known length are moved without a
    /// call.
    #[inline(always)]
    fn place_each<const N: usize, S: Copy>(&self, row: &[S], start: usize, patches: &mut [S]) {
        let length = if N > 0 { N } else { self.length };
        let (column, offset) = (start / length, start % length);
        let at = self.line * length;
        let mut patches = patches.chunks_exact_mut(self.size).skip(column);
        let (head, row) = row.split_at(if offset > 0 { row.len().min(length - offset) } else { 0 });
        if let Some(patch) = (!head.is_empty()).then(|| patches.next()).flatten() {
            patch[at + offset..][..head.len()].copy_from_slice(head);
        }
        let lines = row.chunks_exact(length);
        let tail = lines.remainder();
        for (line, patch) in lines.zip(&mut patches) {
            patch[at..at + length].copy_from_slice(line);
        }
        if let Some(patch) = (!tail.is_empty()).then(|| patches.next()).flatten() {
            patch[at..at + tail.len()].copy_from_slice(tail);
        }
    }
}
