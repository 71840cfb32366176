//! `vision_config` of Inkling, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::Specs;
use crate::family::parts::sizes::MAX_WIDTH;

/// Side of a patch in pixels.
pub const PATCH: u32 = 40;
/// Copies of the still image.
pub const FRAMES: u32 = 2;

/// One linear layer over blocks of neighbours.
pub struct Fold {
    /// Side of the block that becomes one position.
    pub side: usize,
    /// Columns that come out.
    pub out: usize,
}

/// The layers within a frame: 40 positions a side become 8, 4 and 1. The last layer joins the frames.
///
/// The released towers have this plan; others follow from an assignment problem and are refused.
pub const FOLDS: [Fold; 3] =
    [Fold { side: 5, out: 128 }, Fold { side: 2, out: 320 }, Fold { side: 4, out: 4800 }];

/// What the tower is made of: the width of the language model is all that differs between releases.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub out_hidden: usize,
}

impl VisionConfig {
    /// Reads and checks `vision_config` of a config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        let kind = node.str("vision_encoder_type")?;
        if kind != "hmlp" {
            return Err(node.fault(format!("has vision_encoder_type {kind:?}: only hmlp is supported")));
        }
        if node.get("decoder_dmodel").is_none() {
            return Err(node.fault("has no decoder_dmodel: this checkpoint has no image encoder"));
        }
        let width = node.u32("decoder_dmodel", 1..=MAX_WIDTH)?;
        let text = config.object("text_config")?.u32_or("hidden_size", width, 1..=MAX_WIDTH)?;
        if text != width {
            return Err(node.fault(format!(
                "has decoder_dmodel {width}, but the language model of text_config has hidden_size {text}"
            )));
        }
        for (key, only) in
            [("patch_size", PATCH), ("temporal_patch_size", FRAMES), ("n_channels", 3), ("n_layers", 4)]
        {
            node.u32(key, only..=only)?;
        }
        if !node.bool_or("use_vision_norm", true)? {
            return Err(node.fault("has use_vision_norm false: only true is supported"));
        }
        Ok(Self { out_hidden: width as usize })
    }

    /// Samples of one patch, all frames.
    pub fn patch_columns(&self) -> usize {
        3 * (FRAMES * PATCH * PATCH) as usize
    }

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut specs = Specs::default();
        let mut columns = 3;
        for (layer, fold) in FOLDS.iter().enumerate() {
            specs.linear(&linear(layer), fold.out, fold.side * fold.side * columns, false);
            specs.rms_norm(&norm(layer), fold.out);
            columns = fold.out;
        }
        specs.linear(&linear(FOLDS.len()), self.out_hidden, FRAMES as usize * columns, false);
        specs.rms_norm("final_norm", self.out_hidden);
        specs.into_vec()
    }
}

/// Name of the linear layer `layer`.
pub fn linear(layer: usize) -> String {
    format!("layers.linear_{layer}")
}

/// Name of the norm behind it.
pub fn norm(layer: usize) -> String {
    format!("layers.norm_{layer}")
}
