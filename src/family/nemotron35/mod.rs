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
use super::{Family, Grid, Options, Plan, WeightNames, parts};
use crate::checkpoint::Checkpoint;
use crate::image::{DecodePolicy, Image};
use crate::pixels::PixelValues;
use crate::{Dtype, Error, Result};

/// Nemotron 3.5 Super VL.
pub static ENTRY: Entry = Entry {
    name: "nemotron35",
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
    let node = checkpoint.image_processor()?.ok_or_else(|| {
        Error::checkpoint("there is no preprocessor_config.json to say how images are prepared")
    })?;
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

    fn decode_policy(&self) -> DecodePolicy {
        DecodePolicy::default()
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
