//! The whole way: resize, place on the canvas, normalise, lay out patches, one row at a time.

use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};

use super::element::Element;
use super::execution::Execution;
use super::layout::{CHANNELS, Geometry};
use super::levels::Levels;
use super::output;
use super::patchify::{Convert, Writer};
use super::resize::{FloatPasses, Resampler, bands};
use super::values::{Affine, Keep, Table};
use super::view::View;
use super::{Arithmetic, PatchLayout, PixelValues, Recipe};
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
    let geometry = checked(view, recipe)?;
    let job = Job { geometry: &geometry, fill: recipe.normalize.fill.map(T::round), execution };
    let level = execution.level();
    let samples = if recipe.arithmetic == Arithmetic::AtenF32 && !geometry.content_rows().is_empty() {
        let (width, height) = (recipe.canvas.content_width, recipe.canvas.content_height);
        let passes = FloatPasses::new(view, width, height, recipe.filter)?;
        job.run(&Affine::new(&recipe.normalize), |band, sink| passes.rows(view, band, level, sink))?
    } else {
        job.run_levels(view, recipe, &Table::new(&recipe.normalize, level))?
    };
    Ok(PixelValues { rows: geometry.patches(), columns: geometry.columns(), samples: T::wrap(samples) })
}

/// The levels of [`prepare_view`]'s values, under the same bounds, for a recipe that has an
/// [`Expansion`](super::Expansion).
pub fn prepare_levels_view(view: &View, recipe: &Recipe, execution: Execution) -> Result<Levels> {
    if recipe.arithmetic == Arithmetic::AtenF32 {
        return Err(Error::internal("pixels that are resized in float32 have no levels"));
    }
    checked(view, recipe)?;
    let geometry = Geometry::new(recipe.canvas, PatchLayout { frames: 1, ..recipe.layout })?;
    let job = Job { geometry: &geometry, fill: [0; CHANNELS], execution };
    let levels = job.run_levels(view, recipe, &Keep::new(execution.level()))?;
    Ok(Levels { edges: geometry.edges(), levels })
}

/// The geometry of a recipe whose patch matrix is within bounds.
fn checked(view: &View, recipe: &Recipe) -> Result<Geometry> {
    if view.channels() != CHANNELS {
        return Err(Error::argument(format!("patches need 3 channels (RGB), not {}", view.channels())));
    }
    let geometry = Geometry::new(recipe.canvas, recipe.layout)?;
    let (rows, columns) = (geometry.patches(), geometry.columns());
    let bytes = rows as u64 * columns as u64 * recipe.dtype.size() as u64;
    if bytes > MAX_BYTES {
        return Err(Error::argument(format!(
            "a patch matrix of {rows}x{columns} {} values has {bytes} bytes: the most allowed is {MAX_BYTES}",
            recipe.dtype.name()
        )));
    }
    Ok(geometry)
}

/// What the parts of one call share.
struct Job<'a, T> {
    geometry: &'a Geometry,
    fill: [T; CHANNELS],
    execution: Execution,
}

impl<T: Pod + Send + Sync> Job<'_, T> {
    /// The patch matrix from levels, resized as the recipe says.
    fn run_levels(&self, view: &View, recipe: &Recipe, converter: &impl Convert<u8, T>) -> Result<Vec<T>> {
        if self.geometry.content_rows().is_empty() {
            return self.run(converter, |_, _| ());
        }
        let Recipe { filter, arithmetic, .. } = *recipe;
        let (width, height) = (recipe.canvas.content_width, recipe.canvas.content_height);
        let resampler = Resampler::new(view, width, height, filter, arithmetic, self.execution.level())?;
        self.run(converter, |band, sink| resampler.rows(view, band, sink))
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pixels::{Canvas, Expansion, Filter, Level, Normalize, PatchOrder, SampleOrder, Samples};

    fn normalize() -> Normalize {
        // The value of padding is that of no level.
        Normalize::pil(1.0 / 255.0, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]).with_fill([-9.0, 0.123, 77.0])
    }

    /// Noise of a linear congruential generator.
    fn noise(count: usize) -> Vec<u8> {
        let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        std::iter::successors(Some(7), step).take(count).map(|state| (state >> 24) as u8).collect()
    }

    fn content(height: u32, width: u32, content_height: u32, content_width: u32) -> Canvas {
        Canvas {
            height,
            width,
            content_height,
            content_width,
            top: (height - content_height) / 2,
            left: (width - content_width) / 16 * 8,
        }
    }

    /// Every element by its definition: one value of the resized image, or padding.
    fn wanted(view: &View, recipe: &Recipe) -> Vec<f32> {
        let Canvas { height, width, content_height, content_width, top, left } = recipe.canvas;
        let plain = Execution::default().with_level(Level::Native);
        let (filter, arithmetic) = (recipe.filter, recipe.arithmetic);
        let resized =
            crate::pixels::resize_view(view, content_width, content_height, filter, arithmetic, plain)
                .unwrap();
        let value = |y: u32, x: u32, channel: usize| {
            let (inner_y, inner_x) = (y.wrapping_sub(top), x.wrapping_sub(left));
            if inner_y >= content_height || inner_x >= content_width {
                return recipe.normalize.fill[channel];
            }
            let level = resized[(inner_y * content_width + inner_x) as usize * CHANNELS + channel];
            recipe.normalize.table[channel][usize::from(level)]
        };
        let PatchLayout { patch, frames, order, samples } = recipe.layout;
        let merge = if let PatchOrder::Blocks(merge) = order { merge } else { 1 };
        let mut out = Vec::new();
        for block_y in 0..height / patch / merge {
            for block_x in 0..width / patch / merge {
                for (dy, dx) in (0..merge).flat_map(|dy| (0..merge).map(move |dx| (dy, dx))) {
                    let (y, x) = ((block_y * merge + dy) * patch, (block_x * merge + dx) * patch);
                    let mut plane = |channel| {
                        for (dy, dx) in (0..patch).flat_map(|dy| (0..patch).map(move |dx| (dy, dx))) {
                            out.push(value(y + dy, x + dx, channel));
                        }
                    };
                    match samples {
                        SampleOrder::ChannelFrame => {
                            (0..CHANNELS).for_each(|channel| (0..frames).for_each(|_| plane(channel)));
                        }
                        SampleOrder::FrameChannel => {
                            (0..frames).for_each(|_| (0..CHANNELS).for_each(&mut plane))
                        }
                        SampleOrder::ChannelsLast => {
                            for (dy, dx) in (0..frames)
                                .flat_map(|_| (0..patch).flat_map(|dy| (0..patch).map(move |dx| (dy, dx))))
                            {
                                out.extend([0, 1, 2].map(|channel| value(y + dy, x + dx, channel)));
                            }
                        }
                    }
                }
            }
        }
        out
    }

    fn twice(samples: &Samples) -> Samples {
        match samples {
            Samples::F32(samples) => Samples::F32(samples.repeat(2)),
            Samples::Bf16(samples) => Samples::Bf16(samples.repeat(2)),
            Samples::F16(samples) => Samples::F16(samples.repeat(2)),
        }
    }

    #[test]
    fn every_level_lays_out_the_same_values() {
        let samples = noise(3 * 90 * 70);
        let view = View::new(&samples, 90, 70, 3).unwrap();
        // The last is large enough for stores that bypass the cache.
        let cases = [
            (7, 1, 2, SampleOrder::ChannelFrame, content(28, 56, 28, 40)),
            (14, 2, 2, SampleOrder::FrameChannel, content(56, 84, 41, 80)),
            (16, 2, 2, SampleOrder::ChannelFrame, content(64, 96, 64, 93)),
            (16, 1, 1, SampleOrder::FrameChannel, content(64, 160, 64, 128)),
            (16, 1, 1, SampleOrder::ChannelsLast, content(64, 96, 30, 90)),
            (40, 2, 1, SampleOrder::ChannelsLast, content(80, 120, 77, 99)),
            (16, 2, 2, SampleOrder::ChannelFrame, content(448, 800, 441, 790)),
            (14, 2, 1, SampleOrder::FrameChannel, content(448, 812, 448, 809)),
        ];
        for (patch, frames, merge, samples, canvas) in cases {
            let order = if merge > 1 { PatchOrder::Blocks(merge) } else { PatchOrder::Raster };
            let mut recipe = Recipe {
                canvas,
                filter: Filter::Bicubic,
                arithmetic: Arithmetic::TorchvisionU8,
                normalize: normalize(),
                layout: PatchLayout { patch, frames, order, samples },
                dtype: Dtype::F32,
            };
            let values = wanted(&view, &recipe);
            for wanted in [
                Samples::F16(values.iter().map(|&value| f16::from_f32(value)).collect()),
                Samples::Bf16(values.iter().map(|&value| bf16::from_f32(value)).collect()),
                Samples::F32(values),
            ] {
                recipe.dtype = match wanted {
                    Samples::F32(_) => Dtype::F32,
                    Samples::Bf16(_) => Dtype::Bf16,
                    Samples::F16(_) => Dtype::F16,
                };
                for level in Level::available() {
                    for bands in [1, 3] {
                        let how = Execution::default().with_level(level).with_bands(bands);
                        let what = format!("patch {patch} {:?} {level:?} {bands} bands", recipe.dtype);
                        let got = prepare_view(&view, &recipe, how).unwrap().samples;
                        assert!(got == wanted, "{what}");
                        let levels = prepare_levels_view(&view, &recipe, how).unwrap();
                        let expansion = Expansion::of(&recipe).unwrap();
                        assert_eq!(levels.bytes(), expansion.bytes(levels.rows()));
                        let got = expansion.expand(&[&levels, &levels]).unwrap();
                        assert!(got.samples == twice(&wanted), "{what}, from levels");
                        assert_eq!((got.rows, got.columns), (2 * levels.rows(), expansion.columns()));
                    }
                }
            }
        }
    }
}
