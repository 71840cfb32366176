//! DeepSeek-V4.1-Flash, images.
//!
//! The embeddings are the whole span of an image: a start row, each line of tokens with a line end, and an end row;
//! the language model sees the same token id in all of them. Pixels follow Pillow before 12.2 (columns first, always).
//!
//! Upstream hands Torch tensors of three dimensions, for which Torch up to 2.13 computes attention in float32; newer
//! ones fuse it, as this tower does unless the option attention is "math".

mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::parts::TokenGrid;
use super::registry::{Demo, Entry};
use super::{Attention, Choice, Family, Grid, Input, Modality, Options, WeightNames};
use crate::checkpoint::Checkpoint;
use crate::{Error, Result};

/// DeepSeek-V4.1-Flash.
pub static ENTRY: Entry = Entry {
    name: "deepseek41",
    modality: Modality::Image,
    model_types: &["deepseek_v41"],
    architectures: &["DeepseekV41ForCausalLM"],
    model_ids: &["deepseek-ai/deepseek-v4.1-flash"],
    choices: &[Choice::Attention],
    open,
    demo: || Demo { files: vec![("config.json", include_str!("demo/config.json"))], prefix: "" },
};

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let processor = Processor::read(checkpoint.config(), &vision, options)?;
    Ok(Box::new(DeepSeek { vision, processor, attention: options.attention.unwrap_or_default() }))
}

struct DeepSeek {
    vision: VisionConfig,
    processor: Processor,
    #[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "no tower"))]
    attention: Attention,
}

impl Family for DeepSeek {
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
        if grid.frames != 1 || grid.height == 0 || grid.width == 0 {
            return Err(Error::argument(format!(
                "a grid of {}x{}x{} patches: an image has one frame and at least one row and column",
                grid.frames, grid.height, grid.width
            )));
        }
        Ok(processor::span_length(grid, self.vision.ratio))
    }

    fn token_grid(&self, grid: Grid) -> Result<Option<TokenGrid>> {
        let side = self.vision.ratio;
        let (rows, columns) = processor::token_grid(grid, side);
        // A start row comes first, and each line has its end.
        Ok(Some(TokenGrid { side, rows, columns, first: 1, stride: columns + 1 }))
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        vec![WeightNames { prefixes: &[""], specs: self.vision.tensors(), ignored: config::of_text }]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        let rounding = match self.attention {
            Attention::Fused => crate::torch::ops::Rounding::Fused,
            Attention::Math => crate::torch::ops::Rounding::Once,
        };
        Ok(Box::new(tower::Tower::load(&self.vision, rounding, loader)?))
    }
}
