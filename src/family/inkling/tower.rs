//! The image encoder of Inkling: a perceptron that sees each patch alone and folds neighbours into columns, layer by
//! layer.

use super::config::{FOLDS, FRAMES, PATCH, VisionConfig, linear, norm};
use crate::Result;
use crate::family::{Grid, Loader, Outputs};
use crate::torch::Tensor;
use crate::torch::ops::{Activation, Linear, RmsNorm, activate, cat};

const NORM_EPS: f64 = 1e-6;
/// Patches that go through all layers together: enough to keep the products busy, few enough that what lies between
/// two layers stays small.
const PATCHES_AT_ONCE: usize = 512;

/// The tower with its weights.
pub struct Tower {
    layers: Vec<Layer>,
    /// Over both frames.
    last: Linear,
    final_norm: RmsNorm,
}

struct Layer {
    linear: Linear,
    norm: RmsNorm,
}

impl Tower {
    pub fn load(_config: &VisionConfig, loader: &Loader<'_>) -> Result<Self> {
        let layer = |index| -> Result<Layer> {
            Ok(Layer {
                linear: loader.precise_linear(&linear(index), false)?,
                norm: loader.rms_norm(&norm(index), NORM_EPS)?,
            })
        };
        Ok(Self {
            layers: (0..FOLDS.len()).map(layer).collect::<Result<_>>()?,
            last: loader.precise_linear(&linear(FOLDS.len()), false)?,
            final_norm: loader.rms_norm("final_norm", NORM_EPS)?,
        })
    }

    /// The embeddings of `count` patches [count, samples].
    fn encode(&self, pixels: &Tensor, count: usize) -> Result<Tensor> {
        let frames = count * FRAMES as usize;
        let (mut side, mut columns) = (PATCH as usize, 3);
        let mut x = pixels.share()?;
        for (fold, layer) in FOLDS.iter().zip(&self.layers) {
            x = folded(&x, frames, side, fold.side, columns)?;
            x = activate(&layer.norm.forward(&layer.linear.forward(&x)?)?, Activation::Gelu)?;
            (side, columns) = (side / fold.side, fold.out);
        }
        let joined = x.reshape(&[count, FRAMES as usize * columns])?;
        self.final_norm.forward(&self.last.forward(&joined)?)
    }
}

/// Blocks of `fold` x `fold` neighbours of `frames` squares of `side` positions, each block's columns in one row.
fn folded(x: &Tensor, frames: usize, side: usize, fold: usize, columns: usize) -> Result<Tensor> {
    let blocks = side / fold;
    let rows = frames * blocks;
    let x = x.reshape(&[rows, fold, blocks, fold * columns])?;
    // One block a line is in order already.
    let x = if blocks == 1 { x } else { x.permute(&[0, 2, 1, 3])? };
    x.reshape(&[rows * blocks, fold * fold * columns])
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
        let mut parts = Vec::new();
        for begin in (0..patches).step_by(PATCHES_AT_ONCE) {
            let end = patches.min(begin + PATCHES_AT_ONCE);
            parts.push(self.encode(&pixels.rows(begin, end)?, end - begin)?);
        }
        let embeddings = match &parts[..] {
            [one] => one.share()?,
            several => cat(&several.iter().collect::<Vec<_>>(), 0)?,
        };
        Ok(embeddings.into())
    }
}
