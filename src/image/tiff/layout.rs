//! Which pixels a directory describes: the combinations of tags that Pillow has a mode for.

use super::super::ifd::Ifd;
use super::super::limits::Gate;
use crate::{Error, Result};

/// Samples a pixel that are looked at.
const MAX_SAMPLES: u64 = 6;

/// Tags of the directory.
pub(super) mod tag {
    pub(in super::super) const WIDTH: u16 = 256;
    pub(in super::super) const HEIGHT: u16 = 257;
    pub(in super::super) const BITS: u16 = 258;
    pub(in super::super) const COMPRESSION: u16 = 259;
    pub(in super::super) const PHOTOMETRIC: u16 = 262;
    pub(in super::super) const FILL_ORDER: u16 = 266;
    pub(in super::super) const STRIP_OFFSETS: u16 = 273;
    pub(in super::super) const SAMPLES: u16 = 277;
    pub(in super::super) const ROWS_PER_STRIP: u16 = 278;
    pub(in super::super) const STRIP_COUNTS: u16 = 279;
    pub(in super::super) const PLANAR: u16 = 284;
    pub(in super::super) const PREDICTOR: u16 = 317;
    pub(in super::super) const PALETTE: u16 = 320;
    pub(in super::super) const TILE_WIDTH: u16 = 322;
    pub(in super::super) const TILE_HEIGHT: u16 = 323;
    pub(in super::super) const TILE_OFFSETS: u16 = 324;
    pub(in super::super) const TILE_COUNTS: u16 = 325;
    pub(in super::super) const EXTRA: u16 = 338;
    pub(in super::super) const FORMAT: u16 = 339;
    pub(in super::super) const JPEG_TABLES: u16 = 347;
    pub(in super::super) const XMP: u16 = 700;
    pub(in super::super) const PROFILE: u16 = 34_675;
    pub(in super::super) const SUBSAMPLING: u16 = 530;
}

/// Colour model of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Model {
    Grey,
    GreyAlpha,
    Palette,
    PaletteAlpha,
    Rgb,
    Rgba,
    /// RGBA with alpha multiplied in.
    RgbaPremultiplied,
    Cmyk,
    YCbCr,
}

impl Model {
    /// Samples that the model uses, of those that are stored.
    pub(super) fn samples(self) -> usize {
        match self {
            Self::Grey | Self::Palette => 1,
            Self::GreyAlpha | Self::PaletteAlpha => 2,
            Self::Rgb | Self::YCbCr => 3,
            Self::Rgba | Self::RgbaPremultiplied | Self::Cmyk => 4,
        }
    }
}

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Unsigned,
    Signed,
    Float,
}

/// Everything about one picture but the place of its pixels.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) model: Model,
    pub(super) bits: usize,
    pub(super) number: Number,
    /// Samples of a pixel that lie side by side.
    pub(super) stored: usize,
    /// Each sample has chunks of its own.
    pub(super) planar: bool,
    /// Samples of a pixel, wherever they lie.
    pub(super) samples: usize,
    /// A fourth sample of which the file does not say what it is.
    pub(super) unnamed_alpha: bool,
    /// White is 0.
    pub(super) inverted: bool,
    /// Bits of a byte are stored lowest first.
    pub(super) reversed: bool,
    pub(super) big_endian: bool,
    pub(super) compression: u64,
    /// Grey that is the luma of YCbCr.
    pub(super) luma: bool,
}

impl Layout {
    pub(super) fn read(ifd: &Ifd, gate: &Gate) -> Result<Self> {
        let or = |tag, default| ifd.integer(tag).unwrap_or(default);
        let side = |tag| ifd.integer(tag).and_then(|v| u32::try_from(v).ok());
        let (Some(width), Some(height)) = (side(tag::WIDTH), side(tag::HEIGHT)) else {
            return Err(gate.error("has no width or no height"));
        };
        gate.size(width, height)?;
        let compression = or(tag::COMPRESSION, 1);
        let photometric = or(tag::PHOTOMETRIC, 0);
        let planar = or(tag::PLANAR, 1) == 2;
        let mut bits = ifd.integers(tag::BITS).unwrap_or_else(|| vec![1]);
        let mut extra = ifd.integers(tag::EXTRA).unwrap_or_default();
        let mut samples = or(tag::SAMPLES, 1);
        if planar && !extra.is_empty() && extra.iter().all(|kind| *kind == 0) {
            bits.truncate(bits.len().saturating_sub(extra.len()));
            samples = samples.saturating_sub(extra.len() as u64);
            extra.clear();
        }
        if samples > MAX_SAMPLES {
            return Err(
                gate.error(format_args!("has {samples} samples a pixel: at most {MAX_SAMPLES} are decoded"))
            );
        }
        if bits.len() == 1 {
            bits.resize((samples as usize).max(1), bits[0]);
        }
        bits.truncate(samples as usize);
        let formats = ifd.integers(tag::FORMAT).unwrap_or_else(|| vec![1]);
        let combination = Combination {
            big_endian: ifd.big_endian(),
            photometric,
            format: same(&formats).unwrap_or(0),
            fill: or(tag::FILL_ORDER, 1),
            bits: if bits.len() as u64 == samples { same(&bits).unwrap_or(0) } else { 0 },
            samples,
            extra: &extra,
        };
        let (model, number) = combination.model().ok_or_else(|| combination.refuse(gate))?;
        Ok(Self {
            width,
            height,
            model,
            bits: combination.bits as usize,
            number,
            stored: if planar { 1 } else { samples as usize },
            planar,
            samples: samples as usize,
            unnamed_alpha: photometric == 2 && samples == 4 && extra.is_empty(),
            inverted: photometric == 0 && combination.bits <= 8,
            reversed: combination.fill == 2,
            big_endian: ifd.big_endian(),
            compression,
            luma: photometric == 6 && model == Model::Grey,
        })
    }

    /// Numbers that Pillow reads through its modes of 32 bits.
    pub(super) fn wide_number(&self) -> bool {
        self.bits == 32 || self.number != Number::Unsigned
    }

    /// Bytes of a row of `columns` pixels as stored.
    pub(super) fn row_bytes(&self, columns: u32) -> u64 {
        (u64::from(columns) * self.stored as u64 * self.bits as u64).div_ceil(8)
    }
}

fn same(values: &[u64]) -> Option<u64> {
    let first = values.first()?;
    values.iter().all(|v| v == first).then_some(*first)
}

struct Combination<'a> {
    big_endian: bool,
    photometric: u64,
    format: u64,
    fill: u64,
    bits: u64,
    samples: u64,
    extra: &'a [u64],
}

impl Combination<'_> {
    fn model(&self) -> Option<(Model, Number)> {
        let forward = match self.fill {
            1 => true,
            2 => false,
            _ => return None,
        };
        let little = !self.big_endian;
        let number = match self.format {
            1 => Number::Unsigned,
            2 => Number::Signed,
            3 => Number::Float,
            _ => return None,
        };
        if number != Number::Unsigned {
            let grey = self.samples == 1 && self.extra.is_empty() && forward;
            let known = match (number, self.bits) {
                (Number::Signed, 8 | 16 | 32) => self.photometric == 1,
                (Number::Float, 32) => self.photometric <= 1,
                _ => false,
            };
            return (grey && known).then_some((Model::Grey, number));
        }
        let model = match (self.photometric, self.bits, self.samples, self.extra) {
            (0 | 1, 1 | 2 | 4 | 8, 1, []) => Model::Grey,
            (1, 12, 1, []) if little && forward => Model::Grey,
            (0, 16, 1, []) if little && forward => Model::Grey,
            (1, 16, 1, []) if little || forward => Model::Grey,
            (1, 32, 1, []) if little && forward => Model::Grey,
            (1, 8, 2, [0]) if forward => Model::Grey,
            (1, 8, 2, [2]) if forward => Model::GreyAlpha,
            (2, 8, 3, []) => Model::Rgb,
            (2, 8, 4, [] | [2 | 999]) | (2, 8, 5, [2, 0]) | (2, 8, 6, [2, 0, 0]) if forward => Model::Rgba,
            (2, 8, 4, [0]) | (2, 8, 5, [0, 0]) | (2, 8, 6, [0, 0, 0]) if forward => Model::Rgb,
            (2, 8, 4, [1]) | (2, 8, 5, [1, 0]) | (2, 8, 6, [1, 0, 0]) if forward => Model::RgbaPremultiplied,
            (2, 16, 3, []) | (2, 16, 4, [0]) if forward => Model::Rgb,
            (2, 16, 4, [] | [2]) if forward => Model::Rgba,
            (2, 16, 4, [1]) if forward => Model::RgbaPremultiplied,
            (3, 1 | 2 | 4 | 8, 1, []) => Model::Palette,
            (3, 8, 2, [0]) if forward => Model::Palette,
            (3, 8, 2, [2]) if forward => Model::PaletteAlpha,
            (5, 8, 4, []) | (5, 8, 5, [0]) | (5, 8, 6, [0, 0]) | (5, 16, 4, []) if forward => Model::Cmyk,
            (6, 8, 1, []) if forward => Model::Grey,
            (6, 8, 3, []) if forward => Model::YCbCr,
            _ => return None,
        };
        Some((model, number))
    }

    fn refuse(&self, gate: &Gate) -> Error {
        gate.error(format_args!(
            "has a combination that is not decoded: photometric {}, {} samples of {} bits",
            self.photometric, self.samples, self.bits
        ))
    }
}
