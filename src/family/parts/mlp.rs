//! Two-layer perceptrons, plain and gated.

use super::Residual;
use crate::Result;
use crate::torch::Tensor;
use crate::torch::ops::{Activation, Linear, gated};

/// A perceptron with one inner layer.
pub struct Mlp {
    inner: Inner,
    down: Linear,
}

enum Inner {
    Plain { up: Linear, activation: Activation },
    Gated { gate_up: Linear, activation: Activation, limit: f64 },
}

impl Mlp {
    /// `down(activation(up(x)))`.
    pub fn plain(up: Linear, activation: Activation, down: Linear) -> Self {
        Self { inner: Inner::Plain { up, activation }, down }
    }

    /// `down(activation(gate(x)) * up(x))`; `gate_up` gives the outputs of gate, then those of up.
    pub fn gated(gate_up: Linear, activation: Activation, down: Linear) -> Self {
        Self::gated_within(gate_up, activation, f64::INFINITY, down)
    }

    /// `down(activation(min(gate(x), limit)) * clamp(up(x), -limit, limit))`.
    pub fn gated_within(gate_up: Linear, activation: Activation, limit: f64, down: Linear) -> Self {
        Self { inner: Inner::Gated { gate_up, activation, limit }, down }
    }

    /// The perceptron of `x` [rows, columns].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.inner.forward(x)?)
    }

    /// `residual` plus the perceptron of `x`, where no norm comes next.
    pub fn added_to(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.down.added_to(residual, &self.inner.forward(x)?)
    }

    /// Adds to `residual` the perceptron of `x`.
    pub fn add_to(&self, residual: &mut Residual, x: &Tensor) -> Result<()> {
        residual.add(&self.down, &self.inner.forward(x)?)
    }
}

impl Inner {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain { up, activation } => up.activated(x, *activation),
            Self::Gated { gate_up, activation, limit } => gated(&gate_up.forward(x)?, *activation, *limit),
        }
    }
}
