//! Embedded colour profiles: pixels of another space become sRGB. A profile that is malformed counts as absent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use moxcms::{ColorProfile, DataColorSpace, Layout, ParsingOptions, Transform8BitExecutor, TransformOptions};

use super::rows::Colour;

/// Bytes of a profile that is read; those of cameras and screens have at most a few hundred thousand.
pub(super) const MAX_PROFILE: usize = 4 << 20;

/// A conversion of RGBA pixels; alpha stays.
pub(super) enum ToSrgb {
    Colour(Arc<Transform8BitExecutor>),
    /// The colour of each level.
    Grey(Box<[[u8; 3]; 256]>),
}

impl ToSrgb {
    /// The conversion from `profile`, if it speaks of pixels such as `colour`.
    pub(super) fn new(profile: &[u8], colour: &Colour) -> Option<Self> {
        if profile.len() > MAX_PROFILE || matches!(colour, Colour::Cmyk) {
            return None;
        }
        // A profile is hostile data to a large library: what it may panic on is malformed, too.
        catch_unwind(AssertUnwindSafe(|| Self::build(profile, colour))).ok()?
    }

    fn build(profile: &[u8], colour: &Colour) -> Option<Self> {
        let limits = ParsingOptions { max_profile_size: MAX_PROFILE + 1, ..ParsingOptions::default() };
        let source = ColorProfile::new_from_slice_with_options(profile, limits).ok()?;
        let target = ColorProfile::new_srgb();
        let options = TransformOptions::default();
        match source.color_space {
            DataColorSpace::Rgb => {
                let transform = source.create_transform_8bit(Layout::Rgba, &target, Layout::Rgba, options);
                Some(Self::Colour(transform.ok()?))
            }
            DataColorSpace::Gray if colour.is_grey() => {
                let transform =
                    source.create_transform_8bit(Layout::Gray, &target, Layout::Rgb, options).ok()?;
                let levels: [u8; 256] = std::array::from_fn(|level| level as u8);
                let mut table = Box::new([[0; 3]; 256]);
                transform.transform(&levels, table.as_flattened_mut()).ok()?;
                Some(Self::Grey(table))
            }
            _ => None,
        }
    }

    /// Converts a row of RGBA; a row that the library refuses stays as it is.
    pub(super) fn apply(&self, row: &mut [u8]) {
        match self {
            Self::Colour(transform) => {
                let source = row.to_vec();
                let done = catch_unwind(AssertUnwindSafe(|| transform.transform(&source, row).is_ok()));
                if !matches!(done, Ok(true)) {
                    row.copy_from_slice(&source);
                }
            }
            Self::Grey(table) => {
                for pixel in row.as_chunks_mut::<4>().0 {
                    let [r, g, b] = table[usize::from(pixel[0])];
                    *pixel = [r, g, b, pixel[3]];
                }
            }
        }
    }
}
