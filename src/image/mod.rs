//! Encoded bytes to 8-bit pixels: sniff, check limits from the header, decode, orient, convert.

mod bmp;
mod buffer;
mod bytes;
mod format;
mod gif;
mod icc;
mod ico;
mod ifd;
mod jpeg;
mod limits;
mod orient;
mod png;
mod policy;
mod ppm;
mod rows;
mod tiff;
mod webp;

pub use limits::Limits;
pub use policy::{Alpha, DecodePolicy, Icc, Sixteen, Truncated};

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};
use format::Format;
use limits::Gate;

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

/// Reads format and oriented size, checking `limits`. Decodes no pixel.
///
/// # Errors
/// [`ErrorKind::Media`](crate::ErrorKind::Media): the bytes are no decodable image, or over a limit.
pub fn header(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Header> {
    guarded(|| read_header(bytes, policy, limits))
}

/// Decodes one image. The size is checked against `limits` before any pixel memory is allocated.
///
/// # Errors
/// [`ErrorKind::Media`](crate::ErrorKind::Media): the bytes are no decodable image, damaged, or over a limit;
/// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory): the host has no memory for the pixels.
pub fn decode(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Image> {
    guarded(|| read_pixels(bytes, policy, limits))
}

/// A fault in a decoder stays with its item: no test knows one, but the input is hostile.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("a decoder failed on this image: report it with the file")))
}

fn read_header(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Header> {
    let format = format::sniff(bytes)?;
    let gate = Gate::new(format, bytes.len(), limits)?;
    match format {
        Format::Jpeg => jpeg::header(bytes, policy, &gate),
        Format::Png => png::header(bytes, policy, &gate),
        Format::WebP => webp::header(bytes, policy, &gate),
        Format::Gif => gif::header(bytes, &gate),
        Format::Bmp => bmp::header(bytes, &gate),
        Format::Ppm => ppm::header(bytes, &gate),
        Format::Ico => ico::header(bytes, &gate),
        Format::Tiff => tiff::header(bytes, &gate),
    }
}

fn read_pixels(bytes: &[u8], policy: &DecodePolicy, limits: &Limits) -> Result<Image> {
    let format = format::sniff(bytes)?;
    let gate = Gate::new(format, bytes.len(), limits)?;
    match format {
        Format::Jpeg => jpeg::decode(bytes, policy, &gate),
        Format::Png => png::decode(bytes, policy, &gate),
        Format::WebP => webp::decode(bytes, policy, &gate),
        Format::Gif => gif::decode(bytes, policy, &gate),
        Format::Bmp => bmp::decode(bytes, policy, &gate),
        Format::Ppm => ppm::decode(bytes, policy, &gate),
        Format::Ico => ico::decode(bytes, policy, &gate),
        Format::Tiff => tiff::decode(bytes, policy, &gate),
    }
}
