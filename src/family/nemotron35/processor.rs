//! Nemotron's image processor: a grid near the image's own within a budget of patches, resampled in float32.

use super::config::{MERGE, VisionConfig, check_ratio};
use crate::checkpoint::Node;
use crate::family::parts::processor::check_geometry;
use crate::family::parts::{self, sizes};
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan};
use crate::pixels::{Arithmetic, Canvas, Filter, Normalize, PatchLayout, PatchOrder, Recipe, SampleOrder};
use crate::{Dtype, Error, Result};

/// Patches of one image, and tokens of a prompt, that a configuration may allow.
const COUNT: std::ops::RangeInclusive<u32> = 1..=1 << 24;
/// Ids of a prompt that are kept for other things than the image.
const RESERVED_TOKENS: u32 = 4;

/// The processor of one checkpoint.
pub struct Processor {
    patch: u32,
    /// Patches below which an image is enlarged.
    min_patches: u64,
    /// Patches above which an image is shrunk.
    max_patches: u64,
    normalize: Normalize,
}

impl Processor {
    /// Reads the processor's object; its geometry must be the tower's.
    pub fn read(node: Node<'_>, vision: &VisionConfig, options: Options) -> Result<Self> {
        if let Some(Backend::Pillow(_)) = options.backend {
            return Err(Error::argument(
                "Nemotron resamples in float32, which Pillow does not: leave the backend out, or use torchvision",
            ));
        }
        check_ratio(node)?;
        check_geometry(node, &[("patch_size", vision.patch, None)])?;
        let least = node.u32("min_num_patches", COUNT)?;
        let most = node.u32("max_num_patches", COUNT)?;
        if least > most {
            return Err(node.fault(format!("allows at least {least} but at most {most} patches")));
        }
        let context = node.u32("max_model_len", COUNT)?.saturating_sub(RESERVED_TOKENS);
        let budget = u64::from(context) * u64::from(MERGE * MERGE);
        // The released names, and those of transformers.
        let named = |ours: &'static str, theirs: &'static str| {
            if node.get(ours).is_some() || node.get(theirs).is_none() { ours } else { theirs }
        };
        let mean = node.floats::<3>(named("norm_mean", "image_mean"), -1e3..=1e3)?;
        let std = node.floats::<3>(named("norm_std", "image_std"), 1e-6..=1e3)?;
        Ok(Self {
            patch: vision.patch,
            min_patches: u64::from(least),
            max_patches: budget.clamp(u64::from(least), u64::from(most)),
            normalize: Normalize::torchvision(1.0 / 255.0, mean, std),
        })
    }

    /// Rows and columns of patches, in upstream's double-precision arithmetic; none where a side vanishes.
    fn grid(&self, height: u32, width: u32) -> Option<(u64, u64)> {
        let (least, most, merge) = (self.min_patches as f64, self.max_patches, u64::from(MERGE));
        // Half to even: an even whole number of patches stays, an odd one gains one.
        let near = |side: u32| (f64::from(side) / f64::from(self.patch) + 0.5).round_ties_even();
        let (rows, columns) = (near(height), near(width));
        let shrink = (most as f64 / (rows * columns)).sqrt().min(1.0);
        let (mut rows, mut columns) = ((shrink * rows).floor(), (shrink * columns).floor());
        if rows < 1.0 || columns < 1.0 {
            return None;
        }
        if most > self.min_patches && rows * columns < least {
            let grow = (least / (rows * columns)).sqrt();
            (rows, columns) = ((grow * rows).ceil(), (grow * columns).ceil());
        }
        let whole = |side: u64, other: u64| match side % merge {
            0 => side,
            rest if (side + merge - rest) * other <= most => side + merge - rest,
            rest => (side - rest).max(merge),
        };
        let columns = columns as u64;
        let rows = whole(rows as u64, columns);
        Some((rows, whole(columns, rows)))
    }
}

impl ImageProcessor for Processor {
    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (rows, columns) = self.grid(height, width).ok_or_else(|| {
            Error::media(format!(
                "an image of {width}x{height} is too thin: its aspect ratio leaves no patch within the budget of {}",
                self.max_patches
            ))
        })?;
        let patch = u64::from(self.patch);
        let size = (rows * patch, columns * patch);
        let canvas = sizes::canvas((width, height), size, size, (0, 0))?;
        let grid = Grid::still(canvas.height / self.patch, canvas.width / self.patch);
        Ok(Plan { grid, tokens: parts::patch_grid::merged_tokens(grid, MERGE)?, canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        Recipe {
            canvas,
            filter: Filter::Bicubic,
            arithmetic: Arithmetic::AtenF32,
            normalize: self.normalize.clone(),
            layout: PatchLayout {
                patch: self.patch,
                frames: 1,
                order: PatchOrder::Raster,
                samples: SampleOrder::ChannelFrame,
            },
            dtype,
        }
    }
}
