//! The keys that transformers' image processors share: switches, filter, mean and deviation.

use crate::checkpoint::Node;
use crate::family::Backend;
use crate::pixels::{Arithmetic, Canvas, Filter, Normalize, PatchLayout, Recipe};
use crate::{Dtype, Error, Result};

/// The constants of OpenAI's CLIP, the default of many processors.
pub const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
/// Deviation beside [`CLIP_MEAN`].
pub const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

const DEFAULT_RESCALE: f64 = 1.0 / 255.0;
/// Sides and counts of patches that a processor may name.
const SIZES: std::ops::RangeInclusive<u32> = 1..=1024;

/// What a processor does where its file is silent.
pub struct Defaults {
    /// Resampling filter.
    pub filter: Filter,
    /// Means of the channels.
    pub mean: [f64; 3],
    /// Deviations of the channels.
    pub std: [f64; 3],
    /// Levels to values on Pillow, from the rescale factor, mean and deviation.
    pub pillow: fn(f64, [f64; 3], [f64; 3]) -> Normalize,
}

/// transformers' defaults for most families.
pub const BICUBIC_CLIP: Defaults =
    Defaults { filter: Filter::Bicubic, mean: CLIP_MEAN, std: CLIP_STD, pillow: Normalize::pil };

/// Settings common to all processors, checked.
pub struct Common {
    /// Resampling filter.
    pub filter: Filter,
    /// Resampling arithmetic.
    pub arithmetic: Arithmetic,
    /// Levels to values.
    pub normalize: Normalize,
}

impl Common {
    /// Reads the switches, `resample`, `rescale_factor`, `image_mean` and `image_std`. Steps that a checkpoint turns
    /// off are refused: no released one does.
    pub fn read(node: Node<'_>, backend: Backend, defaults: &Defaults) -> Result<Self> {
        for step in ["do_resize", "do_rescale", "do_normalize"] {
            if !node.bool_or(step, true)? {
                return Err(Error::checkpoint(format!(
                    "{}.{step} is false: only true is supported",
                    node.place()
                )));
            }
        }
        let (filter, arithmetic) = resampling(node, backend, defaults.filter)?;
        let rescale = node.f64_or("rescale_factor", DEFAULT_RESCALE, 1e-6..=1.0)?;
        let mean = match node.get("image_mean") {
            Some(_) => node.floats::<3>("image_mean", -1e3..=1e3)?,
            None => defaults.mean,
        };
        let std = match node.get("image_std") {
            Some(_) => node.floats::<3>("image_std", 1e-6..=1e3)?,
            None => defaults.std,
        };
        let normalize = match backend {
            Backend::Torchvision => Normalize::torchvision(rescale, mean, std),
            Backend::Pillow(_) => (defaults.pillow)(rescale, mean, std),
        };
        Ok(Self { filter, arithmetic, normalize })
    }

    /// These settings for an image on `canvas`, in patches of `layout`.
    pub fn recipe(&self, canvas: Canvas, layout: PatchLayout, dtype: Dtype) -> Recipe {
        let Self { filter, arithmetic, ref normalize } = *self;
        Recipe { canvas, filter, arithmetic, normalize: normalize.clone(), layout, dtype }
    }
}

/// Refuses a processor whose patches are not the tower's: for each key its value in the tower, and the default where
/// the processor's class has one.
pub fn check_geometry(node: Node<'_>, sizes: &[(&'static str, u32, Option<u32>)]) -> Result<()> {
    for &(key, tower, default) in sizes {
        let seen = match default {
            Some(default) => node.u32_or(key, default, SIZES)?,
            None => node.u32(key, SIZES)?,
        };
        if seen != tower {
            return Err(node.fault(format!("has {key} {seen}, but the tower of config.json has {tower}")));
        }
    }
    Ok(())
}

fn resampling(node: Node<'_>, backend: Backend, default: Filter) -> Result<(Filter, Arithmetic)> {
    // Pillow's codes; transformers stores them as integers.
    let filter = match node.opt_u32("resample", 0..=5)? {
        None => default,
        Some(0) => Filter::Nearest,
        Some(1) => Filter::Lanczos,
        Some(2) => Filter::Bilinear,
        Some(3) => Filter::Bicubic,
        Some(4) => Filter::Box,
        Some(_) => Filter::Hamming,
    };
    match backend {
        Backend::Pillow(order) => Ok((filter, Arithmetic::Pillow(order))),
        Backend::Torchvision if matches!(filter, Filter::Bicubic | Filter::Bilinear | Filter::Lanczos) => {
            Ok((filter, Arithmetic::TorchvisionU8))
        }
        Backend::Torchvision => Err(Error::checkpoint(format!(
            "{}.resample asks for {filter:?}, which torchvision's arithmetic does not have here: use the backend \"pillow\"",
            node.place()
        ))),
    }
}
