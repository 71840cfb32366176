//! The whole way: resize, place on the canvas, normalise, lay out patches, one row at a time.

use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::execution::Execution;
use super::output;
use super::patchify::{CHANNELS, Content, Geometry, Line};
use super::resize::{FloatPasses, Resampler, bands};
use super::values::{Affine, Table};
use super::view::View;
use super::{Arithmetic, PixelValues, Recipe};
use crate::{Dtype, Error, Result};

/// Most bytes of one patch matrix.
pub const MAX_BYTES: u64 = 4 << 30;

/// [`super::prepare`] of borrowed pixels, which must have three channels.
pub fn prepare_view(view: &View, recipe: &Recipe, execution: Execution) -> Result<PixelValues> {
    match recipe.dtype {
        Dtype::F32 => prepare_as::<f32>(view, recipe, execution),
        Dtype::Bf16 => prepare_as::<bf16>(view, recipe, execution),
        Dtype::F16 => prepare_as::<f16>(view, recipe, execution),
    }
}

fn prepare_as<T: Element>(view: &View, recipe: &Recipe, execution: Execution) -> Result<PixelValues> {
    if view.channels() != CHANNELS {
        return Err(Error::argument(format!("patches need 3 channels (RGB), not {}", view.channels())));
    }
    let geometry = Geometry::new(recipe.canvas, recipe.layout)?;
    let (rows, columns) = (geometry.patches(), geometry.columns());
    let bytes = rows as u64 * columns as u64 * size_of::<T>() as u64;
    if bytes > MAX_BYTES {
        return Err(Error::argument(format!(
            "a patch matrix of {rows}x{columns} {} values has {bytes} bytes: the most allowed is {MAX_BYTES}",
            recipe.dtype.name()
        )));
    }
    let job = Job { geometry: &geometry, fill: recipe.normalize.fill.map(T::round), execution };
    let level = execution.level();
    let (width, height) = (recipe.canvas.content_width, recipe.canvas.content_height);
    let samples = if geometry.content_rows().is_empty() {
        job.run(|_, _: &mut dyn FnMut(&[u8])| (), |_, _| ())?
    } else if recipe.arithmetic == Arithmetic::AtenF32 {
        let passes = FloatPasses::new(view, width, height, recipe.filter)?;
        let affine = Affine::new(&recipe.normalize);
        job.run(
            |band, sink| passes.rows(view, band, level, sink),
            |row, content| affine.convert(row, content),
        )?
    } else {
        let resampler = Resampler::new(view, width, height, recipe.filter, recipe.arithmetic, level)?;
        let table = Table::new(&recipe.normalize, level);
        job.run(|band, sink| resampler.rows(view, band, sink), |row, content| table.convert(row, content))?
    };
    Ok(PixelValues { rows, columns, samples: T::wrap(samples) })
}

/// What the parts of one call share.
struct Job<'a, T> {
    geometry: &'a Geometry,
    fill: [T; CHANNELS],
    execution: Execution,
}

impl<T: Element> Job<'_, T> {
    /// The patch matrix from `rows`, which hands the resized rows of a band of the content to its sink, and
    /// `convert`, which turns one of them into the tower's values.
    fn run<S>(
        &self,
        rows: impl Fn(Range<usize>, &mut dyn FnMut(&[S])) + Sync,
        convert: impl Fn(&[S], Content<T>) + Sync,
    ) -> Result<Vec<T>> {
        let geometry = self.geometry;
        let padding = Line::filled(geometry, self.fill);
        let content = geometry.content_rows();
        let bands = bands(geometry.height(), geometry.unit(), self.execution.bands());
        let lengths: Vec<usize> = bands.iter().map(|band| geometry.elements(band.len())).collect();
        output::build(&lengths, |i, part| {
            let band = &bands[i];
            let (start, end) =
                (content.start.clamp(band.start, band.end), content.end.clamp(band.start, band.end));
            (band.start..start)
                .chain(end..band.end)
                .for_each(|y| geometry.scatter(part, band.start, y, &padding));
            if start < end {
                let (mut y, mut line) = (start, padding.clone());
                rows(start - content.start..end - content.start, &mut |row| {
                    convert(row, line.content(geometry.content_columns()));
                    geometry.scatter(part, band.start, y, &line);
                    y += 1;
                });
            }
        })
    }
}
