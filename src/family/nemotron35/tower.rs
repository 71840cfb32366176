//! The vision tower of Nemotron 3.5: RADIO, a ViT with class and register rows and a cropped table of positions, and a
//! projector over blocks of two by two patches.

use super::config::{MERGE, VisionConfig};
use super::names::{layer_scale, radio};
use crate::Result;
use crate::family::parts::position_table::{Alignment, taps};
use crate::family::parts::{Block, Mlp, Residual, SelfAttention, TowerLayout, patch_grid};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, LayerNorm, Linear, RmsNorm, Rounding, Segments, cat};
use crate::torch::{Device, Tensor};

const PROJECTOR_NORM_EPS: f64 = 1e-5;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    /// Learned positions, [side * side, hidden].
    positions: Tensor,
    /// Class and register rows, [prefix, hidden].
    prefix: Option<Tensor>,
    blocks: Vec<Block>,
    final_norm: Option<LayerNorm>,
    projector_norm: RmsNorm,
    projector: Mlp,
}

impl Tower {
    pub fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let block = |index: usize| -> Result<Block> {
            for scale in [1, 2].map(|scale| layer_scale(index, scale)) {
                if loader.has(&scale) {
                    loader.check_ones(&scale)?;
                }
            }
            let name = |part: &str| radio(&format!("blocks.{index}.{part}"));
            Ok(Block {
                norm1: loader.layer_norm(&name("norm1"), config.norm_eps)?.into(),
                attention: SelfAttention {
                    qkv: loader.precise_linear(&name("attn.qkv"), config.biases)?,
                    qk_norm: None,
                    proj: loader.precise_linear(&name("attn.proj"), true)?,
                    heads: config.heads,
                    dim: config.head_dim,
                    rounding: Rounding::Fused,
                },
                norm2: loader.layer_norm(&name("norm2"), config.norm_eps)?.into(),
                mlp: Mlp::plain(
                    loader.precise_linear(&name("mlp.fc1"), true)?,
                    Activation::Gelu,
                    loader.precise_linear(&name("mlp.fc2"), true)?,
                ),
            })
        };
        let entries = (config.table_side * config.table_side) as usize;
        let prefix = || loader.tensor(&radio("patch_generator.cls_token.token"));
        let final_norm = || loader.layer_norm("vision_projector.vision_final_layernorm", config.norm_eps);
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.precise_linear(&radio("patch_generator.embedder"), false)?,
            positions: loader
                .tensor(&radio("patch_generator.pos_embed"))?
                .reshape(&[entries, config.hidden])?,
            prefix: (config.prefix > 0).then(prefix).transpose()?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            final_norm: config.final_norm.then(final_norm).transpose()?,
            projector_norm: loader.rms_norm("mlp1.0", PROJECTOR_NORM_EPS)?,
            projector: Mlp::plain(
                loader.precise_linear("mlp1.1", false)?,
                Activation::ReluSquared,
                loader.precise_linear("mlp1.3", false)?,
            ),
        })
    }

    /// Patch embeddings plus positions. The table is stretched to a square of the longer side and cropped to the grid:
    /// only what the crop keeps is ever read.
    fn embed(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let side = self.config.table_side;
        let mut places = Vec::new();
        for grid in grids {
            let longer = grid.height.max(grid.width);
            let along = |position| Alignment::Centers.between(position, longer, side);
            places.extend(patch_grid::block_order(*grid, 1).map(|(y, x)| (along(y), along(x))));
        }
        let x = self.patch_embed.forward(pixels)?;
        TowerLayout::add_positions(&x, &self.positions, &taps(side, places.into_iter()), self.device)
    }

    /// The sequences of all images, each with the prefix rows ahead of its patches.
    fn sequences(&self, x: Tensor, grids: &[Grid]) -> Result<Tensor> {
        let Some(prefix) = &self.prefix else { return Ok(x) };
        let mut rows = Vec::new();
        let mut first = 0;
        for grid in grids {
            rows.push(prefix.share()?);
            rows.push(x.rows(first, first + grid.patches())?);
            first += grid.patches();
        }
        cat(&rows.iter().collect::<Vec<_>>(), 0)
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let config = &self.config;
        let segments = Segments::from_lengths(grids.iter().map(|grid| config.prefix + grid.patches()))?;
        let mut x = Residual::new(self.sequences(self.embed(pixels, grids)?, grids)?, self.device);
        for block in &self.blocks {
            x = block.forward(x, None, &segments)?;
        }
        // The prefix rows end here; the patches of a token come side by side.
        let rows = patch_grid::block_rows(grids, MERGE, config.prefix);
        let mut x = TowerLayout::picked(x.settle()?, &rows, self.device)?;
        if let Some(norm) = &self.final_norm {
            x = norm.forward(&x)?;
        }
        let tokens = rows.len() / (MERGE * MERGE) as usize;
        let joined = self.projector_norm.forward(&x.reshape(&[tokens, config.merged()])?)?;
        Ok(self.projector.forward(&joined)?.into())
    }
}
