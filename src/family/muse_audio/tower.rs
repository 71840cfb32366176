//! The audio tower of Muse: a pyramid of causal convolutions over the waveform, a few tokens at a time.

use super::config::{AudioConfig, Stage};
use crate::family::parts::Mlp;
use crate::family::{Grid, Loader, Outputs};
use crate::torch::Tensor;
use crate::torch::ops::{Activation, DepthwiseConv, Linear, RmsNorm, cat};
use crate::{Error, Result};

/// Tokens that go through all stages together: enough to keep the products busy, few enough that a long sound needs
/// no more memory than a short one. What the convolutions saw last is carried over.
const TOKENS_AT_ONCE: usize = 32;

/// The tower with its weights.
pub struct Tower {
    stages: Vec<LoadedStage>,
    norm: RmsNorm,
    projection: Linear,
    norm_projected: RmsNorm,
    norm_out: RmsNorm,
    token_samples: usize,
}

struct LoadedStage {
    patch: usize,
    columns_in: usize,
    embed: Linear,
    norm: RmsNorm,
    blocks: Vec<ConvBlock>,
}

struct ConvBlock {
    conv: DepthwiseConv,
    norm: RmsNorm,
    mlp: Mlp,
    /// What the convolution sees ahead of a sound, [taps - 1, columns].
    silence: Tensor,
}

impl Tower {
    pub fn load(config: &AudioConfig, loader: &Loader<'_>) -> Result<Self> {
        let eps = config.norm_eps;
        let block = |stage: &Stage, name: &str| -> Result<ConvBlock> {
            let weight = loader.stored(&format!("{name}.conv.weight"))?;
            let weight = weight.reshape(&[stage.hidden, config.taps])?.permute(&[1, 0])?;
            let silence = Tensor::filled(&[config.taps - 1, stage.hidden], loader.dtype(), |bytes| {
                bytes.fill(0);
                Ok(())
            })?;
            Ok(ConvBlock {
                conv: DepthwiseConv {
                    weight: loader.place(weight)?,
                    bias: loader.tensor(&format!("{name}.conv.bias"))?,
                },
                norm: loader.rms_norm(&format!("{name}.norm"), eps)?,
                mlp: Mlp::plain(
                    loader.precise_linear(&format!("{name}.mlp.fc1"), true)?,
                    Activation::Gelu,
                    loader.precise_linear(&format!("{name}.mlp.fc2"), true)?,
                ),
                silence: loader.place(silence)?,
            })
        };
        let mut stages = Vec::with_capacity(config.stages.len());
        let mut columns_in = 1;
        for (index, stage) in config.stages.iter().enumerate() {
            let name = format!("layers.{index}");
            stages.push(LoadedStage {
                patch: stage.patch,
                columns_in,
                embed: loader.precise_linear(&format!("{name}.patch_embedder.proj"), true)?,
                norm: loader.rms_norm(&format!("{name}.patch_embedder.norm"), eps)?,
                blocks: (0..stage.depth)
                    .map(|index| block(stage, &format!("{name}.conv_blocks.{index}")))
                    .collect::<Result<_>>()?,
            });
            columns_in = stage.hidden;
        }
        Ok(Self {
            stages,
            norm: loader.rms_norm("norm", eps)?,
            projection: loader.precise_linear("proj", true)?,
            norm_projected: loader.rms_norm("post_proj_norm", eps)?,
            norm_out: RmsNorm { weight: None, eps: config.out_eps },
            token_samples: config.token_samples(),
        })
    }

    /// The next `count` tokens of a sound; `seen` is what each convolution saw last, block by block.
    fn encode(&self, samples: &Tensor, count: usize, seen: &mut [Tensor]) -> Result<Tensor> {
        let mut x = samples.share()?;
        let mut rows = count * self.token_samples;
        let mut seen = seen.iter_mut();
        for stage in &self.stages {
            rows /= stage.patch;
            let joined = x.reshape(&[rows, stage.patch * stage.columns_in])?;
            x = stage.norm.forward(&stage.embed.forward(&joined)?)?;
            for block in &stage.blocks {
                let seen = seen.next().ok_or_else(|| Error::internal("a convolution without a past"))?;
                x = block.forward(&x, rows, seen)?;
            }
        }
        let projected = self.projection.forward(&self.norm.forward(&x)?)?;
        self.norm_out.forward(&self.norm_projected.forward(&projected)?)
    }
}

impl ConvBlock {
    fn forward(&self, x: &Tensor, rows: usize, seen: &mut Tensor) -> Result<Tensor> {
        let whole = cat(&[seen, x], 0)?;
        let before = whole.shape()?.first().map_or(0, |all| all - rows);
        *seen = whole.rows(rows, rows + before)?;
        self.mlp.added_to(x, &self.norm.forward(&self.conv.forward(&whole)?)?)
    }
}

impl crate::family::Tower for Tower {
    fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
        let mut parts = Vec::new();
        let mut first = 0;
        for grid in grids {
            let blocks = self.stages.iter().flat_map(|stage| &stage.blocks);
            let mut seen = blocks.map(|block| block.silence.share()).collect::<Result<Vec<_>>>()?;
            let end = first + grid.patches();
            while first < end {
                let next = end.min(first + TOKENS_AT_ONCE);
                parts.push(self.encode(&pixels.rows(first, next)?, next - first, &mut seen)?);
                first = next;
            }
        }
        let embeddings = match &parts[..] {
            [one] => one.share()?,
            several => cat(&several.iter().collect::<Vec<_>>(), 0)?,
        };
        Ok(embeddings.into())
    }
}
