//! Bounds on what a configuration may ask for; far above any released model.

use crate::checkpoint::Node;
use crate::pixels::{Canvas, MAX_PIXELS, MAX_SIDE};
use crate::{Error, Result};

/// Widest layer.
pub const MAX_WIDTH: u32 = 1 << 16;
/// Most blocks.
pub const MAX_DEPTH: u32 = 512;
/// Most heads.
pub const MAX_HEADS: u32 = 1 << 10;

/// Width of one of `heads` heads that share `hidden` columns, if it is a whole multiple of `unit`.
pub fn head_dim(node: Node<'_>, hidden: u32, heads: u32, unit: u32) -> Result<usize> {
    let dim = hidden / heads.max(1);
    if heads == 0 || !hidden.is_multiple_of(heads) || !dim.is_multiple_of(unit) {
        return Err(node.fault(format!(
            "divides a width of {hidden} among {heads} heads: a head's width must be a whole multiple of {unit}"
        )));
    }
    Ok(dim as usize)
}

/// A canvas of whole patches for an image of `width` x `height`, its content at (`top`, `left`) centred or not.
///
/// Sizes come in 64 bits, as plans compute them, and are refused where no pixels of that size can be prepared.
pub fn canvas(
    image: (u32, u32),
    size: (u64, u64),
    content: (u64, u64),
    origin: (u64, u64),
) -> Result<Canvas> {
    let (height, width) = size;
    let fits =
        height > 0 && width > 0 && height.max(width) <= u64::from(MAX_SIDE) && height * width <= MAX_PIXELS;
    let inside = origin.0 + content.0 <= height && origin.1 + content.1 <= width;
    if !fits || !inside {
        return Err(Error::media(format!(
            "an image of {}x{} would need a canvas of {width}x{height}: a side has 1 to {MAX_SIDE} pixels, and the \
             canvas at most {MAX_PIXELS}",
            image.0, image.1
        )));
    }
    // All are at most MAX_SIDE.
    Ok(Canvas {
        height: height as u32,
        width: width as u32,
        content_height: content.0 as u32,
        content_width: content.1 as u32,
        top: origin.0 as u32,
        left: origin.1 as u32,
    })
}
