//! What runs from block to block beside the layers.

use super::Norm;
use crate::Result;
use crate::torch::ops::{Linear, add, sums_in_norms};
use crate::torch::{Device, Tensor};

/// A sum [rows, columns] that layers add to, one after the other.
///
/// Where a norm adds its two inputs itself, on CUDA, the last addend waits for the next norm.
pub struct Residual {
    sum: Tensor,
    pending: Option<Tensor>,
    in_norms: bool,
}

impl Residual {
    /// Starts with `x`, on `device`.
    pub fn new(x: Tensor, device: Device) -> Self {
        Self { sum: x, pending: None, in_norms: sums_in_norms(device) }
    }

    /// Adds `linear` of `x`.
    pub fn add(&mut self, linear: &Linear, x: &Tensor) -> Result<()> {
        self.settle()?;
        if self.in_norms {
            self.pending = Some(linear.forward(x)?);
        } else {
            self.sum = linear.added_to(&self.sum, x)?;
        }
        Ok(())
    }

    /// The norm of the sum.
    pub fn normed(&mut self, norm: &Norm) -> Result<Tensor> {
        let Some(addend) = self.pending.take() else {
            return norm.forward(&self.sum);
        };
        let (sum, normed) = norm.forward_sum(&self.sum, &addend)?;
        self.sum = sum;
        Ok(normed)
    }

    /// The sum.
    pub fn settle(&mut self) -> Result<&Tensor> {
        if let Some(addend) = self.pending.take() {
            self.sum = add(&self.sum, &addend)?;
        }
        Ok(&self.sum)
    }
}
