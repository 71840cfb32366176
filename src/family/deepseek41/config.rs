//! `vision_config` of DeepSeek-V4.1, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_HEADS, MAX_WIDTH};
use crate::family::parts::{Specs, rotary};

/// Longest side of the window of patches that becomes one token.
const MAX_RATIO: u32 = 16;

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: usize,
    pub hidden: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// Width of the gated layer.
    pub intermediate: usize,
    /// Width of the language model.
    pub out_hidden: usize,
    pub patch: u32,
    /// Side of the window of patches that becomes one token.
    pub ratio: u32,
    pub rope_theta: f64,
}

impl VisionConfig {
    /// Reads and checks `vision_config` of a config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        let kind = node.str("model_type")?;
        if kind != "deepseek_v41_vision" {
            return Err(node.fault(format!("has model_type {kind:?}, not deepseek_v41_vision")));
        }
        let hidden = node.u32("hidden_size", 1..=MAX_WIDTH)?;
        let heads = node.u32("num_attention_heads", 1..=MAX_HEADS)?;
        Ok(Self {
            depth: node.u32("num_hidden_layers", 1..=MAX_DEPTH)? as usize,
            hidden: hidden as usize,
            heads: heads as usize,
            head_dim: sizes::head_dim(node, hidden, heads, 4)?,
            intermediate: node.u32("intermediate_size", 1..=MAX_WIDTH)? as usize,
            out_hidden: config.object("text_config")?.u32("hidden_size", 1..=MAX_WIDTH)? as usize,
            patch: node.u32("patch_size", 1..=256)?,
            ratio: node.u32("downsample_ratio", 1..=MAX_RATIO)?,
            rope_theta: rotary::theta(node)?,
        })
    }

    /// Samples of one patch.
    pub fn patch_columns(&self) -> usize {
        3 * (self.patch * self.patch) as usize
    }

    /// Patches of one window.
    pub fn window(&self) -> usize {
        (self.ratio * self.ratio) as usize
    }

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (w, i, o) = (self.hidden, self.intermediate, self.out_hidden);
        let mut specs = Specs::default();
        specs.linear("vision.patch_embed.proj", w, self.patch_columns(), true);
        for block in 0..self.depth {
            let name = |part: &str| format!("vision.blocks.{block}.{part}");
            specs.rms_norm(&name("norm1"), w);
            specs.linear(&name("attn.wqkv"), 3 * w, w, true);
            specs.linear(&name("attn.wo"), w, w, true);
            specs.rms_norm(&name("norm2"), w);
            specs.linear(&name("mlp.w1"), 2 * i, w, false);
            specs.linear(&name("mlp.w2"), w, i, false);
        }
        specs.rms_norm("vision.norm", w);
        specs.linear("aligner.w1", o, w * self.window(), true);
        specs.linear("aligner.w2", o, o, true);
        for name in ["image_start", "image_end", "image_newline"] {
            specs.tensor(name, [o]);
        }
        specs.into_vec()
    }
}

/// Whether a tensor of the checkpoint belongs to the language model.
pub fn of_text(name: &str) -> bool {
    !["vision.", "aligner.", "image_"].iter().any(|start| name.starts_with(start))
}
