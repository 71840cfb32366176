//! The element types of a patch matrix.

use bytemuck::Pod;
use half::{bf16, f16};

use super::Samples;

/// An element type: rounded once, to nearest even, from float32.
pub trait Element: Pod + Send + Sync {
    /// Rounds a value.
    fn round(value: f32) -> Self;
    /// Wraps a matrix.
    fn wrap(samples: Vec<Self>) -> Samples;
}

impl Element for f32 {
    fn round(value: f32) -> Self {
        value
    }

    fn wrap(samples: Vec<Self>) -> Samples {
        Samples::F32(samples)
    }
}

impl Element for bf16 {
    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn wrap(samples: Vec<Self>) -> Samples {
        Samples::Bf16(samples)
    }
}

impl Element for f16 {
    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn wrap(samples: Vec<Self>) -> Samples {
        Samples::F16(samples)
    }
}
