//! Muse's image processor: the grid of tokens within a budget whose aspect ratio is nearest to the image's.

use super::config::VisionConfig;
use super::set_order::set_order;
use crate::checkpoint::Node;
use crate::family::parts::processor::{Common, Defaults, check_geometry};
use crate::family::parts::{self, sizes};
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan};
use crate::pixels::{Canvas, Filter, Normalize, PatchLayout, PatchOrder, Recipe, SampleOrder};
use crate::{Dtype, Result};

/// Tokens of one image that a configuration may allow.
const MAX_TOKENS: u32 = 1 << 20;

const DEFAULTS: Defaults = Defaults {
    filter: Filter::Lanczos,
    mean: [0.5; 3],
    std: [0.5; 3],
    pillow: |_, mean, std| Normalize::divided(mean, std),
};

/// The processor of one checkpoint.
pub struct Processor {
    patch: u32,
    merge: u32,
    frames: u32,
    max_tokens: u32,
    /// Whether images of less than one token go transformers' way.
    transformers: bool,
    common: Common,
}

impl Processor {
    /// Reads the image processor's object; its geometry must be the tower's.
    pub fn read(node: Node<'_>, vision: &VisionConfig, backend: Backend, options: Options) -> Result<Self> {
        let backend = options.backend.unwrap_or(backend);
        check_geometry(
            node,
            &[
                ("patch_size", vision.patch, Some(14)),
                ("merge_size", vision.merge, Some(2)),
                ("temporal_patch_size", vision.frames, Some(2)),
            ],
        )?;
        node.f64_or("rescale_factor", 1.0 / 255.0, 0.003_921_568..=0.003_921_569)?;
        Ok(Self {
            patch: vision.patch,
            merge: vision.merge,
            frames: vision.frames,
            max_tokens: node.u32_or("max_image_tokens", 4096, 1..=MAX_TOKENS)?,
            transformers: backend == Backend::Torchvision,
            common: Common::read(node, backend, &DEFAULTS)?,
        })
    }

    /// Rows and columns of tokens, in upstream's double-precision arithmetic.
    fn tokens(&self, height: u32, width: u32) -> (u64, u64) {
        let most = f64::from(self.max_tokens);
        let unit = f64::from(self.patch * self.merge);
        let (h, w) = (f64::from(height), f64::from(width));
        let (mut rows, mut columns) = (h / unit, w / unit);
        let ratio = columns / rows;
        if rows * columns > most {
            rows = (most / ratio).sqrt();
            columns = rows * ratio;
        } else if rows * columns < 1.0 && !self.transformers {
            rows = (1.0 / ratio).sqrt();
            columns = rows * ratio;
        }
        let corners = |side: f64| [side.floor() as u64, side.ceil() as u64];
        let budget = 1..=u64::from(self.max_tokens);
        let off = |(r, c): (u64, u64)| (r as f64 / c as f64 - h / w).abs();
        let candidates = set_order(corners(rows), corners(columns)).into_iter().flatten();
        let within = candidates.filter(|(r, c)| budget.contains(&(r * c)));
        // Of equals the first counts, as in Python.
        within.reduce(|best, next| if off(next) < off(best) { next } else { best }).unwrap_or_else(|| {
            if self.transformers {
                let near = |side: f64| (side.round_ties_even() as u64).max(1);
                return (near(rows), near(columns));
            }
            self.nearest(rows, columns)
        })
    }

    /// The grid within the budget that is nearest to a size of which no neighbour is.
    fn nearest(&self, rows: f64, columns: f64) -> (u64, u64) {
        let most = u64::from(self.max_tokens);
        let distance = |r: u64, c: u64| (r as f64 - rows).powi(2) + (c as f64 - columns).powi(2);
        let mut best = (f64::INFINITY, (1, 1));
        for r in 1..=most {
            let c = (columns.round_ties_even() as u64).clamp(1, most / r);
            if distance(r, c) < best.0 {
                best = (distance(r, c), (r, c));
            }
        }
        best.1
    }
}

impl ImageProcessor for Processor {
    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (rows, columns) = self.tokens(height, width);
        let unit = u64::from(self.patch * self.merge);
        let size = (rows * unit, columns * unit);
        let canvas = sizes::canvas((width, height), size, size, (0, 0))?;
        let grid = Grid::still(canvas.height / self.patch, canvas.width / self.patch);
        Ok(Plan { grid, tokens: parts::patch_grid::merged_tokens(grid, self.merge)?, canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        let layout = PatchLayout {
            patch: self.patch,
            frames: self.frames,
            order: PatchOrder::Raster,
            samples: SampleOrder::FrameChannel,
        };
        self.common.recipe(canvas, layout, dtype)
    }
}
