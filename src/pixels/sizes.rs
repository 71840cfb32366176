//! Target sizes that more than one family shares. All arithmetic is in double precision.

use super::view::{MAX_SIDE, check_size};
use crate::{Error, Result};

/// Largest ratio of the longer to the shorter side that [`smart_resize`] accepts.
pub const MAX_ASPECT: f64 = 200.0;

/// Who rounds a side that is shorter than half the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmartRule {
    /// transformers: such a side becomes 0 before the pixel bounds are applied.
    Transformers,
    /// SGLang's helper: no side is less than the factor.
    AtLeastOne,
}

/// Qwen-VL's target size, (height, width): multiples of `factor` near the source's, of `min_pixels..=max_pixels`
/// pixels in all. The image is stretched to it.
pub fn smart_resize(
    height: u32,
    width: u32,
    factor: u32,
    min_pixels: u64,
    max_pixels: u64,
    rule: SmartRule,
) -> Result<(u32, u32)> {
    check_size("image", width, height)?;
    if factor == 0 || factor > MAX_SIDE {
        return Err(Error::argument(format!("a factor of {factor} is not within 1..={MAX_SIDE}")));
    }
    let (h, w, f) = (f64::from(height), f64::from(width), f64::from(factor));
    let aspect = h.max(w) / h.min(w);
    if aspect > MAX_ASPECT {
        return Err(Error::media(format!(
            "the image is {width}x{height}: its aspect ratio of {aspect} is above the limit of {MAX_ASPECT}"
        )));
    }
    let least = if rule == SmartRule::AtLeastOne { f } else { 0.0 };
    let nearest = |side: f64| ((side / f).round_ties_even() * f).max(least);
    let (mut target_h, mut target_w) = (nearest(h), nearest(w));
    if target_h * target_w > max_pixels as f64 {
        let shrink = (h * w / max_pixels as f64).sqrt();
        let floor = |side: f64| ((side / shrink / f).floor() * f).max(f);
        (target_h, target_w) = (floor(h), floor(w));
    } else if target_h * target_w < min_pixels as f64 {
        let grow = (min_pixels as f64 / (h * w)).sqrt();
        let ceil = |side: f64| (side * grow / f).ceil() * f;
        (target_h, target_w) = (ceil(h), ceil(w));
    }
    let (target_h, target_w) = (target_h as u32, target_w as u32);
    check_size("target", target_w, target_h)?;
    Ok((target_h, target_w))
}

/// The size after scaling by `factor`, (width, height). Enlarging stops where the longer side reaches `cap`; a cap
/// never shrinks. `cap` is meaningful, and allowed, with a factor above 1 only.
pub fn scaled_dimensions(
    width: u32,
    height: u32,
    factor: Option<f64>,
    cap: Option<u32>,
) -> Result<(u32, u32)> {
    check_size("image", width, height)?;
    if factor.is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
        return Err(Error::argument("the scaling factor must be a finite number above 0"));
    }
    if cap == Some(0) || (cap.is_some() && factor.is_none_or(|factor| factor <= 1.0)) {
        return Err(Error::argument("a cap must be above 0 and needs a scaling factor above 1"));
    }
    let Some(factor) = factor else { return Ok((width, height)) };
    let longest = f64::from(width.max(height));
    let target = cap.map_or(longest * factor, |cap| (longest * factor).min(f64::from(cap).max(longest)));
    let ratio = target / longest;
    if ratio == 1.0 {
        return Ok((width, height));
    }
    // The conversion saturates, and `check_size` refuses what did.
    let scale = |side: u32| ((f64::from(side) * ratio + 0.5).floor() as u32).max(1);
    let (width, height) = (scale(width), scale(height));
    check_size("target", width, height)?;
    Ok((width, height))
}
