//! The keys that transformers' image processors share: switches, filter, mean and deviation.

use crate::checkpoint::Node;
use crate::family::Backend;
use crate::pixels::{Arithmetic, Filter, Normalize};
use crate::{Error, Result};

/// The constants of OpenAI's CLIP, the default of many processors.
pub const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
/// Deviation beside [`CLIP_MEAN`].
pub const CLIP_STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

const DEFAULT_RESCALE: f64 = 1.0 / 255.0;

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
