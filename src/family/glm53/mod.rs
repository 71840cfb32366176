//! GLM-5.3-Flash, images.

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

/// GLM-5.3-Flash.
pub static ENTRY: Entry = Entry {
    name: "glm53",
    model_types: &["glm5_next"],
    architectures: &["Glm5NextForConditionalGeneration"],
    model_ids: &["zai-org/glm-5.3-flash", "nvidia/glm-5.3-flash", "unsloth/glm-5.3-flash"],
    choices: &[],
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
    let node = checkpoint.image_processor()?.ok_or_else(|| {
        Error::checkpoint(
            "neither processor_config.json nor preprocessor_config.json says how images are prepared",
        )
    })?;
    let processor = Processor::read(node, &vision, options)?;
    Ok(Box::new(Glm53 { vision, processor }))
}

struct Glm53 {
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Glm53 {
    fn name(&self) -> &'static str {
        ENTRY.name
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
        vec![WeightNames { prefixes: &["model.visual."], specs: self.vision.tensors(), ignored: |_| false }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
