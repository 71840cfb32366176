//! The vision tower of GLM-5.3-Flash: a ViT with normed q and k, clamped gates, and a convolutional merger.

use super::config::VisionConfig;
use crate::Result;
use crate::family::parts::{Block, Mlp, Residual, SelfAttention, TowerLayout, rotary};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, LayerNorm, Linear, QkNorm, RmsNorm, RotaryPairs, Rounding, activate};
use crate::torch::{Device, Tensor};

/// The merger's layer norm has Torch's default, not `rms_norm_eps`.
const MERGER_NORM_EPS: f64 = 1e-5;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    blocks: Vec<Block>,
    post_norm: RmsNorm,
    merger: Merger,
}

struct Merger {
    downsample: Linear,
    proj: Linear,
    norm: LayerNorm,
    mlp: Mlp,
}

impl Tower {
    pub fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{index}.{part}");
            let rms = |part: &str| loader.rms_norm(&name(part), config.norm_eps);
            Ok(Block {
                norm1: rms("norm1")?.into(),
                attention: SelfAttention {
                    qkv: loader.linear(&name("attn.qkv"), config.biases)?,
                    qk_norm: Some(QkNorm {
                        q: loader.tensor(&name("attn.q_norm.weight"))?,
                        k: loader.tensor(&name("attn.k_norm.weight"))?,
                        eps: config.norm_eps,
                    }),
                    proj: loader.linear(&name("attn.proj"), config.biases)?,
                    heads: config.heads,
                    dim: config.head_dim(),
                    rounding: Rounding::Fused,
                },
                norm2: rms("norm2")?.into(),
                mlp: gated(&name("mlp"), config.biases, config, loader)?,
            })
        };
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.linear("patch_embed.proj", true)?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            post_norm: loader.rms_norm("post_layernorm", config.norm_eps)?,
            merger: Merger::load(config, loader)?,
        })
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let config = &self.config;
        let angles = rotary::axial(grids, config.merge, config.head_dim(), config.rope_theta);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Halves, self.device)?;
        let segments = TowerLayout::frame_segments(grids)?;
        let mut x = Residual::new(self.patch_embed.forward(pixels)?, self.device);
        for block in &self.blocks {
            x = block.forward(x, Some(&rotary), &segments)?;
        }
        Ok(self.merger.forward(&self.post_norm.forward(x.settle()?)?, config)?.into())
    }
}

/// The clamped gated SiLU under `name`.
fn gated(name: &str, biases: bool, config: &VisionConfig, loader: &Loader<'_>) -> Result<Mlp> {
    let (gate, up) = (format!("{name}.gate_proj"), format!("{name}.up_proj"));
    let gate_up = loader.linear_cat(&[&gate, &up], biases)?;
    let down = loader.linear(&format!("{name}.down_proj"), biases)?;
    Ok(Mlp::gated_within(gate_up, Activation::Silu, config.swiglu_limit, down))
}

impl Merger {
    fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        // A convolution whose stride is its kernel is a linear layer over the block's patches side by side:
        // [out, in, row, column] to [out, row, column, in].
        let kernel = loader.stored("downsample.weight")?.permute(&[0, 2, 3, 1])?;
        let block = (config.merge * config.merge) as usize * config.hidden;
        let flat = kernel.reshape(&[config.out_hidden, block])?;
        Ok(Self {
            downsample: loader.linear_of(flat, Some(loader.tensor("downsample.bias")?))?,
            proj: loader.linear("merger.proj", false)?,
            norm: loader.layer_norm("merger.post_projection_norm", MERGER_NORM_EPS)?,
            mlp: gated("merger", false, config, loader)?,
        })
    }

    fn forward(&self, x: &Tensor, config: &VisionConfig) -> Result<Tensor> {
        let block = (config.merge * config.merge) as usize;
        let rows = x.shape()?.first().copied().unwrap_or(0) / block;
        let joined = x.reshape(&[rows, block * config.hidden])?;
        let projected = self.proj.forward(&self.downsample.forward(&joined)?)?;
        self.mlp.forward(&activate(&self.norm.forward(&projected)?, Activation::Gelu)?)
    }
}
