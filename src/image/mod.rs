//! Encoded bytes to 8-bit pixels: sniff, check limits from the header, decode, orient, convert.

mod limits;
mod policy;

pub use limits::Limits;
pub use policy::{Alpha, DecodePolicy};

use crate::Result;

/// Interleaved 8-bit pixels, row by row without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Pixels a row; at least 1.
    pub width: u32,
    /// Rows; at least 1.
    pub height: u32,
    /// Samples a pixel: 3 (RGB), or 4 (RGBA) where the policy keeps alpha.
    pub channels: u8,
    /// `height * width * channels` samples.
    pub samples: Vec<u8>,
}

/// What the header says, before any pixel is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Lower-case name of the container: "jpeg", "png", ...
    pub format: &'static str,
    /// Width after the policy's orientation.
    pub width: u32,
    /// Height after the policy's orientation.
    pub height: u32,
}

/// Reads format and oriented size, checking `limits`. Costs no more than the header.
pub fn header(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Header> {
    let _ = (bytes, policy, limits);
    todo!("decoders")
}

/// Decodes one image. The size is checked against `limits` before any pixel memory is allocated.
pub fn decode(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Image> {
    let _ = (bytes, policy, limits);
    todo!("decoders")
}
