//! Nemotron 3.5 Super VL, images.
//!
//! Pixels are those of transformers' processor, float32 from the resize on. A tower loads under the names of the
//! release and under those of ModelOpt's exports.

mod config;
mod names;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Family, Grid, Input, Modality, Options, WeightNames, parts};
use crate::Result;
use crate::checkpoint::Checkpoint;

/// Nemotron 3.5 Super VL.
pub static ENTRY: Entry = Entry {
    name: "nemotron35",
    modality: Modality::Image,
    model_types: &["nemotron_h_omni"],
    architectures: &["NemotronH_Omni_Reasoning_V3"],
    model_ids: &["nvidia/nvidia-nemotron-3.5-super-vl-"],
    choices: &[],
    open,
    demo: || Demo {
        files: vec![
            ("config.json", include_str!("demo/config.json")),
            ("preprocessor_config.json", include_str!("demo/preprocessor_config.json")),
        ],
        prefix: "",
    },
};

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let node = checkpoint.need_image_processor()?;
    let processor = Processor::read(node, &vision, options)?;
    Ok(Box::new(Nemotron { vision, processor }))
}

struct Nemotron {
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Nemotron {
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
        parts::patch_grid::still_tokens(grid, config::MERGE)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        names::spellings(&self.vision)
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
