//! The pre-norm block that every tower stacks.

use super::{Mlp, Norm, Residual, SelfAttention};
use crate::Result;
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
    pub fn forward(&self, mut x: Residual, rotary: Option<&Rotary>, segments: &Segments) -> Result<Residual> {
        let normed = x.normed(&self.norm1)?;
        self.attention.add_to(&mut x, &normed, rotary, segments)?;
        let normed = x.normed(&self.norm2)?;
        self.mlp.add_to(&mut x, &normed)?;
        Ok(x)
    }
}
