//! The vision tower of Muse: a ViT with learned and rotary positions whose attention sees windows in most blocks, and an
//! adapter over blocks of patches.

use super::config::VisionConfig;
use crate::Result;
use crate::family::parts::position_table::{Alignment, taps};
use crate::family::parts::{Block, Mlp, Residual, SelfAttention, TowerLayout, Windows, patch_grid, rotary};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, LayerNorm, Linear, RmsNorm, RotaryPairs, Rounding, Segments, activate};
use crate::torch::{Device, Tensor};

/// Epsilon of the norms in the blocks.
const BLOCK_NORM_EPS: f64 = 1e-5;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    /// Learned positions, [side * side, hidden].
    positions: Tensor,
    norm_pre: LayerNorm,
    blocks: Vec<Block>,
    norm_post: LayerNorm,
    adapter: Mlp,
    projection: Linear,
    norm_out: RmsNorm,
}

impl Tower {
    pub fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("vision_tower.layers.{index}.{part}");
            let parts = ["attn.q_proj", "attn.k_proj", "attn.v_proj"].map(name);
            Ok(Block {
                norm1: loader.layer_norm(&name("norm1"), BLOCK_NORM_EPS)?.into(),
                attention: SelfAttention {
                    qkv: loader.linear_cat(&parts.each_ref().map(String::as_str), true)?,
                    qk_norm: None,
                    proj: loader.linear(&name("attn.proj"), true)?,
                    heads: config.heads,
                    dim: config.head_dim,
                    rounding: Rounding::Fused,
                },
                norm2: loader.layer_norm(&name("norm2"), BLOCK_NORM_EPS)?.into(),
                mlp: Mlp::plain(
                    loader.linear(&name("mlp.fc1"), true)?,
                    Activation::Gelu,
                    loader.linear(&name("mlp.fc2"), true)?,
                ),
            })
        };
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.linear("vision_tower.patch_embedder.patch_embedding", false)?,
            positions: loader.tensor("vision_tower.patch_embedder.position_embedding_table.weight")?,
            norm_pre: loader.layer_norm("vision_tower.ln_pre", config.norm_eps)?,
            blocks: (0..config.full.len()).map(block).collect::<Result<_>>()?,
            norm_post: loader.layer_norm("vision_tower.ln_post", config.norm_eps)?,
            adapter: adapter(config, loader)?,
            projection: loader.linear("vision_projection", false)?,
            norm_out: RmsNorm { weight: None, eps: config.out_eps },
        })
    }

    /// Patch embeddings plus positions.
    ///
    /// The patch at (row, column) does not read there: upstream walks a grid of swapped sides in raster order, and the
    /// models were trained so. In a square grid that is the transposed place.
    fn embed(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let side = self.config.table_side;
        let mut places = Vec::new();
        for grid in grids {
            let along = |position, length| Alignment::CentersInNothing.between(position, length, side);
            let walk = (0..grid.width).flat_map(|y| (0..grid.height).map(move |x| (y, x)));
            places.extend(walk.map(|(y, x)| (along(y, grid.width), along(x, grid.height))));
        }
        let x = self.patch_embed.forward(pixels)?;
        TowerLayout::add_positions(&x, &self.positions, &taps(side, places.into_iter()), self.device)
    }
}

/// The two layers behind the blocks. Upstream's first takes the patches of a token channel by channel, ours patch by
/// patch: its columns are put in that order once.
fn adapter(config: &VisionConfig, loader: &Loader<'_>) -> Result<Mlp> {
    let (out, hidden, block) = (config.projection, config.hidden, config.block());
    let weight = loader.stored("vision_adapter.fc1.weight")?.reshape(&[out, hidden, block])?;
    let weight = weight.permute(&[0, 2, 1])?.reshape(&[out, block * hidden])?;
    let down = loader.linear("vision_adapter.fc2", false)?;
    Ok(Mlp::plain(loader.linear_of(weight, None)?, Activation::Gelu, down))
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let config = &self.config;
        let windows = Windows::partition(grids, 1, config.table_side);
        let angles = rotary::column_first(grids, config.head_dim, config.rope_theta);
        let angles = angles.regrouped(&windows.order, 1);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Halves, self.device)?;
        let whole = TowerLayout::frame_segments(grids)?;
        let parts = Segments::from_lengths(windows.lengths.iter().copied())?;
        let x = self.norm_pre.forward(&self.embed(pixels, grids)?)?;
        let mut x = Residual::new(TowerLayout::picked(&x, &windows.order, self.device)?, self.device);
        for (block, &full) in self.blocks.iter().zip(&config.full) {
            x = block.forward(x, Some(&rotary), if full { &whole } else { &parts })?;
        }
        // Out of the windows, the patches of a token side by side.
        let places = windows.inverse();
        let rows: Vec<i64> = patch_grid::block_rows(grids, config.merge, 0)
            .into_iter()
            .map(|patch| places.get(patch as usize).copied().unwrap_or(0))
            .collect();
        let x = TowerLayout::picked(&self.norm_post.forward(x.settle()?)?, &rows, self.device)?;
        let joined = x.reshape(&[rows.len() / config.block(), config.block() * config.hidden])?;
        let adapted = activate(&self.adapter.forward(&joined)?, Activation::Gelu)?;
        Ok(self.norm_out.forward(&self.projection.forward(&adapted)?)?.into())
    }
}
