//! Encoded bytes to 8-bit pixels: sniff, check limits from the header, decode, orient, convert.

mod bmp;
mod buffer;
pub(crate) mod bytes;
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

pub(crate) use format::name as format_name;
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
    /// What else the samples are; [`Mode::Plain`] except under [`Alpha::Native`].
    pub mode: Mode,
    /// `height * width * channels` samples.
    pub samples: Vec<u8>,
}

impl Image {
    /// This image as opaque RGB, as Pillow's `convert("RGB")` makes it: alpha dropped, ink turned into light.
    pub fn to_rgb(&self) -> Self {
        let (pixels, _) = self.samples.as_chunks::<4>();
        let samples = match (self.channels, self.mode) {
            (4, Mode::Cmyk) => pixels.iter().flat_map(|&inks| rows::cmyk(inks).into_iter().take(3)).collect(),
            (4, _) => pixels.iter().flat_map(|&[r, g, b, _]| [r, g, b]).collect(),
            _ => self.samples.clone(),
        };
        Self { channels: 3, mode: Mode::Plain, samples, ..*self }
    }
}

/// What Pillow's mode of a file asks of those who filter the image before they convert it to RGB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: RGB, or RGBA with straight alpha.
    #[default]
    Plain,
    /// RGB or RGBA looked up in a palette, or of one bit: only nearest-neighbour resizing keeps the colours.
    Indexed,
    /// Grey, as RGB, in which this level is transparent.
    Keyed(u8),
    /// Four channels of ink: cyan, magenta, yellow and black.
    Cmyk,
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
