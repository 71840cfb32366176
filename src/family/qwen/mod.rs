//! The Qwen-VL line, images: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, dense and mixture of experts.
//!
//! Reference: transformers 5.24 with its torchvision processor (`Qwen2VLImageProcessorFast`); the backends named
//! "pillow..." give its Pillow processor. EXIF orientation is applied as its loaders do, and transparency composited
//! over white as its processors do; SGLang does neither, which the decode policy "sglang" gives.

mod processor;
mod qwen2;
mod qwen25;
mod qwen3;
mod vit;

use processor::Processor;
use qwen2::Qwen2;
use qwen3::Qwen3;
use qwen25::Qwen25;
use vit::Vit;

use super::registry::{Demo, Entry};
use super::{Choice, Family, Grid, Input, Modality, Options, WeightNames};
use crate::Result;
use crate::checkpoint::{Checkpoint, Node, TensorSpec};

macro_rules! demo {
    ($folder:literal, $prefix:literal) => {
        || Demo {
            files: vec![
                ("config.json", include_str!(concat!("demo/", $folder, "/config.json"))),
                (
                    "preprocessor_config.json",
                    include_str!(concat!("demo/", $folder, "/preprocessor_config.json")),
                ),
            ],
            prefix: $prefix,
        }
    };
}

/// Qwen2-VL.
pub static QWEN2_VL: Entry = Entry {
    name: "qwen2_vl",
    modality: Modality::Image,
    model_types: &["qwen2_vl"],
    architectures: &["Qwen2VLForConditionalGeneration"],
    model_ids: &["qwen/qwen2-vl-"],
    choices: &[],
    open: |checkpoint, options| open(&QWEN2_VL, checkpoint, options, Qwen2::read),
    demo: demo!("qwen2_vl", "visual."),
};

/// Qwen2.5-VL.
pub static QWEN2_5_VL: Entry = Entry {
    name: "qwen2_5_vl",
    modality: Modality::Image,
    model_types: &["qwen2_5_vl"],
    architectures: &["Qwen2_5_VLForConditionalGeneration"],
    model_ids: &["qwen/qwen2.5-vl-"],
    choices: &[],
    open: |checkpoint, options| open(&QWEN2_5_VL, checkpoint, options, Qwen25::read),
    demo: demo!("qwen2_5_vl", "visual."),
};

/// Qwen3-VL.
pub static QWEN3_VL: Entry = Entry {
    name: "qwen3_vl",
    modality: Modality::Image,
    model_types: &["qwen3_vl", "qwen3_vl_moe"],
    architectures: &["Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"],
    model_ids: &["qwen/qwen3-vl-"],
    choices: &[Choice::Deepstack],
    open: |checkpoint, options| open(&QWEN3_VL, checkpoint, options, Qwen3::read_vl),
    demo: demo!("qwen3_vl", "model.visual."),
};

/// Qwen3.5.
pub static QWEN35: Entry = Entry {
    name: "qwen35",
    modality: Modality::Image,
    model_types: &["qwen3_5", "qwen3_5_moe"],
    architectures: &["Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"],
    model_ids: &["qwen/qwen3.5-"],
    choices: &[],
    open: |checkpoint, options| open(&QWEN35, checkpoint, options, Qwen3::read_35),
    demo: demo!("qwen35", "model.visual."),
};

/// What a generation's `vision_config` says, and its tower.
trait Generation: Send + Sync + 'static {
    /// The sizes that all generations have.
    fn vit(&self) -> &Vit;

    /// Columns of the embeddings.
    fn columns(&self) -> usize;

    /// Every tensor of the tower.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Reads the weights and builds the tower.
    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>>;
}

fn open<G: Generation>(
    entry: &'static Entry,
    checkpoint: &Checkpoint,
    options: Options,
    read: fn(Node<'_>, Options) -> Result<G>,
) -> Result<Box<dyn Family>> {
    let generation = read(checkpoint.config().object("vision_config")?, options)?;
    let node = checkpoint.need_image_processor()?;
    let processor = Processor::read(node, generation.vit(), options)?;
    Ok(Box::new(Qwen { entry, generation, processor }))
}

struct Qwen<G> {
    entry: &'static Entry,
    generation: G,
    processor: Processor,
}

impl<G: Generation> Family for Qwen<G> {
    fn name(&self) -> &'static str {
        self.entry.name
    }

    fn input(&self) -> Input<'_> {
        Input::Image(&self.processor)
    }

    fn input_columns(&self) -> usize {
        self.generation.vit().patch_columns()
    }

    fn embedding_columns(&self) -> usize {
        self.generation.columns()
    }

    fn tokens(&self, grid: Grid) -> Result<usize> {
        self.generation.vit().tokens(grid)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        // The first two generations were published as "visual."; transformers saves them as "model.visual.".
        vec![WeightNames {
            prefixes: &["model.visual.", "visual."],
            specs: self.generation.tensors(),
            ignored: |_| false,
        }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        self.generation.load(loader)
    }
}
