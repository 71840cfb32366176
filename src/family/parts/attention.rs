//! Self-attention within segments, q, k and v from one linear layer.

use super::Residual;
use crate::Result;
use crate::torch::Tensor;
use crate::torch::ops::{Linear, QkNorm, Rotary, Rounding, Segments, attention};

/// `proj(softmax(q k^T / sqrt(dim)) v)` of `qkv(x)`, whose outputs are all of q, then k, then v, head by head.
pub struct SelfAttention {
    /// [columns] to [3 * heads * dim].
    pub qkv: Linear,
    /// Norm of q and k over a head, before they turn.
    pub qk_norm: Option<QkNorm>,
    /// [heads * dim] to [columns].
    pub proj: Linear,
    /// Number of heads.
    pub heads: usize,
    /// Width of one head.
    pub dim: usize,
    /// Where products and softmax round.
    pub rounding: Rounding,
}

impl SelfAttention {
    /// Adds to `residual` the attention of `x` [rows, columns] within `segments`, q and k turned by `rotary`.
    pub fn add_to(
        &self,
        residual: &mut Residual,
        x: &Tensor,
        rotary: Option<&Rotary>,
        segments: &Segments,
    ) -> Result<()> {
        let mut qkv = self.qkv.forward(x)?.reshape(&[segments.rows(), 3, self.heads, self.dim])?;
        if let Some(rotary) = rotary {
            rotary.apply(&mut qkv, self.qk_norm.as_ref())?;
        }
        let mixed = attention(&qkv, segments, (self.dim as f64).powf(-0.5), self.rounding)?;
        residual.add(&self.proj, &mixed)
    }
}
