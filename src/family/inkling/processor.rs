//! Inkling's image processor: an optional scaling, then patches with at least one column of padding.

use super::config::{FRAMES, PATCH};
use crate::checkpoint::Node;
use crate::family::parts::processor::{BICUBIC_CLIP, Common, Defaults};
use crate::family::parts::sizes;
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan};
use crate::pixels::{
    Canvas, Filter, Normalize, PassOrder, PatchLayout, PatchOrder, Recipe, SampleOrder, scaled_dimensions,
};
use crate::{Dtype, Error, Result};

/// Factor of the scaling that a configuration or caller may ask for.
const FACTOR: std::ops::RangeInclusive<f64> = 1.0 / 1024.0..=1024.0;
/// Longest side that the scaling may be told to stop at.
const MAX_CAP: u32 = 1 << 18;
/// Level that padding has; there is none below 0 in an image.
const PAD: f32 = -1.0;

/// SGLang's arithmetic.
const DEFAULTS: Defaults = Defaults {
    filter: Filter::Lanczos,
    pillow: |_, mean, std| {
        let value = |channel: usize| (PAD / 255.0 - mean[channel] as f32) / std[channel] as f32;
        Normalize::multiplied(mean, std).with_fill([0, 1, 2].map(value)).rounded_to_bf16()
    },
    ..BICUBIC_CLIP
};

/// The processor of one checkpoint.
pub struct Processor {
    /// Factor of the long side, if the image is scaled.
    factor: Option<f64>,
    /// Where growth of the long side stops.
    cap: Option<u32>,
    common: Common,
}

impl Processor {
    /// Reads the image processor's object.
    pub fn read(node: Node<'_>, options: Options) -> Result<Self> {
        let backend = options.backend.unwrap_or(Backend::Pillow(PassOrder::HorizontalFirst));
        let mut common = Common::read(node, backend, &DEFAULTS)?;
        node.f64_or("rescale_factor", 1.0 / 255.0, 0.003_921_568..=0.003_921_569)?;
        if backend == Backend::Torchvision {
            let (_, mean, std) = common.normalize.affine;
            let fill = [0, 1, 2].map(|channel: usize| (PAD - mean[channel]) / std[channel]);
            common.normalize = common.normalize.with_fill(fill);
        }
        if node.get("size").is_some() {
            let size = node.object("size")?;
            for key in ["height", "width"] {
                size.u32(key, PATCH..=PATCH)?;
            }
        }
        let factor = match options.rescale {
            Some(factor) if FACTOR.contains(&factor) => Some(factor),
            Some(factor) => {
                return Err(Error::argument(format!(
                    "the option rescale must be a number from {:?} to {:?}, got {factor:?}",
                    FACTOR.start(),
                    FACTOR.end()
                )));
            }
            None => match node.get("rescale_image_frac") {
                Some(_) => Some(node.f64("rescale_image_frac", FACTOR)?),
                None => None,
            },
        };
        // A cap limits growth: where nothing grows it says nothing.
        let cap = node.opt_u32("rescale_image_max_upscaled_long_edge", 1..=MAX_CAP)?;
        let cap = cap.filter(|_| factor.is_some_and(|factor| factor > 1.0));
        Ok(Self { factor, cap, common })
    }
}

impl ImageProcessor for Processor {
    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (scaled_width, scaled_height) = scaled_dimensions(width, height, self.factor, self.cap)?;
        let (w, h, patch) = (u64::from(scaled_width), u64::from(scaled_height), u64::from(PATCH));
        // A width of whole patches still gets one more column.
        let size = (h.div_ceil(patch) * patch, (w / patch + 1) * patch);
        let canvas = sizes::canvas((width, height), size, (h, w), (0, 0))?;
        let grid = Grid::still(canvas.height / PATCH, canvas.width / PATCH);
        Ok(Plan { grid, tokens: grid.patches(), canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        let layout = PatchLayout {
            patch: PATCH,
            frames: FRAMES,
            order: PatchOrder::Raster,
            samples: SampleOrder::ChannelsLast,
        };
        self.common.recipe(canvas, layout, dtype)
    }
}
