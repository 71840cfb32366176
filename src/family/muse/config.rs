//! The vision configuration of Muse Spark and Muse Glimmer, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_HEADS, MAX_WIDTH};
use crate::family::parts::{Specs, rotary};

/// Longest side of the table of positions, in patches.
const MAX_TABLE_SIDE: u32 = 1 << 10;

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub hidden: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    /// For each block, whether its attention sees the whole image instead of a window.
    pub full: Vec<bool>,
    /// Epsilon of the norms ahead of and behind the blocks.
    pub norm_eps: f64,
    pub patch: u32,
    pub frames: u32,
    pub merge: u32,
    /// Side of the table of positions, and of the windows, in patches.
    pub table_side: u32,
    pub rope_theta: f64,
    /// Inner width of the adapter.
    pub projection: usize,
    pub out_hidden: usize,
    /// Epsilon of the norm that closes the tower: the language model's.
    pub out_eps: f64,
}

impl VisionConfig {
    /// Reads and checks config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        node.opt_choice("hidden_act", &["gelu"])?;
        config.opt_choice("projector_hidden_act", &["gelu"])?;
        let hidden = node.u32("hidden_size", 1..=MAX_WIDTH)?;
        let heads = node.u32("num_attention_heads", 1..=MAX_HEADS)?;
        let depth = node.u32("num_hidden_layers", 1..=MAX_DEPTH)? as usize;
        let merge = node.u32_or("merge_size", 2, 1..=16)?;
        let merged = hidden * merge * merge;
        config.u32("out_hidden_size", merged..=merged)?;
        let table_side = node.u32_or("pos_emb_height", 32, 1..=MAX_TABLE_SIDE)?;
        node.u32_or("pos_emb_width", 32, table_side..=table_side)?;
        let kinds = ["window_attention", "full_attention"];
        let mut full = Vec::with_capacity(depth);
        // transformers and SGLang differ on what an absent list means: it must be there.
        for kind in node.items("layer_types", depth..=depth)? {
            match kind.as_str()? {
                "window_attention" => full.push(false),
                "full_attention" => full.push(true),
                _ => return Err(kind.wrong(format!("one of {}", kinds.join(", ")))),
            }
        }
        let text = config.object("text_config")?;
        let eps = 1e-12..=1.0;
        Ok(Self {
            hidden: hidden as usize,
            heads: heads as usize,
            head_dim: sizes::head_dim(node, hidden, heads, 4)?,
            intermediate: node.u32("intermediate_size", 1..=MAX_WIDTH)? as usize,
            full,
            norm_eps: node.f64_or("layer_norm_eps", 1e-5, eps.clone())?,
            patch: node.u32_or("patch_size", 14, 1..=256)?,
            frames: node.u32_or("patch_temporal", 2, 1..=16)?,
            merge,
            table_side,
            rope_theta: rotary::theta(node)?,
            projection: config.u32("projector_hidden_size", 1..=MAX_WIDTH)? as usize,
            out_hidden: text.u32("hidden_size", 1..=MAX_WIDTH)? as usize,
            out_eps: text.f64_or("rms_norm_eps", 1e-5, eps)?,
        })
    }

    /// Samples of one patch, all frames.
    pub fn patch_columns(&self) -> usize {
        3 * self.frames as usize * (self.patch * self.patch) as usize
    }

    /// Patches of one token.
    pub fn block(&self) -> usize {
        (self.merge * self.merge) as usize
    }

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (w, i) = (self.hidden, self.intermediate);
        let mut specs = Specs::default();
        specs.linear("vision_tower.patch_embedder.patch_embedding", w, self.patch_columns(), false);
        let entries = (self.table_side * self.table_side) as usize;
        specs.tensor("vision_tower.patch_embedder.position_embedding_table.weight", [entries, w]);
        specs.layer_norm("vision_tower.ln_pre", w);
        specs.layer_norm("vision_tower.ln_post", w);
        for block in 0..self.full.len() {
            let name = |part: &str| format!("vision_tower.layers.{block}.{part}");
            specs.layer_norm(&name("norm1"), w);
            for part in ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj"] {
                specs.linear(&name(part), w, w, true);
            }
            specs.layer_norm(&name("norm2"), w);
            specs.linear(&name("mlp.fc1"), i, w, true);
            specs.linear(&name("mlp.fc2"), w, i, true);
        }
        specs.linear("vision_adapter.fc1", self.projection, w * self.block(), false);
        specs.linear("vision_adapter.fc2", self.projection, self.projection, false);
        specs.linear("vision_projection", self.out_hidden, self.projection, false);
        specs.into_vec()
    }
}

/// Whether a tensor, without "model.", belongs to the language model or the audio tower.
pub fn of_others(name: &str) -> bool {
    !["vision_tower.", "vision_adapter.", "vision_projection."].iter().any(|start| name.starts_with(start))
}
