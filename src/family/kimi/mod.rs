//! Kimi-K2.5, K2.6, K2.7 and K3, images.
//!
//! One implementation: what differs between the generations stands in their configuration. Pixels are those of the
//! processor in the published checkpoints on the Pillow of its time (columns first, always), normalised through
//! float64. The backends named "pillow..." change the order of the passes, and "torchvision" gives transformers' own
//! processor, which knows K2.5 to K2.7 alone. EXIF orientation is not applied.
//!
//! K2.5 to K2.7 drop alpha. K3 resizes the image in the mode of its file, palettes by nearest neighbour, and then
//! paints it on a chessboard. Grey of 16 bits is reduced to 8 bits before the resize instead of behind it.

mod background;
mod config;
mod processor;
#[cfg(feature = "torch")]
mod tower;

use config::VisionConfig;
use processor::Processor;

use super::registry::{Demo, Entry};
use super::{Family, Grid, Input, Modality, Options, WeightNames, parts};
use crate::checkpoint::Checkpoint;
use crate::{Error, Result};

/// Kimi-K2.5, K2.6, K2.7 and K3.
pub static ENTRY: Entry = Entry {
    name: "kimi",
    modality: Modality::Image,
    model_types: &["kimi_k25", "kimi_k3"],
    architectures: &["KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration"],
    model_ids: &[
        "moonshotai/kimi-k2.5",
        "moonshotai/kimi-k2.6",
        "moonshotai/kimi-k2.7",
        "moonshotai/kimi-k3",
    ],
    choices: &[],
    open,
    demo: || Demo {
        files: vec![
            ("config.json", include_str!("demo/k3/config.json")),
            ("preprocessor_config.json", include_str!("demo/k3/preprocessor_config.json")),
        ],
        prefix: "",
    },
};

/// A checkpoint in the layout of Kimi-K2.5.
pub fn k25_demo() -> Demo {
    Demo {
        files: vec![
            ("config.json", include_str!("demo/k25/config.json")),
            ("preprocessor_config.json", include_str!("demo/k25/preprocessor_config.json")),
        ],
        prefix: "",
    }
}

fn open(checkpoint: &Checkpoint, options: Options) -> Result<Box<dyn Family>> {
    let vision = VisionConfig::read(checkpoint.config())?;
    let node = checkpoint.need_image_processor()?;
    let processor = Processor::read(node, &vision, options)?;
    Ok(Box::new(Kimi { vision, processor }))
}

struct Kimi {
    vision: VisionConfig,
    processor: Processor,
}

impl Family for Kimi {
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

    /// Frames of a clip are averaged: they add no tokens.
    fn tokens(&self, grid: Grid) -> Result<usize> {
        let (frames, side) = (self.vision.max_frames, config::MAX_SIDE_PATCHES);
        if grid.frames > frames || grid.height.max(grid.width) > side {
            return Err(Error::argument(format!(
                "a grid of {}x{}x{} patches: there may be at most {frames} frames, and {side} rows and columns",
                grid.frames, grid.height, grid.width
            )));
        }
        parts::patch_grid::merged_tokens(Grid { frames: grid.frames.min(1), ..grid }, self.vision.merge)
    }

    fn weight_names(&self) -> Vec<WeightNames> {
        let spelled = |linears| WeightNames {
            prefixes: &[""],
            specs: self.vision.tensors(linears),
            ignored: config::of_text,
        };
        vec![spelled(["proj.0", "proj.2"]), spelled(["linear_1", "linear_2"])]
    }

    #[cfg(feature = "torch")]
    fn load(&self, loader: &super::Loader<'_>) -> Result<Box<dyn super::Tower>> {
        Ok(Box::new(tower::Tower::load(&self.vision, loader)?))
    }
}
