//! The one gate every decode passes: sizes are checked from the header before memory is allocated.

/// Bounds of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Encoded bytes.
    pub bytes: u64,
    /// Pixels (width times height).
    pub pixels: u64,
    /// Longest side in pixels.
    pub side: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 256 << 20, pixels: 1 << 27, side: 65_535 }
    }
}
