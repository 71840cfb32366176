//! Qwen's image processor: smart resize by area, then patches in merge blocks.

use super::config::VisionConfig;
use crate::checkpoint::Node;
use crate::family::parts::processor::Common;
use crate::family::{Backend, Grid, Options, Plan, parts};
use crate::image::Image;
use crate::pixels::{self, PatchLayout, PatchOrder, PixelValues, Recipe, SampleOrder};
use crate::{Dtype, Error, Result};

/// Longer side over shorter side that transformers accepts.
const MAX_ASPECT_RATIO: f64 = 200.0;
/// transformers' class defaults, in pixels.
const DEFAULT_MIN_PIXELS: u32 = 3136;
const DEFAULT_MAX_PIXELS: u32 = 1_003_520;
/// Pixels of a resized image that a configuration may allow.
const MAX_CANVAS_PIXELS: u32 = 1 << 27;

/// The processor of one checkpoint.
pub struct Processor {
    patch: u32,
    merge: u32,
    frames: u32,
    min_pixels: u32,
    max_pixels: u32,
    common: Common,
}

impl Processor {
    /// Reads the image processor's object; its geometry must be the tower's.
    pub fn read(node: Node<'_>, vision: &VisionConfig, options: Options) -> Result<Self> {
        let backend = options.backend.unwrap_or(Backend::Torchvision);
        for (key, tower, default) in [
            ("patch_size", vision.patch, 14),
            ("merge_size", vision.merge, 2),
            ("temporal_patch_size", vision.frames, 2),
        ] {
            let seen = node.u32_or(key, default, 1..=1024)?;
            if seen != tower {
                return Err(node.fault(format!("has {key} {seen}, but the tower of config.json has {tower}")));
            }
        }
        let area = 1..=MAX_CANVAS_PIXELS;
        let (mut min_pixels, mut max_pixels) = (DEFAULT_MIN_PIXELS, DEFAULT_MAX_PIXELS);
        if node.get("size").is_some() {
            let size = node.object("size")?;
            min_pixels = size.u32("shortest_edge", area.clone())?;
            max_pixels = size.u32("longest_edge", area.clone())?;
        }
        min_pixels = node.u32_or("min_pixels", min_pixels, area.clone())?;
        max_pixels = node.u32_or("max_pixels", max_pixels, area)?;
        if min_pixels > max_pixels {
            return Err(node.fault(format!("allows at least {min_pixels} but at most {max_pixels} pixels")));
        }
        Ok(Self {
            patch: vision.patch,
            merge: vision.merge,
            frames: vision.frames,
            min_pixels,
            max_pixels,
            common: Common::read(node, backend)?,
        })
    }

    /// Grid, tokens and canvas of an image.
    pub fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let factor = self.patch * self.merge;
        let (height, width) = smart_resize(height, width, factor, self.min_pixels, self.max_pixels)?;
        let grid = Grid::still(height / self.patch, width / self.patch);
        let tokens = parts::patch_grid::merged_tokens(grid, self.merge)?;
        Ok(Plan { grid, tokens, canvas: parts::stretched(height, width) })
    }

    /// Resizes, normalises and lays out patches.
    pub fn preprocess(&self, image: &Image, dtype: Dtype) -> Result<PixelValues> {
        let recipe = Recipe {
            canvas: self.plan(image.width, image.height)?.canvas,
            filter: self.common.filter,
            arithmetic: self.common.arithmetic,
            normalize: self.common.normalize.clone(),
            layout: PatchLayout {
                patch: self.patch,
                frames: self.frames,
                order: PatchOrder::Blocks(self.merge),
                samples: SampleOrder::ChannelFrame,
            },
            dtype,
        };
        pixels::prepare(image, &recipe)
    }
}

/// Height and width as multiples of `factor`, near the image's own, with an area between the two bounds in pixels.
///
/// transformers' arithmetic in double precision, rounding half to even. A side below half of `factor` rounds to
/// zero and is then enlarged by the lower bound; engines that round it up to `factor` first get other grids.
pub fn smart_resize(
    height: u32,
    width: u32,
    factor: u32,
    min_pixels: u32,
    max_pixels: u32,
) -> Result<(u32, u32)> {
    let (h, w, f) = (f64::from(height), f64::from(width), f64::from(factor));
    let ratio = h.max(w) / h.min(w);
    if !(ratio <= MAX_ASPECT_RATIO) {
        return Err(Error::media(format!(
            "an image of {width}x{height} has an aspect ratio of {ratio:.1}, above the {MAX_ASPECT_RATIO} that this \
             model accepts: crop it"
        )));
    }
    let near = |side: f64| (side / f).round_ties_even() * f;
    let (mut to_h, mut to_w) = (near(h), near(w));
    if to_h * to_w > f64::from(max_pixels) {
        let shrink = (h * w / f64::from(max_pixels)).sqrt();
        let below = |side: f64| f.max((side / shrink / f).floor() * f);
        (to_h, to_w) = (below(h), below(w));
    } else if to_h * to_w < f64::from(min_pixels) {
        let grow = (f64::from(min_pixels) / (h * w)).sqrt();
        let above = |side: f64| (side * grow / f).ceil() * f;
        (to_h, to_w) = (above(h), above(w));
    }
    if to_h < f || to_w < f || to_h * to_w > 4.0 * f64::from(MAX_CANVAS_PIXELS) {
        return Err(Error::media(format!(
            "an image of {width}x{height} resizes to {to_w}x{to_h}, which is not a patch grid this library runs"
        )));
    }
    Ok((to_h as u32, to_w as u32))
}
