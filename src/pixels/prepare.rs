//! The whole way: resize, place on the canvas, normalise, lay out patches, one row at a time.

use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::execution::Execution;
use super::layout::{CHANNELS, Geometry};
use super::output;
use super::patchify::{Convert, Writer};
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
        job.run(&Table::new(&recipe.normalize, level), |_, _| ())?
    } else if recipe.arithmetic == Arithmetic::AtenF32 {
        let passes = FloatPasses::new(view, width, height, recipe.filter)?;
        job.run(&Affine::new(&recipe.normalize), |band, sink| passes.rows(view, band, level, sink))?
    } else {
        let resampler = Resampler::new(view, width, height, recipe.filter, recipe.arithmetic, level)?;
        job.run(&Table::new(&recipe.normalize, level), |band, sink| resampler.rows(view, band, sink))?
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
    /// The patch matrix from `rows`, which hands the resized rows of a band of the content to its sink.
    fn run<S: Copy + Default>(
        &self,
        converter: &impl Convert<S, T>,
        rows: impl Fn(Range<usize>, &mut dyn FnMut(&[S])) + Sync,
    ) -> Result<Vec<T>> {
        let geometry = self.geometry;
        let top = geometry.content_rows().start;
        let bands = bands(geometry.height(), geometry.unit(), self.execution.bands());
        let lengths: Vec<usize> = bands.iter().map(|band| geometry.elements(band.len())).collect();
        output::build(&lengths, |i, part| {
            let mut writer = Writer::new(geometry, converter, self.fill, bands[i].clone(), part);
            let content = writer.content();
            if !content.is_empty() {
                rows(content.start - top..content.end - top, &mut |row| writer.push(row));
            }
            writer.finish();
        })
    }
}
