//! What transparent pixels are painted on.

use crate::Result;
use crate::checkpoint::Node;
use crate::image::{Image, Mode};

/// Longest side of a chessboard's square, in pixels.
const MAX_SQUARE: u32 = 1 << 16;

/// A background that the image is composited over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Background {
    /// One level in all three channels.
    Plain(u8),
    /// Squares of two levels.
    Chessboard {
        /// Side of a square in pixels.
        square: u32,
        /// Level of the square at the top left.
        first: u8,
        /// Level of its neighbours.
        second: u8,
    },
}

impl Background {
    /// Reads `transparent_bg_config`.
    pub fn read(node: Node<'_>) -> Result<Self> {
        let level = |key, default| Ok(node.u32_or(key, default, 0..=255)? as u8);
        let patterns = ["black", "white", "gray", "chessboard"];
        Ok(match node.opt_choice("pattern", &patterns)?.unwrap_or("black") {
            "white" => Self::Plain(255),
            "gray" => Self::Plain(128),
            "chessboard" => {
                let (white, grey) =
                    (level("chessboard_white_value", 255)?, level("chessboard_gray_value", 200)?);
                let white_first = node.bool_or("chessboard_square_on_top_left", true)?;
                let (first, second) = if white_first { (white, grey) } else { (grey, white) };
                Self::Chessboard {
                    square: node.u32_or("chessboard_square_size", 16, 1..=MAX_SQUARE)?,
                    first,
                    second,
                }
            }
            _ => Self::Plain(0),
        })
    }

    /// The image on this background; opaque ones become RGB.
    pub fn under(&self, image: &Image) -> Image {
        match image.mode {
            Mode::Keyed(key) => {
                let mut out = image.clone();
                out.mode = Mode::Plain;
                self.paint(&mut out, |pixel, level| {
                    if pixel[0] == key {
                        *pixel = [level; 3];
                    }
                });
                out
            }
            Mode::Plain | Mode::Indexed if image.channels == 4 => {
                let mut alphas = image.samples.as_chunks::<4>().0.iter().map(|pixel| pixel[3]);
                let mut out = image.to_rgb();
                self.paint(&mut out, |pixel, level| {
                    let alpha = alphas.next().unwrap_or(255);
                    *pixel = pixel.map(|colour| blend(colour, alpha, level));
                });
                out
            }
            _ => image.to_rgb(),
        }
    }

    /// Hands each pixel of an RGB image to `paint`, in order, with the background's level there.
    fn paint(&self, image: &mut Image, mut paint: impl FnMut(&mut [u8; 3], u8)) {
        let rows = image.samples.as_chunks_mut::<3>().0.chunks_mut(image.width.max(1) as usize);
        for (y, row) in (0u32..).zip(rows) {
            for (x, pixel) in (0u32..).zip(row) {
                paint(pixel, self.level(x, y));
            }
        }
    }

    fn level(&self, x: u32, y: u32) -> u8 {
        match *self {
            Self::Plain(level) => level,
            Self::Chessboard { square, first, second } => {
                if (y / square + x / square).is_multiple_of(2) {
                    first
                } else {
                    second
                }
            }
        }
    }
}

/// The published arithmetic: float32, and truncated.
fn blend(colour: u8, alpha: u8, back: u8) -> u8 {
    let alpha = f32::from(alpha) / 255.0;
    (alpha * f32::from(colour) + (1.0 - alpha) * f32::from(back)) as u8
}
