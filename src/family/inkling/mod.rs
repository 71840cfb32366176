//! Inkling, images.
//!
//! Pixels are SGLang's: Pillow's Lanczos, columns first, values rounded to bfloat16. The backend "torchvision" gives
//! transformers' processor, which resamples on torchvision and does not round. Whether and how far images are scaled
//! first is the checkpoint's `rescale_image_frac`, or the caller's option rescale; SGLang's server takes 2.0.

mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Choice, Family, Grid, Input, Modality, Options, WeightNames, parts};
use crate::Result;
use crate::checkpoint::Checkpoint;

/// Inkling.
pub static ENTRY: Entry = Entry {
    name: "inkling",
    modality: Modality::Image,
    model_types: &["inkling_mm_model"],
    architectures: &["InklingForConditionalGeneration"],
    model_ids: &["thinkingmachines/inkling"],
    choices: &[Choice::Rescale],
    open,
    demo: || Demo {
        files: vec![
            ("config.json", include_str!("demo/config.json")),
            ("processor_config.json", include_str!("demo/processor_config.json")),
        ],
        prefix: "model.visual.",
    },
};

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let node = checkpoint.need_image_processor()?;
    let processor = Processor::read(node, options)?;
    Ok(Box::new(Inkling { vision, processor }))
}

struct Inkling {
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Inkling {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn input(&self) -> Input<'_> {
        Input::Image(&self.processor)
    }

    fn input_columns(&self) -> usize {
        self.vision.patch_columns()
    }

    fn embedding_columns(&self) -> usize {
        self.vision.out_hidden
    }

    fn tokens(&self, grid: Grid) -> Result<usize> {
        parts::patch_grid::still_tokens(grid, 1)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        vec![WeightNames {
            // The release's, and those of older exports.
            prefixes: &["model.visual.", "visual.model.", "visual.vision_encoder."],
            specs: self.vision.tensors(),
            ignored: |_| false,
        }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
