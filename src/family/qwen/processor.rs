//! Qwen's image processor: smart resize by area, then patches in merge blocks.

use super::vit::Vit;
use crate::checkpoint::Node;
use crate::family::parts::processor::{BICUBIC_CLIP, Common, check_geometry};
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan, parts};
use crate::image::DecodePolicy;
use crate::pixels::{Canvas, PatchLayout, PatchOrder, Recipe, SampleOrder, SmartRule, smart_resize};
use crate::{Dtype, Result};

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
    pub fn read(node: Node<'_>, vit: &Vit, options: Options) -> Result<Self> {
        let backend = options.backend.unwrap_or(Backend::Torchvision);
        check_geometry(
            node,
            &[
                ("patch_size", vit.patch, Some(14)),
                ("merge_size", vit.merge, Some(2)),
                ("temporal_patch_size", vit.frames, Some(2)),
            ],
        )?;
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
            patch: vit.patch,
            merge: vit.merge,
            frames: vit.frames,
            min_pixels,
            max_pixels,
            common: Common::read(node, backend, &BICUBIC_CLIP)?,
        })
    }
}

impl ImageProcessor for Processor {
    fn decode_policy(&self) -> DecodePolicy {
        parts::policy::oriented_over_white()
    }

    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let factor = self.patch * self.merge;
        let (min, max) = (self.min_pixels.into(), self.max_pixels.into());
        let (height, width) = smart_resize(height, width, factor, min, max, SmartRule::Transformers)?;
        let grid = Grid::still(height / self.patch, width / self.patch);
        let tokens = parts::patch_grid::merged_tokens(grid, self.merge)?;
        Ok(Plan { grid, tokens, canvas: parts::stretched(height, width) })
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
