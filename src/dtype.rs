//! Element types of tensors and pixel values.

use crate::{Error, Result};

/// An element type that a tower computes in or a checkpoint stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Torch's name without the `torch.` prefix.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Parses Torch's name, with or without `torch.`.
    pub fn parse(name: &str) -> Result<Self> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" => Ok(Self::F32),
            "bfloat16" => Ok(Self::Bf16),
            "float16" => Ok(Self::F16),
            other => Err(Error::argument(format!(
                "dtype {other:?} is not supported: use float32, bfloat16 or float16"
            ))),
        }
    }
}
