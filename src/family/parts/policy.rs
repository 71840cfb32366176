//! Decode policies that several families share.

use crate::image::{Alpha, DecodePolicy};

/// EXIF orientation applied, transparency composited over white: transformers' own loaders and processors together.
pub fn oriented_over_white() -> DecodePolicy {
    DecodePolicy { orient: true, alpha: Alpha::Over([255, 255, 255]), ..DecodePolicy::default() }
}
