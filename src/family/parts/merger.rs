//! The patch merger: neighbouring patches side by side, through two layers, become one token.

use super::Norm;
use crate::Result;
use crate::torch::Tensor;
use crate::torch::ops::{Activation, Linear};

/// What a merger's norm sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Each patch on its own.
    Patch,
    /// The joined patches.
    Joined,
    /// The finished token.
    Token,
}

/// `fc2(gelu(fc1(patches side by side)))` with a norm in one place.
pub struct PatchMerger {
    /// The norm.
    pub norm: Norm,
    /// Where it stands.
    pub place: NormPlace,
    /// Patches that become one token.
    pub patches: usize,
    /// Between joined patches.
    pub fc1: Linear,
    /// To the width of the language model.
    pub fc2: Linear,
}

impl PatchMerger {
    /// `x` [rows, columns], each token's patches in consecutive rows, to [rows / patches, fc2's outputs].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = |x: &Tensor, place| {
            if self.place == place { self.norm.forward(x) } else { x.share() }
        };
        let shape = x.shape()?;
        let (rows, columns) = match shape[..] {
            [rows, columns] => (rows / self.patches, columns * self.patches),
            _ => return Err(crate::Error::internal("a merger takes a matrix of patches")),
        };
        let joined = normed(x, NormPlace::Patch)?.reshape(&[rows, columns])?;
        let inner = self.fc1.activated(&normed(&joined, NormPlace::Joined)?, Activation::Gelu)?;
        normed(&self.fc2.forward(&inner)?, NormPlace::Token)
    }
}
