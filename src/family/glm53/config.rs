//! `vision_config` of GLM-5.3-Flash, and the tensors that follow from it.

use crate::Result;
use crate::checkpoint::{Node, TensorSpec};
use crate::family::parts::rotary;
use crate::family::parts::sizes::{self, MAX_DEPTH, MAX_WIDTH};

/// What the tower is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub depth: usize,
    pub hidden: usize,
    pub heads: usize,
    pub intermediate: usize,
    pub out_hidden: usize,
    /// Width of the merger's gated layer.
    pub projection: usize,
    pub patch: u32,
    pub frames: u32,
    pub merge: u32,
    /// Clamp of gate and up projections.
    pub swiglu_limit: f64,
    pub norm_eps: f64,
    /// Whether the linears of the blocks have biases.
    pub biases: bool,
    pub rope_theta: f64,
}

impl VisionConfig {
    /// Reads and checks `vision_config` of a config.json.
    pub fn read(config: Node<'_>) -> Result<Self> {
        let node = config.object("vision_config")?;
        if let Some(seen) = node.opt_str("model_type")?
            && seen != "glm5_next_vision"
        {
            return Err(node.fault(format!("has model_type {seen:?}, not glm5_next_vision")));
        }
        let act = node.str("hidden_act")?;
        if act != "silu" {
            return Err(node.fault(format!("has hidden_act {act:?}: only silu is supported")));
        }
        node.u32_or("in_channels", 3, 3..=3)?;
        node.f64_or("attention_dropout", 0.0, 0.0..=0.0)?;
        let width = 1..=MAX_WIDTH;
        let intermediate = node.u32("intermediate_size", width.clone())?;
        let this = Self {
            depth: node.u32("depth", 1..=MAX_DEPTH)? as usize,
            hidden: node.u32("hidden_size", width.clone())? as usize,
            heads: node.u32("num_heads", 1..=1024)? as usize,
            intermediate: intermediate as usize,
            out_hidden: node.u32("out_hidden_size", width.clone())? as usize,
            projection: node.u32_or("projection_intermediate_size", intermediate, width)? as usize,
            patch: node.u32("patch_size", 1..=256)?,
            frames: node.u32("temporal_patch_size", 1..=16)?,
            merge: node.u32("spatial_merge_size", 1..=16)?,
            swiglu_limit: node.f64_or("swiglu_limit", 10.0, 1e-6..=1e6)?,
            norm_eps: node.f64_or("rms_norm_eps", 1e-5, 1e-12..=1.0)?,
            biases: node.bool_or("attention_bias", true)?,
            rope_theta: rotary::theta(node)?,
        };
        sizes::head_dim(node, this.hidden as u32, this.heads as u32, 4)?;
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

    /// Every tensor of the tower.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let (w, i, o, m) = (self.hidden, self.intermediate, self.out_hidden, self.merge as usize);
        let (p, f) = (self.patch as usize, self.frames as usize);
        let mut specs = vec![
            TensorSpec::new("patch_embed.proj.weight", [w, 3, f, p, p]),
            TensorSpec::new("patch_embed.proj.bias", [w]),
            TensorSpec::new("post_layernorm.weight", [w]),
            TensorSpec::new("downsample.weight", [o, w, m, m]),
            TensorSpec::new("downsample.bias", [o]),
            TensorSpec::new("merger.proj.weight", [o, o]),
            TensorSpec::new("merger.post_projection_norm.weight", [o]),
            TensorSpec::new("merger.post_projection_norm.bias", [o]),
            TensorSpec::new("merger.gate_proj.weight", [self.projection, o]),
            TensorSpec::new("merger.up_proj.weight", [self.projection, o]),
            TensorSpec::new("merger.down_proj.weight", [o, self.projection]),
        ];
        for block in 0..self.depth {
            let mut tensor = |part: &str, shape: &[usize]| {
                specs.push(TensorSpec::new(format!("blocks.{block}.{part}"), shape));
            };
            for norm in ["norm1.weight", "norm2.weight"] {
                tensor(norm, &[w]);
            }
            for norm in ["attn.q_norm.weight", "attn.k_norm.weight"] {
                tensor(norm, &[self.head_dim()]);
            }
            for (name, out, input) in [
                ("attn.qkv", 3 * w, w),
                ("attn.proj", w, w),
                ("mlp.gate_proj", i, w),
                ("mlp.up_proj", i, w),
                ("mlp.down_proj", w, i),
            ] {
                tensor(&format!("{name}.weight"), &[out, input]);
                if self.biases {
                    tensor(&format!("{name}.bias"), &[out]);
                }
            }
        }
        specs
    }
}
