//! The vision tower of DeepSeek-V4.1: a ViT with rotary positions alone, a windowed aligner, and rows that mark start,
//! line ends and end.

use super::config::VisionConfig;
use super::processor::token_grid;
use crate::Result;
use crate::family::parts::{Block, Mlp, Residual, SelfAttention, TowerLayout, rotary};
use crate::family::{Grid, Loader, Outputs};
use crate::torch::ops::{Activation, Linear, RmsNorm, RotaryPairs, Rounding, cat};
use crate::torch::{Device, Tensor};

const NORM_EPS: f64 = 1e-6;

/// The tower with its weights.
pub struct Tower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    blocks: Vec<Block>,
    norm: RmsNorm,
    /// What windows at the bottom and right edges are filled up with, [1, hidden].
    zero: Tensor,
    aligner: Mlp,
    /// Rows of the span that no patch gives, each [1, out_hidden].
    start: Tensor,
    newline: Tensor,
    end: Tensor,
}

impl Tower {
    pub fn load(config: &VisionConfig, rounding: Rounding, loader: &Loader<'_>) -> Result<Self> {
        let block = |index: usize| -> Result<Block> {
            let name = |part: &str| format!("vision.blocks.{index}.{part}");
            let mlp = (
                loader.precise_linear(&name("mlp.w1"), false)?,
                loader.precise_linear(&name("mlp.w2"), false)?,
            );
            Ok(Block {
                norm1: loader.rms_norm(&name("norm1"), NORM_EPS)?.into(),
                attention: SelfAttention {
                    qkv: loader.precise_linear(&name("attn.wqkv"), true)?,
                    qk_norm: None,
                    proj: loader.precise_linear(&name("attn.wo"), true)?,
                    heads: config.heads,
                    dim: config.head_dim,
                    rounding,
                },
                norm2: loader.rms_norm(&name("norm2"), NORM_EPS)?.into(),
                mlp: Mlp::gated(mlp.0, Activation::Silu, mlp.1),
            })
        };
        let row = |name: &str| loader.tensor(name)?.reshape(&[1, config.out_hidden]);
        let zero = Tensor::filled(&[1, config.hidden], loader.dtype(), |bytes| {
            bytes.fill(0);
            Ok(())
        })?;
        Ok(Self {
            config: config.clone(),
            device: loader.device(),
            patch_embed: loader.precise_linear("vision.patch_embed.proj", true)?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            norm: loader.rms_norm("vision.norm", NORM_EPS)?,
            zero: loader.place(zero)?,
            aligner: Mlp::plain(
                loader.precise_linear("aligner.w1", true)?,
                Activation::Gelu,
                loader.precise_linear("aligner.w2", true)?,
            ),
            start: row("image_start")?,
            newline: row("image_newline")?,
            end: row("image_end")?,
        })
    }

    /// Every window's patches, channel by channel, [windows, hidden * window].
    fn windows(&self, x: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let ratio = self.config.ratio;
        let patches = grids.iter().map(|grid| grid.patches()).sum::<usize>();
        let mut index = Vec::new();
        let mut first = 0;
        for grid in grids {
            let (rows, columns) = token_grid(*grid, ratio);
            for (row, column) in (0..rows as u32).flat_map(|row| (0..columns as u32).map(move |c| (row, c))) {
                for (y, x) in (0..ratio).flat_map(|y| (0..ratio).map(move |x| (y, x))) {
                    let (y, x) = (row * ratio + y, column * ratio + x);
                    let inside = y < grid.height && x < grid.width;
                    let patch = first + y as usize * grid.width as usize + x as usize;
                    index.push(if inside { patch } else { patches } as i64);
                }
            }
            first += grid.patches();
        }
        let (hidden, window) = (self.config.hidden, self.config.window());
        let windows = index.len() / window;
        let rows = TowerLayout::picked(&cat(&[x, &self.zero], 0)?, &index, self.device)?;
        rows.reshape(&[windows, window, hidden])?.permute(&[0, 2, 1])?.reshape(&[windows, hidden * window])
    }

    /// The rows of all images with their marks.
    fn spans(&self, tokens: &Tensor, grids: &[Grid]) -> Result<Tensor> {
        let mut lines = Vec::new();
        let mut first = 0;
        for grid in grids {
            let (rows, columns) = token_grid(*grid, self.config.ratio);
            lines.push(self.start.share()?);
            for _ in 0..rows {
                lines.push(tokens.rows(first, first + columns)?);
                lines.push(self.newline.share()?);
                first += columns;
            }
            lines.push(self.end.share()?);
        }
        cat(&lines.iter().collect::<Vec<_>>(), 0)
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let config = &self.config;
        let angles = rotary::axial(grids, 1, config.head_dim, config.rope_theta);
        let rotary = TowerLayout::rotary(&angles, RotaryPairs::Halves, self.device)?;
        let segments = TowerLayout::frame_segments(grids)?;
        let mut x = Residual::new(self.patch_embed.forward(pixels)?, self.device);
        for block in &self.blocks {
            x = block.forward(x, Some(&rotary), &segments)?;
        }
        let windows = self.windows(&self.norm.forward(x.settle()?)?, grids)?;
        Ok(self.spans(&self.aligner.forward(&windows)?, grids)?.into())
    }
}
