//! The pre-norm block that every tower stacks.

use super::{Mlp, Norm, SelfAttention};
use crate::Result;
use crate::torch::Tensor;
use crate::torch::ops::{Rotary, Segments};

/// `x += attention(norm1(x))`, then `x += mlp(norm2(x))`.
pub struct Block {
    /// Before the attention.
    pub norm1: Norm,
    /// Within segments.
    pub attention: SelfAttention,
    /// Before the perceptron.
    pub norm2: Norm,
    /// Row by row.
    pub mlp: Mlp,
}

impl Block {
    /// The block's output for `x` [rows, columns].
    pub fn forward(&self, x: &Tensor, rotary: Option<&Rotary>, segments: &Segments) -> Result<Tensor> {
        let x = self.attention.added_to(x, &self.norm1.forward(x)?, rotary, segments)?;
        self.mlp.added_to(&x, &self.norm2.forward(&x)?)
    }
}
