//! The one gate every decode passes: sizes are checked from the header before memory is allocated.

use super::format::Format;
use crate::{Error, Result};

/// 256 MiB: above any photograph, below what a request may cost.
const MAX_BYTES: u64 = 256 << 20;
/// 134 megapixels: a 108-megapixel photograph passes, 12000x12000 does not.
const MAX_PIXELS: u64 = 1 << 27;
/// Longest side; JPEG's own limit, far above PNG's useful sizes.
const MAX_SIDE: u32 = 65_535;
/// Frames of an animation, of which the first is decoded.
const MAX_FRAMES: u32 = 65_536;
/// 1.5 GiB: output and everything a decoder allocates beside it.
const MAX_MEMORY: u64 = 3 << 29;

/// Bounds of one image, checked before anything in proportion to them is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Encoded bytes.
    pub bytes: u64,
    /// Pixels (width times height).
    pub pixels: u64,
    /// Longest side in pixels.
    pub side: u32,
    /// Frames of an animation (only the first is decoded).
    pub frames: u32,
    /// Bytes of the result and of all working memory together.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: MAX_BYTES, pixels: MAX_PIXELS, side: MAX_SIDE, frames: MAX_FRAMES, memory: MAX_MEMORY }
    }
}

/// The limits, bound to one item whose byte count has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate<'a> {
    limits: &'a Limits,
    format: Format,
}

impl<'a> Gate<'a> {
    /// Passes the byte count.
    pub(super) fn new(format: Format, bytes: usize, limits: &'a Limits) -> Result<Self> {
        if bytes as u64 > limits.bytes {
            return Err(Error::media(format!(
                "{} image of {bytes} bytes is over the limit of {} bytes: send a smaller file",
                format.name(),
                limits.bytes
            )));
        }
        Ok(Self { limits, format })
    }

    /// Passes width and height as the header states them.
    pub(super) fn size(&self, width: u32, height: u32) -> Result<()> {
        let name = self.format.name();
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(Error::media(format!("{name} image of {width}x{height} has no pixels")));
        }
        if pixels > self.limits.pixels {
            return Err(Error::media(format!(
                "{name} image of {width}x{height} has {pixels} pixels, over the limit of {}: send a smaller image",
                self.limits.pixels
            )));
        }
        if width.max(height) > self.limits.side {
            return Err(Error::media(format!(
                "{name} image of {width}x{height} has a side over the limit of {} pixels: send a smaller image",
                self.limits.side
            )));
        }
        Ok(())
    }

    /// Passes the number of frames.
    pub(super) fn frames(&self, count: u64) -> Result<()> {
        if count > u64::from(self.limits.frames) {
            return Err(Error::media(format!(
                "{} animation of {count} frames is over the limit of {} frames: send a still image",
                self.format.name(),
                self.limits.frames
            )));
        }
        Ok(())
    }

    /// Passes the bytes that the result and the decoder need together; returns what is left of the limit.
    pub(super) fn memory(&self, needed: u64) -> Result<u64> {
        self.limits.memory.checked_sub(needed).ok_or_else(|| {
            Error::media(format!(
                "{} image needs {needed} bytes to decode, over the limit of {}: send a smaller image",
                self.format.name(),
                self.limits.memory
            ))
        })
    }

    /// An error of this item that opens with the format's name.
    pub(super) fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::media(format!("{} image {what}", self.format.name()))
    }

    /// The file ends before its picture does.
    pub(super) fn truncated(&self) -> Error {
        self.error("is cut short: the file ends before its pixels do")
    }

    /// The file contradicts its format.
    pub(super) fn damaged(&self, part: &str) -> Error {
        self.error(format_args!("is damaged: its {part} cannot be decoded"))
    }
}
