//! DeepSeek-V4.1's preprocessing: an enlarged or shrunken canvas within a token budget, the image centred on grey.
//!
//! The release ships it as plain functions: no processor file is read, and mean, deviation and grey are constants.

use super::config::VisionConfig;
use crate::checkpoint::Node;
use crate::family::parts::sizes;
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan};
use crate::pixels::{
    Arithmetic, Canvas, Filter, Normalize, PassOrder, PatchLayout, PatchOrder, Recipe, SampleOrder,
};
use crate::{Dtype, Error, Result};

/// Tokens of one image, with start, end and line ends, that a configuration may allow.
const TOKENS: std::ops::RangeInclusive<u32> = 4..=65_536;
/// Pixels that small images may be enlarged to.
const MAX_MIN_PIXELS: u32 = 1 << 27;
/// Ratio of width to height above which a configuration may cap it.
const MAX_WH_RATIO: u32 = 1 << 18;
/// Level of the padding.
const GREY: u8 = 127;

/// The preprocessing of one checkpoint.
pub struct Processor {
    patch: u32,
    ratio: u32,
    max_tokens: u32,
    min_pixels: u32,
    max_wh_ratio: Option<u32>,
    order: PassOrder,
    normalize: Normalize,
}

impl Processor {
    /// Reads the keys of config.json that say how images are prepared.
    pub fn read(config: Node<'_>, vision: &VisionConfig, options: Options) -> Result<Self> {
        let node = config.object("vision_config")?;
        let order = match options.backend {
            None => PassOrder::HorizontalFirst,
            Some(Backend::Pillow(order)) => order,
            Some(Backend::Torchvision) => {
                return Err(Error::argument(
                    "DeepSeek-V4.1 has no preprocessing on torchvision: leave the backend out, or use one of pillow's",
                ));
            }
        };
        Ok(Self {
            patch: vision.patch,
            ratio: vision.ratio,
            max_tokens: node.u32("max_image_tokens", TOKENS)?,
            min_pixels: node.u32("min_pixels", 1..=MAX_MIN_PIXELS)?,
            max_wh_ratio: node.opt_u32("max_wh_ratio", 1..=MAX_WH_RATIO)?,
            order,
            // Rounded whatever the tower's type: upstream's patches are.
            normalize: Normalize::divided([0.5; 3], [0.5; 3]).rounded_to_bf16().with_fill_level(GREY),
        })
    }

    /// Height and width of the canvas, in upstream's double-precision arithmetic.
    fn size(&self, mut width: u64, mut height: u64) -> (u64, u64) {
        let (patch, ratio, budget) =
            (u64::from(self.patch), u64::from(self.ratio), u64::from(self.max_tokens));
        if let Some(cap) = self.max_wh_ratio {
            width = width.min(height * u64::from(cap));
        }
        let area = width * height;
        if area < u64::from(self.min_pixels) {
            let grow = (f64::from(self.min_pixels) / area as f64).sqrt();
            (width, height) = ((width as f64 * grow) as u64, (height as f64 * grow) as u64);
        }
        let patches = |side: u64| side.div_ceil(patch);
        let tokens = patches(height).div_ceil(ratio) * (patches(width).div_ceil(ratio) + 1) + 2;
        if tokens <= budget {
            return (patches(height) * patch, patches(width) * patch);
        }
        // The largest size of this aspect ratio whose tokens are within the budget.
        let cell = patch * ratio;
        let (w, h) = (width as f64, height as f64);
        let columns = ((budget - 2) as f64 / (h / w) + 0.25).sqrt() - 0.5;
        let rows = columns * (h / w);
        if columns < 1.0 {
            return ((budget - 2) / 2 * cell, cell);
        }
        if rows < 1.0 {
            return (cell, (budget - 3) * cell);
        }
        let cells = |count: f64, side: f64| count.floor() * cell as f64 / side;
        let scale = cells(columns, w).min(cells(rows, h));
        let shrunk = |side: f64| (side * scale / patch as f64).floor() as u64 * patch;
        (shrunk(h), shrunk(w))
    }
}

impl ImageProcessor for Processor {
    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (canvas_height, canvas_width) = self.size(u64::from(width), u64::from(height));
        let stretched =
            self.max_wh_ratio.is_some_and(|ratio| u64::from(width) >= u64::from(ratio) * u64::from(height));
        let (content_height, content_width) = if stretched {
            (canvas_height, canvas_width)
        } else {
            fitted((width, height), (canvas_height, canvas_width))
        };
        let middle = |gap: u64| (gap as f64 / 2.0).round_ties_even() as u64;
        let canvas = sizes::canvas(
            (width, height),
            (canvas_height, canvas_width),
            (content_height, content_width),
            (
                middle(canvas_height.saturating_sub(content_height)),
                middle(canvas_width.saturating_sub(content_width)),
            ),
        )?;
        let grid = Grid::still(canvas.height / self.patch, canvas.width / self.patch);
        let tokens = span_length(grid, self.ratio);
        if tokens > self.max_tokens as usize {
            return Err(Error::media(format!(
                "an image of {width}x{height} would take {tokens} tokens, more than max_image_tokens {}",
                self.max_tokens
            )));
        }
        Ok(Plan { grid, tokens, canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        Recipe {
            canvas,
            filter: Filter::Bicubic,
            arithmetic: Arithmetic::Pillow(self.order),
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

/// Height and width of an image of (width, height) inside a canvas of (height, width), as Pillow's `ImageOps.pad`.
/// A side may round to nothing.
fn fitted((width, height): (u32, u32), (canvas_height, canvas_width): (u64, u64)) -> (u64, u64) {
    let (w, h) = (f64::from(width), f64::from(height));
    let (canvas_h, canvas_w) = (canvas_height as f64, canvas_width as f64);
    let (ratio, canvas_ratio) = (w / h, canvas_w / canvas_h);
    if ratio > canvas_ratio {
        ((h / w * canvas_w).round_ties_even() as u64, canvas_width)
    } else if ratio < canvas_ratio {
        (canvas_height, (w / h * canvas_h).round_ties_even() as u64)
    } else {
        (canvas_height, canvas_width)
    }
}

/// Rows of the embeddings: start, then each line of tokens with its end, then end.
pub fn span_length(grid: Grid, ratio: u32) -> usize {
    let (rows, columns) = token_grid(grid, ratio);
    rows * (columns + 1) + 2
}

/// Rows and columns of tokens; windows at the edges may be incomplete.
pub fn token_grid(grid: Grid, ratio: u32) -> (usize, usize) {
    (grid.height.div_ceil(ratio) as usize, grid.width.div_ceil(ratio) as usize)
}
