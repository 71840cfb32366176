//! GLM's image processor: a canvas of whole merge blocks within a token budget, the image placed top left.

use super::config::VisionConfig;
use crate::checkpoint::Node;
use crate::family::parts::processor::{BICUBIC_CLIP, Common, check_geometry};
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan, parts};
use crate::image::DecodePolicy;
use crate::pixels::{Canvas, PatchLayout, PatchOrder, Recipe, SampleOrder};
use crate::{Dtype, Error, Result};

/// Merged tokens of one image that a configuration may allow.
const MAX_TOKENS: u32 = 1 << 20;

/// The processor of one checkpoint.
pub struct Processor {
    patch: u32,
    merge: u32,
    frames: u32,
    /// Pixels that the sides of the canvas are multiples of.
    factor: u32,
    /// Least and most pixels of the canvas, counted over all frames.
    min_volume: u64,
    max_volume: u64,
    common: Common,
}

impl Processor {
    /// Reads the image processor's object; its geometry must be the tower's.
    pub fn read(node: Node<'_>, vision: &VisionConfig, options: Options) -> Result<Self> {
        let backend = options.backend.unwrap_or(Backend::Torchvision);
        check_geometry(
            node,
            &[
                ("patch_size", vision.patch, Some(14)),
                ("merge_size", vision.merge, Some(2)),
                ("temporal_patch_size", vision.frames, Some(2)),
            ],
        )?;
        let expand = node.u32_or("patch_expand_factor", 1, 1..=16)?;
        let min_tokens = node.u32_or("min_image_tokens", 16, 1..=MAX_TOKENS)?;
        let max_tokens = node.u32_or("max_image_tokens", 8000, 1..=MAX_TOKENS)?;
        if min_tokens > max_tokens {
            return Err(node.fault(format!("allows at least {min_tokens} but at most {max_tokens} tokens")));
        }
        let factor = vision.patch * vision.merge * expand;
        let unit = u64::from(vision.frames) * u64::from(factor).pow(2);
        Ok(Self {
            patch: vision.patch,
            merge: vision.merge,
            frames: vision.frames,
            factor,
            min_volume: u64::from(min_tokens) * unit,
            max_volume: u64::from(max_tokens) * unit,
            common: Common::read(node, backend, &BICUBIC_CLIP)?,
        })
    }

    /// Height and width of the canvas, in transformers' double-precision arithmetic.
    fn canvas(&self, height: u32, width: u32) -> Result<(u32, u32)> {
        let frames = u64::from(self.frames);
        let factor = u64::from(self.factor);
        let align = |side: u64| side.div_ceil(factor) * factor;
        let (h, w) = (u64::from(height), u64::from(width));
        let (mut to_h, mut to_w) = (align(h), align(w));
        if frames * to_h * to_w < self.min_volume {
            let grow = (self.min_volume as f64 / (frames * h * w) as f64).sqrt();
            let enlarged = |side: u64| align(((side as f64 * grow).ceil() as u64).max(1));
            (to_h, to_w) = (enlarged(h), enlarged(w));
        }
        if frames * to_h * to_w > self.max_volume {
            (to_h, to_w) = self.largest_within(h, w, align)?;
        }
        match (u32::try_from(to_h), u32::try_from(to_w)) {
            (Ok(to_h), Ok(to_w)) => Ok((to_h, to_w)),
            _ => {
                Err(Error::media(format!("an image of {width}x{height} has no canvas this library can hold")))
            }
        }
    }

    /// The canvas of the tallest content of the image's aspect ratio whose volume is within the budget, by bisection.
    fn largest_within(&self, h: u64, w: u64, align: impl Fn(u64) -> u64) -> Result<(u64, u64)> {
        let (frames, factor) = (u64::from(self.frames), u64::from(self.factor));
        if self.max_volume < frames * factor * factor {
            return Err(Error::checkpoint("max_image_tokens is too small for one block of patches"));
        }
        let mut best = (factor, factor);
        let (mut low, mut high) = (1, h);
        while low <= high {
            let content = low.midpoint(high);
            let content_width = ((w as f64 * content as f64 / h as f64).floor() as u64).max(1);
            let candidate = (align(content), align(content_width));
            if frames * candidate.0 * candidate.1 <= self.max_volume {
                best = candidate;
                low = content + 1;
            } else {
                high = content - 1;
            }
        }
        Ok(best)
    }
}

impl ImageProcessor for Processor {
    fn decode_policy(&self) -> DecodePolicy {
        parts::policy::oriented_over_white()
    }

    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (canvas_height, canvas_width) = self.canvas(height, width)?;
        let (h, w) = (f64::from(height), f64::from(width));
        let mut scale = (f64::from(canvas_height) / h).min(f64::from(canvas_width) / w);
        // Only images below the least volume are enlarged.
        if u64::from(self.frames) * u64::from(height) * u64::from(width) >= self.min_volume {
            scale = scale.min(1.0);
        }
        let content = |side: f64, bound: u32| ((side * scale).floor() as u32).min(bound).max(1);
        let canvas = Canvas {
            height: canvas_height,
            width: canvas_width,
            content_height: content(h, canvas_height),
            content_width: content(w, canvas_width),
            top: 0,
            left: 0,
        };
        let grid = Grid::still(canvas_height / self.patch, canvas_width / self.patch);
        Ok(Plan { grid, tokens: parts::patch_grid::merged_tokens(grid, self.merge)?, canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        let layout = PatchLayout {
            patch: self.patch,
            frames: self.frames,
            order: PatchOrder::Blocks(self.merge),
            samples: SampleOrder::ChannelFrame,
        };
        self.common.recipe(canvas, layout, dtype)
    }
}
