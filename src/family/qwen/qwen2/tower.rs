//! The tower of Qwen2-VL.

use super::super::vit::NORM_EPS;
use super::{Qwen2, Vit};
use crate::Result;
use crate::family::parts::{Block, Mlp, NormPlace, PatchMerger, Residual};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, Linear};
use crate::torch::{Device, Tensor};

pub struct Tower {
    vit: Vit,
    device: Device,
    patch_embed: Linear,
    blocks: Vec<Block>,
    merger: PatchMerger,
}

impl Tower {
    pub fn load(config: &Qwen2, loader: &Loader<'_>) -> Result<Self> {
        let vit = config.vit.clone();
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{index}.{part}");
            Ok(Block {
                norm1: loader.layer_norm(&name("norm1"), NORM_EPS)?.into(),
                attention: vit.attention(index, loader)?,
                norm2: loader.layer_norm(&name("norm2"), NORM_EPS)?.into(),
                mlp: Mlp::plain(
                    loader.linear(&name("mlp.fc1"), true)?,
                    Activation::QuickGelu,
                    loader.linear(&name("mlp.fc2"), true)?,
                ),
            })
        };
        Ok(Self {
            device: loader.device(),
            patch_embed: loader.linear("patch_embed.proj", false)?,
            blocks: (0..vit.depth).map(block).collect::<Result<_>>()?,
            merger: PatchMerger {
                norm: loader.layer_norm("merger.ln_q", NORM_EPS)?.into(),
                place: NormPlace::Patch,
                patches: vit.merged_patches(),
                fc1: loader.linear("merger.mlp.0", true)?,
                fc2: loader.linear("merger.mlp.2", true)?,
            },
            vit,
        })
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let (rotary, segments) = self.vit.layout(grids, self.device)?;
        let mut x = Residual::new(self.patch_embed.forward(pixels)?, self.device);
        for block in &self.blocks {
            x = block.forward(x, Some(&rotary), &segments)?;
        }
        Ok(self.merger.forward(x.settle()?)?.into())
    }
}
