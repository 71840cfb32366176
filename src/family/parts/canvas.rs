//! Common placements of the resized image.

use crate::pixels::Canvas;

/// A canvas that the image fills whole.
pub fn stretched(height: u32, width: u32) -> Canvas {
    Canvas { height, width, content_height: height, content_width: width, top: 0, left: 0 }
}
