//! The Qwen-VL line: Qwen3.5 (dense and mixture of experts).

mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Family, Grid, Options, Plan, WeightNames, parts};
use crate::checkpoint::Checkpoint;
use crate::image::{DecodePolicy, Image};
use crate::pixels::PixelValues;
use crate::{Dtype, Error, Result};

/// Qwen3.5, images.
pub static QWEN35: Entry = Entry {
    name: "qwen35",
    model_types: &["qwen3_5", "qwen3_5_moe"],
    architectures: &["Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"],
    model_ids: &["qwen/qwen3.5-"],
    open,
    demo: || Demo {
        files: vec![
            ("config.json", include_str!("demo/config.json")),
            ("preprocessor_config.json", include_str!("demo/preprocessor_config.json")),
        ],
        prefix: "model.visual.",
    },
};

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let node = checkpoint.image_processor()?.ok_or_else(|| {
        Error::checkpoint(
            "neither processor_config.json nor preprocessor_config.json says how images are prepared",
        )
    })?;
    let processor = Processor::read(node, &vision, options)?;
    Ok(Box::new(Qwen { vision, processor }))
}

struct Qwen {
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Qwen {
    fn name(&self) -> &'static str {
        QWEN35.name
    }

    fn decode_policy(&self) -> DecodePolicy {
        parts::policy::oriented_over_white()
    }

    fn plan(&self, width: u32, height: u32) -> Result<Plan> {
        self.processor.plan(width, height)
    }

    fn preprocess(&self, image: &Image, dtype: Dtype) -> Result<PixelValues> {
        self.processor.preprocess(image, dtype)
    }

    fn patch_columns(&self) -> usize {
        self.vision.patch_columns()
    }

    fn embedding_columns(&self) -> usize {
        self.vision.out_hidden
    }

    fn tokens(&self, grid: Grid) -> Result<usize> {
        parts::patch_grid::merged_tokens(grid, self.vision.merge)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        vec![WeightNames {
            prefixes: &["model.visual.", "visual."],
            specs: self.vision.tensors(),
            ignored: |_| false,
        }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
