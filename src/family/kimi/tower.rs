//! The vision tower and projector of Kimi: MoonViT with a resampled table of positions, joint attention over the
//! frames of a clip, and a merger behind their mean.

use super::config::{NormKind, Projector, VisionConfig};
use crate::Result;
use crate::family::parts::{
    Block, Mlp, Norm, NormPlace, PatchMerger, Residual, SelfAttention, TowerLayout, patch_grid, rotary,
};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{
    Activation, Interpolation, Linear, RotaryPairs, Rounding, add, add_interpolated, cat, index_rows,
    resample_table,
};
use crate::torch::{Device, Tensor};
use crate::{Dtype, Error};

const LAYER_NORM_EPS: f64 = 1e-5;
/// Float32's machine epsilon, which Torch takes where no epsilon is given, whatever the dtype.
const RMS_NORM_EPS: f64 = f32::EPSILON as f64;
const THETA: f64 = 10_000.0;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    dtype: Dtype,
    device: Device,
    patch_embed: Linear,
    /// Learned positions, [rows, columns, hidden].
    positions: Tensor,
    blocks: Vec<Block>,
    final_norm: Norm,
    projector: PatchMerger,
}

impl Tower {
    pub fn load(config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let norm = |name: &str| -> Result<Norm> {
            Ok(match config.norm {
                NormKind::Layer => loader.layer_norm(name, LAYER_NORM_EPS)?.into(),
                NormKind::Rms => loader.rms_norm(name, RMS_NORM_EPS)?.into(),
            })
        };
        let activation = if config.exact_gelu { Activation::Gelu } else { Activation::GeluTanh };
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("vision_tower.encoder.blocks.{index}.{part}");
            Ok(Block {
                norm1: norm(&name("norm0"))?,
                attention: SelfAttention {
                    qkv: loader.linear(&name("wqkv"), config.attention_bias)?,
                    qk_norm: None,
                    proj: loader.linear(&name("wo"), config.attention_bias)?,
                    heads: config.heads,
                    dim: config.head_dim,
                    rounding: Rounding::Fused,
                },
                norm2: norm(&name("norm1"))?,
                mlp: Mlp::plain(
                    loader.linear(&name("mlp.fc0"), config.linear_bias)?,
                    activation,
                    loader.linear(&name("mlp.fc1"), config.linear_bias)?,
                ),
            })
        };
        Ok(Self {
            config: config.clone(),
            dtype: loader.dtype(),
            device: loader.device(),
            patch_embed: loader.linear("vision_tower.patch_embed.proj", config.patch_bias)?,
            positions: loader.tensor("vision_tower.patch_embed.pos_emb.weight")?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            final_norm: norm("vision_tower.encoder.final_layernorm")?,
            projector: projector(config, loader)?,
        })
    }

    /// Learned positions of every patch, resampled to its grid; frames of a clip also have a time.
    fn positions(&self, grids: &[Grid]) -> Result<Tensor> {
        let kernel = if self.config.bilinear { Interpolation::Bilinear } else { Interpolation::Bicubic };
        let mut all = Vec::new();
        for grid in grids {
            let plane = if (grid.height, grid.width) == self.config.table {
                self.positions.share()?
            } else {
                resample_table(&self.positions, grid.height as usize, grid.width as usize, kernel)?
            };
            let plane = plane.reshape(&[grid.frame_patches(), self.config.hidden])?;
            if grid.frames == 1 {
                all.push(plane);
                continue;
            }
            for frame in 0..grid.frames {
                let (time, shape) = (time(frame, self.config.hidden), [1, self.config.hidden]);
                let time = Tensor::from_slice_on(&time, &shape, self.device)?.cast(self.dtype)?;
                all.push(add(&plane, &time)?);
            }
        }
        match &all[..] {
            [one] => one.share(),
            several => cat(&several.iter().collect::<Vec<_>>(), 0),
        }
    }

    /// Patches in raster order to the mean of their frames, the patches of a token in consecutive rows.
    fn pooled(&self, x: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let rows: usize = grids.iter().map(|grid| grid.frame_patches()).sum();
        let frames = grids.iter().map(|grid| grid.frames).max().unwrap_or(1);
        let taps = if frames == 1 { 1 } else { 4 };
        let mut index = vec![0; taps * rows];
        let mut weight = vec![0.0; taps * rows];
        let (mut first, mut at) = (0, 0);
        for grid in grids {
            for (row, column) in patch_grid::block_order(*grid, self.config.merge) {
                let patch = first + row as usize * grid.width as usize + column as usize;
                for frame in 0..grid.frames as usize {
                    let tap = frame * rows + at;
                    let (Some(index), Some(weight)) = (index.get_mut(tap), weight.get_mut(tap)) else {
                        return Err(Error::internal("a grid has more frames than the tower averages"));
                    };
                    *index = (patch + frame * grid.frame_patches()) as i64;
                    *weight = 1.0 / grid.frames as f32;
                }
                at += 1;
            }
            first += grid.patches();
        }
        if frames == 1 {
            return index_rows(x, &Tensor::from_slice_on(&index, &[rows], self.device)?);
        }
        let zeros = vec![0f32; rows.saturating_mul(self.config.hidden)];
        let zeros =
            Tensor::from_slice_on(&zeros, &[rows, self.config.hidden], self.device)?.cast(self.dtype)?;
        let index = Tensor::from_slice_on(&index, &[taps, rows], self.device)?;
        let weight = Tensor::from_slice_on(&weight, &[taps, rows], self.device)?;
        add_interpolated(&zeros, x, &index, &weight)
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        // Column first, pair by pair.
        let angles = rotary::interleaved(grids, 1, self.config.head_dim, THETA);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Neighbours, self.device)?;
        let segments = TowerLayout::grid_segments(grids)?;
        let mut x =
            Residual::new(add(&self.patch_embed.forward(pixels)?, &self.positions(grids)?)?, self.device);
        for block in &self.blocks {
            x = block.forward(x, Some(&rotary), &segments)?;
        }
        let x = self.pooled(&self.final_norm.forward(x.settle()?)?, grids)?;
        Ok(self.projector.forward(&x)?.into())
    }
}

fn projector(config: &VisionConfig, loader: &Loader<'_>) -> Result<PatchMerger> {
    let eps = config.projector_eps;
    let (norm, place, bias): (Norm, _, _) = match config.projector {
        Projector::PreNorm => {
            (loader.layer_norm("mm_projector.pre_norm", eps)?.into(), NormPlace::Patch, true)
        }
        Projector::PostNorm => {
            (loader.rms_norm("mm_projector.post_norm", eps)?.into(), NormPlace::Token, false)
        }
    };
    Ok(PatchMerger {
        norm,
        place,
        patches: config.merged_patches(),
        fc1: loader.linear("mm_projector.proj.0", bias)?,
        fc2: loader.linear("mm_projector.proj.2", bias)?,
    })
}

/// Sines, then cosines, of a frame's number at `width / 2` frequencies, in float32.
fn time(frame: u32, width: usize) -> Vec<f32> {
    let half = width / 2;
    let angle = |i: usize| {
        let frequency = 1.0 / THETA.powf(f64::from(i as f32 / half as f32)) as f32;
        f64::from(frame as f32 * frequency)
    };
    let sines = (0..half).map(|i| angle(i).sin() as f32);
    sines.chain((0..half).map(|i| angle(i).cos() as f32)).collect()
}
