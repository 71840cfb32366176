//! Muse Spark and Muse Glimmer, images.
//!
//! One tower for both. Muse Spark is prepared as serving engines do: Pillow's Lanczos, columns first; Muse Glimmer as
//! its checkpoint's processor in transformers does, on torchvision. The other is the option backend's to choose:
//! "torchvision" or "pillow-12.1".

mod config;
mod processor;
mod set_order;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Backend, Family, Grid, Input, Modality, Options, WeightNames, parts};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::pixels::PassOrder;

macro_rules! demo {
    ($folder:literal) => {
        || Demo {
            files: vec![
                ("config.json", include_str!(concat!("demo/", $folder, "/config.json"))),
                ("processor_config.json", include_str!(concat!("demo/", $folder, "/processor_config.json"))),
            ],
            prefix: "model.",
        }
    };
}

/// Muse Spark.
pub static VISION: Entry = Entry {
    name: "muse_vision",
    modality: Modality::Image,
    model_types: &["muse_spark"],
    architectures: &["MuseSparkForConditionalGeneration"],
    model_ids: &["meta-models/muse-spark-"],
    choices: &[],
    open: |checkpoint, options| {
        open(&VISION, Backend::Pillow(PassOrder::HorizontalFirst), checkpoint, options)
    },
    demo: demo!("spark"),
};

/// Muse Glimmer.
pub static GLIMMER: Entry = Entry {
    name: "muse_glimmer",
    modality: Modality::Image,
    model_types: &["muse_glimmer"],
    architectures: &["MuseGlimmerForConditionalGeneration"],
    model_ids: &["meta-models/muse-glimmer-"],
    choices: &[],
    open: |checkpoint, options| open(&GLIMMER, Backend::Torchvision, checkpoint, options),
    demo: demo!("glimmer"),
};

fn open(
    entry: &'static Entry,
    backend: Backend,
    checkpoint: &Checkpoint,
    options: Options,
) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let node = checkpoint.need_image_processor()?;
    let processor = Processor::read(node, &vision, backend, options)?;
    Ok(Box::new(Muse { entry, vision, processor }))
}

struct Muse {
    entry: &'static Entry,
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Muse {
    fn name(&self) -> &'static str {
        self.entry.name
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
        parts::patch_grid::still_tokens(grid, self.vision.merge)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        vec![WeightNames { prefixes: &["model."], specs: self.vision.tensors(), ignored: config::of_others }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
