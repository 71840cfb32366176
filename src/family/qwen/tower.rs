//! The vision tower of Qwen3.5: a ViT with learned and rotary positions and a 2x2 patch merger.

use super::config::VisionConfig;
use crate::Result;
use crate::family::parts::{TowerLayout, position_table, rotary};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{
    Activation, LayerNorm, Linear, Rotary, RotaryPairs, Segments, add_interpolated, attention,
};
use crate::torch::{Device, Tensor};

const NORM_EPS: f64 = 1e-6;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    /// Learned positions, [side * side, hidden].
    positions: Tensor,
    blocks: Vec<Block>,
    merger: Merger,
}

struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

struct Merger {
    norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Tower {
    pub fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{index}.{part}");
            Ok(Block {
                norm1: loader.layer_norm(&name("norm1"), NORM_EPS)?,
                qkv: loader.linear(&name("attn.qkv"), true)?,
                proj: loader.linear(&name("attn.proj"), true)?,
                norm2: loader.layer_norm(&name("norm2"), NORM_EPS)?,
                fc1: loader.linear(&name("mlp.linear_fc1"), true)?,
                fc2: loader.linear(&name("mlp.linear_fc2"), true)?,
            })
        };
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.linear("patch_embed.proj", true)?,
            positions: loader.tensor("pos_embed.weight")?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            merger: Merger {
                norm: loader.layer_norm("merger.norm", NORM_EPS)?,
                fc1: loader.linear("merger.linear_fc1", true)?,
                fc2: loader.linear("merger.linear_fc2", true)?,
            },
        })
    }

    /// The patch embedding plus the learned positions, interpolated to each grid.
    fn embed(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let x = self.patch_embed.forward(pixels)?;
        let taps = position_table::aligned_bilinear(grids, self.config.merge, self.config.table_side);
        let shape = [4, taps.index.len() / 4];
        let index = Tensor::from_slice(&taps.index, &shape)?.to_device(Device::Cpu, self.device)?;
        let weight = Tensor::from_slice(&taps.weight, &shape)?.to_device(Device::Cpu, self.device)?;
        add_interpolated(&x, &self.positions, &index, &weight)
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let config = &self.config;
        let angles = rotary::axial(grids, config.merge, config.head_dim(), config.rope_theta);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Halves, self.device)?;
        let segments = TowerLayout::frame_segments(grids)?;
        let mut x = self.embed(pixels, grids)?;
        for block in &self.blocks {
            x = block.forward(&x, config, &rotary, &segments)?;
        }
        Ok(Outputs { embeddings: self.merger.forward(&x, config)?, extra: Vec::new() })
    }
}

impl Block {
    fn forward(
        &self,
        x: &Tensor,
        config: &VisionConfig,
        rotary: &Rotary,
        segments: &Segments,
    ) -> Result<Tensor> {
        let (heads, dim) = (config.heads, config.head_dim());
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let mut qkv = qkv.reshape(&[segments.rows(), 3, heads, dim])?;
        rotary.apply(&mut qkv, None)?;
        let mixed = attention(&qkv, segments, (dim as f64).powf(-0.5))?;
        let x = self.proj.added_to(x, &mixed)?;
        let inner = self.fc1.activated(&self.norm2.forward(&x)?, Activation::GeluTanh)?;
        self.fc2.added_to(&x, &inner)
    }
}

impl Merger {
    /// Norm per patch, then the patches of one block side by side through two layers.
    fn forward(&self, x: &Tensor, config: &VisionConfig) -> Result<Tensor> {
        let normed = self.norm.forward(x)?;
        let rows = normed.shape()?.first().copied().unwrap_or(0) / (config.merge * config.merge) as usize;
        let joined = normed.reshape(&[rows, config.merged()])?;
        self.fc2.forward(&self.fc1.activated(&joined, Activation::Gelu)?)
    }
}
