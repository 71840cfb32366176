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
    /// Reads the switches, `resample`, `rescale_factor`, `image_mean` and `image_std`; absent ones have transformers'
    /// defaults. Steps that a checkpoint turns off are refused: no released one does.
    pub fn read(node: Node<'_>, backend: Backend) -> Result<Self> {
        for step in ["do_resize", "do_rescale", "do_normalize"] {
            if !node.bool_or(step, true)? {
                return Err(Error::checkpoint(format!(
                    "{}.{step} is false: only true is supported",
                    node.place()
                )));
            }
        }
        let (filter, arithmetic) = resampling(node, backend)?;
        let rescale = node.f64_or("rescale_factor", DEFAULT_RESCALE, 1e-6..=1.0)?;
        let mean = match node.get("image_mean") {
            Some(_) => node.floats::<3>("image_mean", -1e3..=1e3)?,
            None => CLIP_MEAN,
        };
        let std = match node.get("image_std") {
            Some(_) => node.floats::<3>("image_std", 1e-6..=1e3)?,
            None => CLIP_STD,
        };
        let normalize = match backend {
            Backend::Torchvision => Normalize::torchvision(rescale, mean, std),
            Backend::Pillow(_) => Normalize::pil(rescale, mean, std),
        };
        Ok(Self { filter, arithmetic, normalize })
    }
}

fn resampling(node: Node<'_>, backend: Backend) -> Result<(Filter, Arithmetic)> {
    // Pillow's codes; transformers stores them as integers.
    let filter = match node.u32_or("resample", 3, 0..=5)? {
        0 => Filter::Nearest,
        1 => Filter::Lanczos,
        2 => Filter::Bilinear,
        3 => Filter::Bicubic,
        4 => Filter::Box,
        _ => Filter::Hamming,
    };
    match backend {
        Backend::Pillow(order) => Ok((filter, Arithmetic::Pillow(order))),
        Backend::Torchvision if matches!(filter, Filter::Bicubic | Filter::Bilinear) => {
            Ok((filter, Arithmetic::TorchvisionU8))
        }
        Backend::Torchvision => Err(Error::checkpoint(format!(
            "{}.resample asks for {filter:?}, which torchvision's arithmetic does not have here: use the backend \"pillow\"",
            node.place()
        ))),
    }
}
