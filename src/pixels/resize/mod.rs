//! Resampling of 8-bit pixels, bit for bit as Pillow, torchvision or ATen do it.

mod alpha;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod fixed;
mod float;
#[cfg(target_arch = "x86_64")]
mod float_avx2;
mod integer;
mod native;
mod nearest;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packed;
mod ring;
mod weights;

use std::ops::Range;

use super::execution::{Execution, Level};
use super::output;
use super::view::{MAX_PIXELS, View, check_size};
use super::{Arithmetic, Filter};
use crate::image::Image;
use crate::{Error, Result};
use integer::Passes;
use nearest::Nearest;

pub(crate) use float::Passes as FloatPasses;

/// Fewest rows of a band: fewer would repeat too much of the neighbours' first pass.
const MIN_BAND: usize = 32;

/// Resizes `image` to `width` x `height`. [`Arithmetic::AtenF32`] has no 8-bit result: see [`resize_f32`].
///
/// Pillow's arithmetic filters four channels premultiplied by alpha, except with [`Filter::Nearest`].
pub fn resize(
    image: &Image,
    width: u32,
    height: u32,
    filter: Filter,
    arithmetic: Arithmetic,
) -> Result<Image> {
    let samples = resize_view(&image.try_into()?, width, height, filter, arithmetic, Execution::default())?;
    Ok(Image { width, height, channels: image.channels, mode: image.mode, samples })
}

/// Resizes `image` to `width` x `height` by ATen's antialiased float32 interpolation (bilinear or bicubic).
/// The result has `height * width * channels` values on the scale of the levels; bicubic overshoots 0 and 255.
pub fn resize_f32(image: &Image, width: u32, height: u32, filter: Filter) -> Result<Vec<f32>> {
    resize_view_f32(&image.try_into()?, width, height, filter, Execution::default())
}

/// [`resize`] of borrowed pixels.
pub fn resize_view(
    view: &View,
    width: u32,
    height: u32,
    filter: Filter,
    arithmetic: Arithmetic,
    execution: Execution,
) -> Result<Vec<u8>> {
    let resampler = Resampler::new(view, width, height, filter, arithmetic, execution.level())?;
    let stride = width as usize * view.channels();
    let collect =
        |view: &View| collect(height, stride, execution, |band, sink| resampler.rows(view, band, sink));
    let blends = matches!(resampler, Resampler::Passes(_)) && matches!(arithmetic, Arithmetic::Pillow(_));
    if view.channels() != 4 || !blends {
        return collect(view);
    }
    let premultiplied = alpha::premultiply(view.samples());
    let mut out = collect(&view.with_samples(&premultiplied))?;
    alpha::unpremultiply(&mut out);
    Ok(out)
}

/// [`resize_f32`] of borrowed pixels.
pub fn resize_view_f32(
    view: &View,
    width: u32,
    height: u32,
    filter: Filter,
    execution: Execution,
) -> Result<Vec<f32>> {
    let passes = FloatPasses::new(view, width, height, filter)?;
    let stride = width as usize * view.channels();
    collect(height, stride, execution, |band, sink| passes.rows(view, band, execution.level(), sink))
}

/// The method that gives 8-bit rows.
#[derive(Clone, Debug)]
pub(crate) enum Resampler {
    /// The size stays.
    Copy,
    /// Each sample is one of the source.
    Nearest(Nearest),
    /// Weighted sums along one or both axes.
    Passes(Box<Passes>),
}

impl Resampler {
    /// The resampler from `view`'s size to `width` x `height`.
    pub fn new(
        view: &View,
        width: u32,
        height: u32,
        filter: Filter,
        arithmetic: Arithmetic,
        level: Level,
    ) -> Result<Self> {
        check_size("target", width, height)?;
        let (source, target) = ((view.width(), view.height()), (width as usize, height as usize));
        Ok(match (arithmetic, filter) {
            (Arithmetic::AtenF32, _) => {
                return Err(Error::argument(
                    "ATen's float32 arithmetic has no 8-bit result: ask for float32",
                ));
            }
            _ if source == target => Self::Copy,
            (Arithmetic::Pillow(_), Filter::Nearest) => Self::Nearest(Nearest::pillow(source, target)),
            (Arithmetic::TorchvisionU8, Filter::Nearest) => Self::Nearest(Nearest::aten(source, target)),
            (Arithmetic::Pillow(order), _) => {
                Self::Passes(Box::new(Passes::pillow(source, target, filter, order)?.with_level(level)))
            }
            (Arithmetic::TorchvisionU8, Filter::Box | Filter::Hamming) => {
                return Err(Error::argument(format!(
                    "torchvision's arithmetic is offered for nearest, bilinear, bicubic and lanczos, not for {}",
                    filter.name()
                )));
            }
            (Arithmetic::TorchvisionU8, _) => {
                Self::Passes(Box::new(Passes::torchvision(source, target, filter)?.with_level(level)))
            }
        })
    }

    /// Hands each output row of `band` to `sink`, in order.
    pub fn rows(&self, view: &View, band: Range<usize>, sink: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Copy => band.for_each(|y| sink(view.row(y))),
            Self::Nearest(nearest) => nearest.rows(view, band, sink),
            Self::Passes(passes) => passes.rows(view, band, sink),
        }
    }
}

/// Refuses a first pass whose result, held between the passes, would be too large.
fn check_intermediate(width: usize, height: usize) -> Result<()> {
    if width as u64 * height as u64 > MAX_PIXELS {
        return Err(Error::argument(format!(
            "the image between the two resize passes would be {width}x{height}: the most allowed is {MAX_PIXELS} pixels"
        )));
    }
    Ok(())
}

/// Rows `0..height` in at most `count` bands of nearly equal size, each a multiple of `unit` rows but the last.
pub(crate) fn bands(height: usize, unit: usize, count: usize) -> Vec<Range<usize>> {
    let rows = height.div_ceil(count).max(MIN_BAND).next_multiple_of(unit);
    (0..height).step_by(rows).map(|y| y..height.min(y + rows)).collect()
}

/// All rows of a result, from a function that hands the rows of a band to its sink.
fn collect<T: bytemuck::Pod + Send>(
    height: u32,
    stride: usize,
    execution: Execution,
    rows: impl Fn(Range<usize>, &mut dyn FnMut(&[T])) + Sync,
) -> Result<Vec<T>> {
    let bands = bands(height as usize, 1, execution.bands());
    let lengths: Vec<usize> = bands.iter().map(|band| band.len() * stride).collect();
    output::build(&lengths, |i, part| rows(bands[i].clone(), &mut |row| part.append(row)))
}

#[cfg(test)]
mod tests {
    use super::fixed::Axis;
    use super::*;
    use crate::pixels::PassOrder;

    /// Noise of a linear congruential generator, in a buffer without room behind it.
    fn noise(count: usize, seed: u32) -> Box<[u8]> {
        let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        std::iter::successors(Some(seed), step).skip(1).take(count).map(|state| (state >> 24) as u8).collect()
    }

    /// Sizes of source and target that meet every order of passes and every remainder of a step.
    fn sizes() -> impl Iterator<Item = [u32; 4]> {
        let odd = [1, 2, 3, 5, 15, 16, 17, 31, 63, 65, 130];
        let near = (0..40).map(move |i| [odd[i % 11], odd[i * 3 % 11], odd[i * 7 % 11] + 1, odd[i * 5 % 11]]);
        near.chain([
            [300, 7, 3, 200],
            [7, 300, 200, 3],
            [64, 48, 64, 17],
            [64, 48, 17, 48],
            [257, 129, 128, 64],
        ])
    }

    #[test]
    fn every_level_gives_the_same_levels() {
        let arithmetics = [Arithmetic::Pillow(PassOrder::Pillow13), Arithmetic::TorchvisionU8];
        for (seed, [width, height, to_width, to_height]) in sizes().enumerate() {
            for channels in [1, 3, 4] {
                let samples = noise((width * height) as usize * usize::from(channels), seed as u32);
                let view = View::new(&samples, width, height, channels).unwrap();
                for (filter, arithmetic) in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos]
                    .into_iter()
                    .zip(arithmetics.into_iter().cycle())
                {
                    let at = |level: Level, bands: usize| {
                        let how = Execution::default().with_level(level).with_bands(bands);
                        resize_view(&view, to_width, to_height, filter, arithmetic, how).unwrap()
                    };
                    let wanted = at(Level::Native, 1);
                    for level in Level::available() {
                        assert_eq!(
                            at(level, 1),
                            wanted,
                            "{width}x{height} {to_width}x{to_height} {level:?} {filter:?}"
                        );
                        assert_eq!(at(level, 3), wanted);
                    }
                }
            }
        }
    }

    #[test]
    fn every_level_gives_the_same_values() {
        for (seed, [width, height, to_width, to_height]) in sizes().enumerate() {
            let samples = noise((width * height * 3) as usize, seed as u32);
            let view = View::new(&samples, width, height, 3).unwrap();
            let at = |level: Level| {
                let how = Execution::default().with_level(level);
                resize_view_f32(&view, to_width, to_height, Filter::Bicubic, how).unwrap()
            };
            let wanted = at(Level::Native);
            assert!(Level::available().all(|level| at(level) == wanted));
        }
    }

    #[test]
    fn every_axis_suits_every_kernel() {
        // Otherwise the plain path would take over unseen.
        for filter in [Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos] {
            for (input, output) in [(1, 1000), (1000, 1), (3, 2), (640, 333), (2, 5), (100, 99)] {
                for axis in [Axis::pillow(input, output, filter), Axis::torchvision(input, output, filter)] {
                    let axis = axis.unwrap();
                    #[cfg(target_arch = "x86_64")]
                    for known in [
                        packed::Weights::new::<avx2::Avx2>(&axis).is_some(),
                        packed::Weights::new::<avx512::Avx512>(&axis).is_some(),
                    ] {
                        assert!(known, "{filter:?} {input} to {output}");
                    }
                    #[cfg(target_arch = "aarch64")]
                    assert!(packed::Weights::new::<neon::Neon>(&axis).is_some());
                    assert_eq!(axis.output(), output);
                }
            }
        }
    }
}
