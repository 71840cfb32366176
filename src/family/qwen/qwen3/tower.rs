//! The tower of Qwen3-VL and Qwen3.5.

use super::super::vit::NORM_EPS;
use super::Qwen3;
use crate::Result;
use crate::family::parts::{Block, Mlp, NormPlace, PatchMerger, Residual, TowerLayout, position_table};
use crate::family::{Deepstack, Grid, Loader, Outputs};
use crate::torch::ops::{Activation, Linear, cat};
use crate::torch::{Device, Tensor};

pub struct Tower {
    config: Qwen3,
    device: Device,
    patch_embed: Linear,
    /// Learned positions, [side * side, hidden].
    positions: Tensor,
    blocks: Vec<Block>,
    merger: PatchMerger,
    /// One for each level of deepstack.
    level_mergers: Vec<PatchMerger>,
}

impl Tower {
    pub fn load(config: &Qwen3, loader: &Loader<'_>) -> Result<Self> {
        let vit = &config.vit;
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{index}.{part}");
            Ok(Block {
                norm1: loader.layer_norm(&name("norm1"), NORM_EPS)?.into(),
                attention: vit.attention(index, loader)?,
                norm2: loader.layer_norm(&name("norm2"), NORM_EPS)?.into(),
                mlp: Mlp::plain(
                    loader.linear(&name("mlp.linear_fc1"), true)?,
                    Activation::GeluTanh,
                    loader.linear(&name("mlp.linear_fc2"), true)?,
                ),
            })
        };
        let merger = |name: &str, place: NormPlace| -> Result<PatchMerger> {
            Ok(PatchMerger {
                norm: loader.layer_norm(&format!("{name}.norm"), NORM_EPS)?.into(),
                place,
                patches: vit.merged_patches(),
                fc1: loader.linear(&format!("{name}.linear_fc1"), true)?,
                fc2: loader.linear(&format!("{name}.linear_fc2"), true)?,
            })
        };
        let level = |index| merger(&format!("deepstack_merger_list.{index}"), NormPlace::Joined);
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.linear("patch_embed.proj", true)?,
            positions: loader.tensor("pos_embed.weight")?,
            blocks: (0..vit.depth).map(block).collect::<Result<_>>()?,
            merger: merger("merger", NormPlace::Patch)?,
            level_mergers: (0..config.levels.len()).map(level).collect::<Result<_>>()?,
        })
    }

    /// The patch embedding plus the learned positions, interpolated to each grid.
    fn embed(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let x = self.patch_embed.forward(pixels)?;
        let taps = position_table::aligned_bilinear(grids, self.config.vit.merge, self.config.table_side);
        TowerLayout::add_positions(&x, &self.positions, &taps, self.device)
    }

    /// The main embeddings [rows, columns] and those of each level of deepstack in the form that was asked for.
    fn outputs(&self, main: Tensor, levels: &[Tensor]) -> Result<Outputs> {
        if levels.is_empty() {
            return Ok(main.into());
        }
        if self.config.deepstack == Deepstack::Concatenated {
            let parts: Vec<&Tensor> = std::iter::once(&main).chain(levels).collect();
            return Ok(cat(&parts, 1)?.into());
        }
        let shape = main.shape()?;
        let [rows, columns] = shape[..] else {
            return Err(crate::Error::internal("embeddings must be a matrix"));
        };
        let stacked = cat(&levels.iter().collect::<Vec<_>>(), 0)?.reshape(&[levels.len(), rows, columns])?;
        Ok(Outputs { embeddings: main, extra: vec![("deepstack", stacked)] })
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let (rotary, segments) = self.config.vit.layout(grids, self.device)?;
        let mut mergers = self.config.levels.iter().zip(&self.level_mergers).peekable();
        let mut levels = Vec::with_capacity(self.level_mergers.len());
        let mut x = Residual::new(self.embed(pixels, grids)?, self.device);
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(x, Some(&rotary), &segments)?;
            if let Some((_, merger)) = mergers.next_if(|(level, _)| **level == index) {
                levels.push(merger.forward(x.settle()?)?);
            }
        }
        self.outputs(self.merger.forward(x.settle()?)?, &levels)
    }
}
