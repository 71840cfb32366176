//! What a decoder does where engines disagree.

use crate::{Error, Result};

/// Choices on orientation, transparency and the like; part of a result's identity.
///
/// The default is Pillow's `Image.open(...).convert("RGB")`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecodePolicy {
    /// Apply the EXIF orientation, as `ImageOps.exif_transpose` does.
    pub orient: bool,
    /// What becomes of alpha and transparent colours.
    pub alpha: Alpha,
    /// How samples of 16 bits become 8.
    pub sixteen: Sixteen,
    /// What becomes of a file that ends too early.
    pub truncated: Truncated,
    /// What becomes of an embedded colour profile.
    pub icc: Icc,
}

/// What becomes of alpha and transparent colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// Dropped, as Pillow's `convert("RGB")` does.
    #[default]
    Drop,
    /// Composited over an opaque colour, as Pillow's `alpha_composite` does, whenever the image has an alpha
    /// band or a transparent colour.
    Over([u8; 3]),
    /// Composited over an opaque colour when Pillow's mode is RGBA, dropped otherwise (grey with alpha,
    /// transparent colours, palettes): vLLM's rule.
    OverRgba([u8; 3]),
    /// Kept: the image has four channels when the source has transparency.
    Keep,
    /// Kept in Pillow's own mode of the file, for those who filter before they convert: see [`Mode`](super::Mode).
    Native,
}

/// How samples of 16 bits become 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sixteen {
    /// As Pillow: grey is clipped at 255, colour keeps its high byte.
    #[default]
    Pillow,
    /// Scaled by 255/65535 to the nearest level.
    Scale,
}

/// What becomes of a file that ends too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Truncated {
    /// Refused.
    #[default]
    Refuse,
    /// The missing part is filled, as Pillow's `LOAD_TRUNCATED_IMAGES` does.
    Fill,
}

/// What becomes of an embedded colour profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Icc {
    /// Ignored.
    #[default]
    Ignore,
    /// Pixels are converted to sRGB, for RGB and grey profiles; profiles of ink are ignored.
    Srgb,
}

const WHITE: [u8; 3] = [255, 255, 255];

impl DecodePolicy {
    /// A named policy.
    ///
    /// * `"pillow"`: the default, `Image.open(...).convert("RGB")`.
    /// * `"hf"`: transformers' `load_image`: orientation applied, alpha dropped.
    /// * `"vllm"`: orientation ignored, RGBA images composited over white.
    /// * `"sglang"`: orientation ignored, alpha dropped.
    pub fn preset(name: &str) -> Result<Self> {
        match name {
            "pillow" | "sglang" => Ok(Self::default()),
            "hf" => Ok(Self { orient: true, ..Self::default() }),
            "vllm" => Ok(Self { alpha: Alpha::OverRgba(WHITE), ..Self::default() }),
            other => Err(Error::argument(format!(
                "decode policy {other:?} is unknown: use \"pillow\", \"hf\", \"vllm\" or \"sglang\""
            ))),
        }
    }

    /// A text that is equal for equal policies and stays so between releases, for cache keys.
    pub fn identity(&self) -> String {
        let alpha = match self.alpha {
            Alpha::Drop => "drop".to_owned(),
            Alpha::Over([r, g, b]) => format!("over:{r},{g},{b}"),
            Alpha::OverRgba([r, g, b]) => format!("over-rgba:{r},{g},{b}"),
            Alpha::Keep => "keep".to_owned(),
            Alpha::Native => "native".to_owned(),
        };
        let sixteen = match self.sixteen {
            Sixteen::Pillow => "pillow",
            Sixteen::Scale => "scale",
        };
        let truncated = match self.truncated {
            Truncated::Refuse => "refuse",
            Truncated::Fill => "fill",
        };
        let icc = match self.icc {
            Icc::Ignore => "ignore",
            Icc::Srgb => "srgb",
        };
        let orient = u8::from(self.orient);
        format!("decode1;orient={orient};alpha={alpha};sixteen={sixteen};truncated={truncated};icc={icc}")
    }
}
