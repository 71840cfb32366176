//! Kimi's image processor: never enlarged, shrunk into a patch budget, padded at the right and bottom.

use std::borrow::Cow;

use super::background::Background;
use super::config::{MAX_SIDE_PATCHES, VisionConfig};
use crate::checkpoint::Node;
use crate::family::parts::processor::check_geometry;
use crate::family::parts::{patch_grid, sizes};
use crate::family::{Backend, Grid, ImageProcessor, Options, Plan};
use crate::image::{Alpha, DecodePolicy, Image, Mode};
use crate::pixels::{
    self, Arithmetic, Canvas, Filter, Normalize, PassOrder, PatchLayout, PatchOrder, Recipe, SampleOrder,
};
use crate::{Dtype, Error, Result};

/// Patches of one image that a configuration may allow.
const MAX_PATCHES: u32 = 1 << 20;

/// The processor of one checkpoint.
pub struct Processor {
    patch: u32,
    merge: u32,
    max_patches: u32,
    max_side: u32,
    arithmetic: Arithmetic,
    normalize: Normalize,
    /// None: alpha is dropped.
    background: Option<Background>,
    /// Whether the image is resized in its own mode and only then converted and painted on the background.
    paint_late: bool,
}

impl Processor {
    /// Reads the object of preprocessor_config.json; its geometry must be the tower's.
    pub fn read(node: Node<'_>, vision: &VisionConfig, options: Options) -> Result<Self> {
        let media = node.object("media_proc_cfg")?;
        check_geometry(
            media,
            &[("patch_size", vision.patch, None), ("merge_kernel_size", vision.merge, None)],
        )?;
        if let Some(tokens) = media.get("fixed_output_tokens") {
            return Err(tokens.wrong("null"));
        }
        let stages = ["before_resize", "after_resize"];
        let background = media.get("transparent_bg_config").map(Background::read).transpose()?;
        let paint_late = media.opt_choice("transparent_bg_fill_stage", &stages)? == Some(stages[1]);
        let (mean, std) = (media.floats("image_mean", -1e3..=1e3)?, media.floats("image_std", 1e-6..=1e3)?);
        let (arithmetic, normalize) = match options.backend {
            None => (Arithmetic::Pillow(PassOrder::HorizontalFirst), Normalize::double(mean, std)),
            Some(Backend::Pillow(order)) => (Arithmetic::Pillow(order), Normalize::double(mean, std)),
            Some(Backend::Torchvision) if background.is_none() && !paint_late => {
                (Arithmetic::TorchvisionU8, Normalize::torchvision(1.0 / 255.0, mean, std))
            }
            Some(Backend::Torchvision) => {
                return Err(Error::argument(
                    "Kimi-K3 has no preprocessing on torchvision: leave the backend out, or use one of pillow's",
                ));
            }
        };
        Ok(Self {
            patch: vision.patch,
            merge: vision.merge,
            max_patches: media.u32("in_patch_limit", 1..=MAX_PATCHES)?,
            max_side: media.u32("patch_limit_on_one_side", 1..=MAX_SIDE_PATCHES)?,
            arithmetic,
            normalize,
            background,
            paint_late,
        })
    }

    fn painted(&self, image: &Image) -> Image {
        self.background.as_ref().map_or_else(|| image.to_rgb(), |background| background.under(image))
    }

    /// The image in its own mode at the size of the canvas's content.
    fn resized(&self, image: &Image, canvas: Canvas, filter: Filter) -> Result<Image> {
        let resize = |image: &Image| {
            pixels::resize(image, canvas.content_width, canvas.content_height, filter, self.arithmetic)
        };
        if image.mode != Mode::Cmyk {
            return resize(image);
        }
        // Four channels would be taken for colours with alpha: colours and black go separately.
        let (inks, _) = image.samples.as_chunks::<4>();
        let part = |channels: u8, samples: Vec<u8>| Image { channels, mode: Mode::Plain, samples, ..*image };
        let colours = resize(&part(3, inks.iter().flat_map(|&[c, m, y, _]| [c, m, y]).collect()))?;
        let black = resize(&part(1, inks.iter().map(|inks| inks[3]).collect()))?;
        let pixels = colours.samples.as_chunks::<3>().0.iter().zip(&black.samples);
        let samples = pixels.flat_map(|(&[c, m, y], &k)| [c, m, y, k]).collect();
        Ok(Image { channels: 4, mode: Mode::Cmyk, samples, ..colours })
    }
}

impl ImageProcessor for Processor {
    /// Orientation ignored; alpha dropped, or kept for the background.
    fn decode_policy(&self) -> DecodePolicy {
        let native = self.paint_late || self.background.is_some();
        DecodePolicy { alpha: if native { Alpha::Native } else { Alpha::Drop }, ..DecodePolicy::default() }
    }

    /// Grid, tokens and canvas of an image, in the published double-precision arithmetic.
    /// In the published double-precision arithmetic.
    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        let (w, h) = (f64::from(width), f64::from(height));
        let patches = |side: u32| f64::from((side / self.patch).max(1));
        let most = f64::from(self.max_side * self.patch);
        let budget = (f64::from(self.max_patches) / (patches(width) * patches(height))).sqrt();
        let scale = budget.min(most / w).min(most / h).min(1.0);
        let shrunk = |side: f64| u64::from(((side * scale) as u32).max(1).min(self.max_side * self.patch));
        let (to_width, to_height) = (shrunk(w), shrunk(h));
        let block = u64::from(self.patch * self.merge);
        let padded = |side: u64| side.next_multiple_of(block);
        let size = (padded(to_height), padded(to_width));
        let canvas = sizes::canvas((width, height), size, (to_height, to_width), (0, 0))?;
        let grid = Grid::still(canvas.height / self.patch, canvas.width / self.patch);
        if grid.height.max(grid.width) > self.max_side {
            return Err(Error::media(format!(
                "an image of {width}x{height} would take {}x{} patches, more than patch_limit_on_one_side {}",
                grid.width, grid.height, self.max_side
            )));
        }
        Ok(Plan { grid, tokens: patch_grid::merged_tokens(grid, self.merge)?, canvas })
    }

    fn recipe(&self, canvas: Canvas, dtype: Dtype) -> Recipe {
        Recipe {
            canvas,
            filter: Filter::Bicubic,
            arithmetic: self.arithmetic,
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

    /// The image painted on the background, which may come behind the resize.
    fn ready<'a>(&self, image: &'a Image, dtype: Dtype) -> Result<(Cow<'a, Image>, Recipe)> {
        let canvas = self.plan(image.width, image.height)?.canvas;
        let filter = match image.mode {
            Mode::Indexed if self.paint_late => Filter::Nearest,
            _ => Filter::Bicubic,
        };
        let rgb = if image.channels == 3 && !matches!(image.mode, Mode::Keyed(_)) {
            Cow::Borrowed(image)
        } else if self.paint_late {
            Cow::Owned(self.painted(&self.resized(image, canvas, filter)?))
        } else {
            Cow::Owned(self.painted(image))
        };
        Ok((rgb, Recipe { filter, ..self.recipe(canvas, dtype) }))
    }
}
