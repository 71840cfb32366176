//! The tower of Qwen2.5-VL.

use super::super::vit::NORM_EPS;
use super::Qwen25;
use crate::Result;
use crate::family::parts::{Block, Mlp, NormPlace, PatchMerger, Residual, TowerLayout, Windows};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, Linear, RotaryPairs, Segments, index_rows};
use crate::torch::{Device, Tensor};

pub struct Tower {
    config: Qwen25,
    device: Device,
    patch_embed: Linear,
    blocks: Vec<Block>,
    merger: PatchMerger,
}

impl Tower {
    pub fn load(config: &Qwen25, loader: &Loader<'_>) -> Result<Self> {
        let vit = &config.vit;
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{index}.{part}");
            let gate_up = loader.linear_cat(&[&name("mlp.gate_proj"), &name("mlp.up_proj")], true)?;
            Ok(Block {
                norm1: loader.rms_norm(&name("norm1"), NORM_EPS)?.into(),
                attention: vit.attention(index, loader)?,
                norm2: loader.rms_norm(&name("norm2"), NORM_EPS)?.into(),
                mlp: Mlp::gated(gate_up, Activation::Silu, loader.linear(&name("mlp.down_proj"), true)?),
            })
        };
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.linear("patch_embed.proj", false)?,
            blocks: (0..vit.depth).map(block).collect::<Result<_>>()?,
            merger: PatchMerger {
                norm: loader.rms_norm("merger.ln_q", NORM_EPS)?.into(),
                place: NormPlace::Patch,
                patches: vit.merged_patches(),
                fc1: loader.linear("merger.mlp.0", true)?,
                fc2: loader.linear("merger.mlp.2", true)?,
            },
        })
    }

    fn index(&self, index: &[i64]) -> Result<Tensor> {
        Tensor::from_slice_on(index, &[index.len()], self.device)
    }
}

impl crate::family::Tower for Tower {
    /// Between patch embedding and merger the rows stand in the order of their windows, token by token.
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let Qwen25 { vit, window, full, .. } = &self.config;
        let patches = vit.merged_patches();
        let windows = Windows::partition(grids, vit.merge, *window);
        let windowed = Segments::from_lengths(windows.lengths.iter().map(|tokens| tokens * patches))?;
        let frames = TowerLayout::frame_segments(grids)?;
        let angles = vit.angles(grids).regrouped(&windows.order, patches);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Halves, self.device)?;

        let (tokens, rows) = (windows.order.len(), frames.rows());
        let joined = self.patch_embed.forward(pixels)?.reshape(&[tokens, vit.merged()])?;
        let mut x = Residual::new(
            index_rows(&joined, &self.index(&windows.order)?)?.reshape(&[rows, vit.hidden])?,
            self.device,
        );
        for (block, &full) in self.blocks.iter().zip(full) {
            x = block.forward(x, Some(&rotary), if full { &frames } else { &windowed })?;
        }
        Ok(index_rows(&self.merger.forward(x.settle()?)?, &self.index(&windows.inverse())?)?.into())
    }
}
