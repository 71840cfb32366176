//! `vision_config` of Qwen3.5, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};

/// Bounds on sizes in a configuration; far above any released model.
const MAX_WIDTH: u32 = 1 << 16;
const MAX_DEPTH: u32 = 512;
const MAX_SIDE: u32 = 1 << 10;

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: usize,
    pub hidden: usize,
    pub heads: usize,
    pub intermediate: usize,
    pub out_hidden: usize,
    /// Side of the learned square table of positions.
    pub table_side: u32,
    pub patch: u32,
    pub frames: u32,
    pub merge: u32,
    pub rope_theta: f64,
}

impl VisionConfig {
    /// Reads and checks `vision_config` of a config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        if let Some(seen) = node.opt_str("model_type")? {
            let known = ["qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"];
            if !known.contains(&seen) {
                return Err(node
                    .fault(format!("has model_type {seen:?}, not one of Qwen3.5's: {}", known.join(", "))));
            }
        }
        let act = node.str("hidden_act")?;
        if act != "gelu_pytorch_tanh" {
            return Err(node.fault(format!("has hidden_act {act:?}: only gelu_pytorch_tanh is supported")));
        }
        node.u32_or("in_channels", 3, 3..=3)?;
        if node.get("deepstack_visual_indexes").is_some()
            && !node.items("deepstack_visual_indexes", 0..=64)?.is_empty()
        {
            return Err(node.fault("has deepstack_visual_indexes, which no Qwen3.5 tower has"));
        }
        let width = 1..=MAX_WIDTH;
        let positions = node.u32("num_position_embeddings", 1..=MAX_SIDE * MAX_SIDE)?;
        let table_side = positions.isqrt();
        if table_side * table_side != positions {
            return Err(node.fault(format!("has num_position_embeddings {positions}, which is not a square")));
        }
        let this = Self {
            depth: node.u32("depth", 1..=MAX_DEPTH)? as usize,
            hidden: node.u32("hidden_size", width.clone())? as usize,
            heads: node.u32("num_heads", 1..=1024)? as usize,
            intermediate: node.u32("intermediate_size", width.clone())? as usize,
            out_hidden: node.u32("out_hidden_size", width)? as usize,
            table_side,
            patch: node.u32("patch_size", 1..=256)?,
            frames: node.u32("temporal_patch_size", 1..=16)?,
            merge: node.u32("spatial_merge_size", 1..=16)?,
            rope_theta: super::super::parts::rotary::theta(node)?,
        };
        if !this.hidden.is_multiple_of(this.heads) || !(this.hidden / this.heads).is_multiple_of(4) {
            return Err(node.fault(format!(
                "has hidden_size {} and num_heads {}: a head's width must be a whole multiple of 4",
                this.hidden, this.heads
            )));
        }
        Ok(this)
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Samples of one patch: three channels, all frames.
    pub fn patch_columns(&self) -> usize {
        3 * self.frames as usize * (self.patch * self.patch) as usize
    }

    /// Width of the patches that merge into one token, side by side.
    pub fn merged(&self) -> usize {
        self.hidden * (self.merge * self.merge) as usize
    }

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (w, i, m) = (self.hidden, self.intermediate, self.merged());
        let (p, f) = (self.patch as usize, self.frames as usize);
        let mut specs = vec![
            TensorSpec::new("patch_embed.proj.weight", [w, 3, f, p, p]),
            TensorSpec::new("patch_embed.proj.bias", [w]),
            TensorSpec::new("pos_embed.weight", [(self.table_side * self.table_side) as usize, w]),
            TensorSpec::new("merger.norm.weight", [w]),
            TensorSpec::new("merger.norm.bias", [w]),
        ];
        let mut linear = |name: String, out: usize, input: usize| {
            specs.push(TensorSpec::new(format!("{name}.weight"), [out, input]));
            specs.push(TensorSpec::new(format!("{name}.bias"), [out]));
        };
        linear("merger.linear_fc1".into(), m, m);
        linear("merger.linear_fc2".into(), self.out_hidden, m);
        for block in 0..self.depth {
            linear(format!("blocks.{block}.attn.qkv"), 3 * w, w);
            linear(format!("blocks.{block}.attn.proj"), w, w);
            linear(format!("blocks.{block}.mlp.linear_fc1"), i, w);
            linear(format!("blocks.{block}.mlp.linear_fc2"), w, i);
        }
        for block in 0..self.depth {
            for norm in ["norm1", "norm2"] {
                specs.push(TensorSpec::new(format!("blocks.{block}.{norm}.weight"), [w]));
                specs.push(TensorSpec::new(format!("blocks.{block}.{norm}.bias"), [w]));
            }
        }
        specs
    }
}
