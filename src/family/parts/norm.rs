//! A norm whose kind is a family's or a checkpoint's choice.

use crate::Result;
use crate::torch::Tensor;
use crate::torch::ops::{LayerNorm, RmsNorm};

/// Layer norm or RMS norm over the last axis.
pub enum Norm {
    /// Mean and variance.
    Layer(LayerNorm),
    /// Mean square alone.
    Rms(RmsNorm),
}

impl Norm {
    /// Normalises a contiguous `x` [.., columns].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer(norm) => norm.forward(x),
            Self::Rms(norm) => norm.forward(x),
        }
    }

    /// `x + y`, both contiguous, and its norm.
    pub fn forward_sum(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        match self {
            Self::Layer(norm) => norm.forward_sum(x, y),
            Self::Rms(norm) => norm.forward_sum(x, y),
        }
    }
}

impl From<LayerNorm> for Norm {
    fn from(norm: LayerNorm) -> Self {
        Self::Layer(norm)
    }
}

impl From<RmsNorm> for Norm {
    fn from(norm: RmsNorm) -> Self {
        Self::Rms(norm)
    }
}
