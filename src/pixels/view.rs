//! Borrowed pixels: what every function of this folder reads, so that a NumPy array or an [`Image`] is never copied.

use crate::image::Image;
use crate::{Error, Result};

/// Longest side that is read or written, in pixels.
pub const MAX_SIDE: u32 = 1 << 18;
/// Most pixels of an image that is read, written or held between two passes.
pub const MAX_PIXELS: u64 = 1 << 28;

/// Interleaved 8-bit pixels, row by row without padding. The constructor is the only way in, so its checks hold.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    width: usize,
    height: usize,
    channels: usize,
    samples: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks sizes against the limits and against the number of samples. `channels` is 1, 3 or 4.
    pub fn new(samples: &'a [u8], width: u32, height: u32, channels: u8) -> Result<Self> {
        check_size("image", width, height)?;
        if !matches!(channels, 1 | 3 | 4) {
            return Err(Error::argument(format!("an image has 1, 3 or 4 channels, not {channels}")));
        }
        let (width, height, channels) = (width as usize, height as usize, usize::from(channels));
        if samples.len() != width * height * channels {
            return Err(Error::argument(format!(
                "an image of {width}x{height} pixels with {channels} channels has {} samples, not {}",
                width * height * channels,
                samples.len()
            )));
        }
        Ok(Self { width, height, channels, samples })
    }

    /// The same size with other `samples`, of which there must be as many.
    pub(crate) fn with_samples<'b>(&self, samples: &'b [u8]) -> View<'b> {
        assert_eq!(samples.len(), self.samples.len());
        View { width: self.width, height: self.height, channels: self.channels, samples }
    }

    /// Pixels a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Samples a pixel.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// All samples.
    pub fn samples(&self) -> &'a [u8] {
        self.samples
    }

    /// The samples of row `y`.
    pub fn row(&self, y: usize) -> &'a [u8] {
        let stride = self.width * self.channels;
        &self.samples[y * stride..(y + 1) * stride]
    }
}

impl<'a> TryFrom<&'a Image> for View<'a> {
    type Error = Error;

    fn try_from(image: &'a Image) -> Result<Self> {
        Self::new(&image.samples, image.width, image.height, image.channels)
    }
}

/// Refuses empty and oversized `what` ("image", "target", ...).
pub fn check_size(what: &str, width: u32, height: u32) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::argument(format!(
            "the {what} is {width}x{height} pixels: each side must be at least 1"
        )));
    }
    if width.max(height) > MAX_SIDE {
        return Err(Error::argument(format!(
            "the {what} is {width}x{height} pixels: the longest side allowed is {MAX_SIDE}"
        )));
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS {
        return Err(Error::argument(format!(
            "the {what} is {width}x{height}, {pixels} pixels: the most allowed is {MAX_PIXELS}"
        )));
    }
    Ok(())
}
