//! GLM-5.3-Flash, images.

mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Family, Grid, Input, Modality, Options, WeightNames, parts};
use crate::Result;
use crate::checkpoint::Checkpoint;

/// GLM-5.3-Flash.
pub static ENTRY: Entry = Entry {
    name: "glm53",
    modality: Modality::Image,
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
    let node = checkpoint.need_image_processor()?;
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
