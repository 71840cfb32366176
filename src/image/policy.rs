//! What a decoder does where engines disagree.

/// Choices on orientation, transparency and the like; part of a result's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodePolicy {
    /// Apply the EXIF orientation.
    pub orient: bool,
    /// What becomes of alpha and transparent colours.
    pub alpha: Alpha,
}

/// What becomes of alpha and transparent colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// Dropped, as Pillow's `convert("RGB")` does.
    Drop,
    /// Composited over an opaque colour, as Pillow's `alpha_composite` does.
    Over([u8; 3]),
    /// Kept: the image has four channels when the source has transparency.
    Keep,
}

impl DecodePolicy {
    /// A stable text of all choices, for keys.
    pub fn identity(&self) -> String {
        format!("{self:?}")
    }
}
