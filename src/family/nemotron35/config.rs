//! The configuration of Nemotron 3.5's RADIO tower and projector.

use crate::Result;
use crate::checkpoint::Node;
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_HEADS, MAX_WIDTH};

/// The only downsampling ratio there is: tokens of two by two patches.
const RATIO: f64 = 0.5;
/// Side of the block of patches that becomes one token.
pub const MERGE: u32 = 2;
/// Longest side of the table of positions, in patches.
const MAX_TABLE_SIDE: u32 = 1 << 10;
/// Class and register rows ahead of the patches.
const MAX_PREFIX_ROWS: u32 = 1 << 10;

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: usize,
    pub hidden: usize,
    pub heads: usize,
    pub head_dim: usize,
    /// Width of the perceptrons of the blocks.
    pub intermediate: usize,
    pub norm_eps: f64,
    pub biases: bool,
    pub patch: u32,
    /// Side of the learned square table of positions.
    pub table_side: u32,
    /// Rows ahead of the patches.
    pub prefix: usize,
    /// Whether a layer norm stands between tower and projector.
    pub final_norm: bool,
    /// Inner width of the projector.
    pub projection: usize,
    pub out_hidden: usize,
}

impl VisionConfig {
    /// Reads and checks config.json; absent keys have the values of transformers' classes, which are the release's.
    pub fn read(config: Node<'_>) -> Result<Self> {
        check_ratio(config)?;
        let node = config.object("vision_config")?;
        if node.get("model_type").is_some() {
            node.opt_choice("model_type", &["radio"])?;
        }
        node.opt_choice("hidden_act", &["gelu"])?;
        node.u32_or("num_channels", 3, 3..=3)?;
        node.f64_or("layerscale_value", 1.0, 1.0..=1.0)?;
        if node.bool_or("use_swiglu_ffn", false)? {
            return Err(node.fault("has use_swiglu_ffn true: only the plain perceptron is supported"));
        }
        let hidden = node.u32("hidden_size", 1..=MAX_WIDTH)?;
        let heads = node.u32_or("num_attention_heads", 16, 1..=MAX_HEADS)?;
        for key in ["vision_hidden_size", "vit_hidden_size"] {
            config.u32_or(key, hidden, hidden..=hidden)?;
        }
        let patch = node.u32("patch_size", 1..=256)?;
        let table = node.u32_or("max_img_size", 2048, patch..=MAX_TABLE_SIDE * patch)?;
        if !table.is_multiple_of(patch) {
            return Err(node.fault(format!("has max_img_size {table}, not a multiple of patch_size {patch}")));
        }
        // The released name, and the one that transformers prefers.
        let text = if config.get("text_config").is_some() { "text_config" } else { "llm_config" };
        let text = config.object(text)?;
        let ratio = node.f64_or("mlp_ratio", 4.0, 0.1..=64.0)?;
        let rows = |key, default| node.u32_or(key, default, 0..=MAX_PREFIX_ROWS);
        Ok(Self {
            depth: node.u32_or("num_hidden_layers", 32, 1..=MAX_DEPTH)? as usize,
            hidden: hidden as usize,
            heads: heads as usize,
            head_dim: sizes::head_dim(node, hidden, heads, 1)?,
            intermediate: (f64::from(hidden) * ratio) as usize,
            norm_eps: node.f64_or("layer_norm_eps", 1e-6, 1e-12..=1.0)?,
            biases: node.bool_or("qkv_bias", true)?,
            patch,
            table_side: table / patch,
            prefix: (rows("num_cls_tokens", 3)? + rows("num_registers", 7)?) as usize,
            final_norm: text.u32_or("num_nextn_predict_layers", 0, 0..=1024)? > 0,
            projection: config.u32("projector_hidden_size", 1..=MAX_WIDTH)? as usize,
            out_hidden: text.u32("hidden_size", 1..=MAX_WIDTH)? as usize,
        })
    }

    /// Samples of one patch.
    pub fn patch_columns(&self) -> usize {
        3 * (self.patch * self.patch) as usize
    }

    /// Width of the patches of one token side by side.
    pub fn merged(&self) -> usize {
        self.hidden * (MERGE * MERGE) as usize
    }
}

/// Refuses a `downsample_ratio` other than the only one, or none.
pub fn check_ratio(node: Node<'_>) -> Result<()> {
    node.f64("downsample_ratio", RATIO..=RATIO).map(|_| ())
}
