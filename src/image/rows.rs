//! Rows of any colour model become rows of the result, under the policy on transparency.

use super::buffer::zeroed;
use super::icc::ToSrgb;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{Alpha, DecodePolicy, Icc};
use super::{Image, Mode};
use crate::Result;

/// A table of 256 colours with alpha.
pub(super) type Palette = [[u8; 4]; 256];

/// What a row's samples mean: Pillow's modes, with 16-bit samples already reduced to 8.
#[derive(Clone, Debug)]
pub(super) enum Colour {
    /// One sample; `key` is the level that is transparent.
    Grey { key: Option<u8> },
    /// One sample, 0 or 255.
    Bilevel,
    /// One sample that looks up a grey level, for files of 2 or 4 bits; `key` is the level that is transparent.
    Levels { palette: Box<Palette>, key: Option<u8> },
    /// Two samples; `rgba` where Pillow has no such mode and takes RGBA.
    GreyAlpha { rgba: bool },
    /// One sample that looks up a colour; `transparent` tells whether the file speaks of alpha at all.
    Indexed { palette: Box<Palette>, transparent: bool },
    /// Three samples; `key` is the colour that is transparent.
    Rgb { key: Option<[u8; 3]> },
    /// Four samples, alpha last and not multiplied in; `rgba` unless Pillow has another mode for the source.
    Rgba { rgba: bool },
    /// Four samples of ink.
    Cmyk,
}

impl Colour {
    /// Whether all its colours are greys.
    pub(super) fn is_grey(&self) -> bool {
        match self {
            Self::Grey { .. } | Self::Bilevel | Self::Levels { .. } | Self::GreyAlpha { .. } => true,
            Self::Indexed { palette, .. } => palette.iter().all(|[r, g, b, _]| r == g && g == b),
            Self::Rgb { .. } | Self::Rgba { .. } | Self::Cmyk => false,
        }
    }

    fn transparent(&self) -> bool {
        match self {
            Self::Grey { key } | Self::Levels { key, .. } => key.is_some(),
            Self::Rgb { key } => key.is_some(),
            Self::Indexed { transparent, .. } => *transparent,
            Self::GreyAlpha { .. } | Self::Rgba { .. } => true,
            Self::Bilevel | Self::Cmyk => false,
        }
    }
}

impl Colour {
    /// The colours of a row, each opaque.
    pub(super) fn opaque(&self, row: &[u8], out: &mut [[u8; 4]]) {
        write::<4>(self, Blend::Drop, out.as_flattened_mut(), 1, row);
        out.iter_mut().for_each(|pixel| pixel[3] = 255);
    }
}

/// What happens to a pixel's alpha once the colour model and the policy are both known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blend {
    Drop,
    Over([u8; 3]),
    Keep,
    /// Four samples of ink stay as they are.
    Ink,
}

/// The result while its rows arrive.
pub(super) struct Rows {
    image: Image,
    colour: Colour,
    blend: Blend,
    /// Conversion of the colours, before any compositing.
    convert: Option<ToSrgb>,
    line: Vec<u8>,
}

/// Samples of the result a pixel.
pub(super) fn channels(colour: &Colour, policy: &DecodePolicy) -> u8 {
    if matches!(blend(colour, policy), Blend::Keep | Blend::Ink) { 4 } else { 3 }
}

/// Whether pixels are mixed with a background.
pub(super) fn composited(colour: &Colour, policy: &DecodePolicy) -> bool {
    matches!(blend(colour, policy), Blend::Over(_))
}

fn blend(colour: &Colour, policy: &DecodePolicy) -> Blend {
    match policy.alpha {
        Alpha::Over(back) if colour.transparent() => Blend::Over(back),
        Alpha::OverRgba(back)
            if matches!(colour, Colour::Rgba { rgba: true } | Colour::GreyAlpha { rgba: true }) =>
        {
            Blend::Over(back)
        }
        Alpha::Keep if colour.transparent() => Blend::Keep,
        Alpha::Native => match colour {
            Colour::Rgba { .. } | Colour::GreyAlpha { .. } | Colour::Indexed { transparent: true, .. } => {
                Blend::Keep
            }
            Colour::Cmyk => Blend::Ink,
            _ => Blend::Drop,
        },
        _ => Blend::Drop,
    }
}

fn mode(colour: &Colour, policy: &DecodePolicy) -> Mode {
    match colour {
        _ if policy.alpha != Alpha::Native => Mode::Plain,
        Colour::Bilevel | Colour::Indexed { .. } => Mode::Indexed,
        Colour::Grey { key: Some(key) } | Colour::Levels { key: Some(key), .. } => Mode::Keyed(*key),
        Colour::Cmyk => Mode::Cmyk,
        _ => Mode::Plain,
    }
}

/// Bytes of the result, turned or not, for the memory check.
pub(super) fn result_memory(width: u32, height: u32, channels: u8, orientation: Orientation) -> u64 {
    let bytes = u64::from(width) * u64::from(height) * u64::from(channels);
    bytes + orientation.memory(bytes)
}

impl Rows {
    /// An all-zero result. The gate must have passed `width` and `height`; it passes the memory here:
    /// the result, turned or not, and `working` bytes of the decoder.
    pub(super) fn new(
        gate: &Gate,
        policy: &DecodePolicy,
        (width, height): (u32, u32),
        colour: Colour,
        orientation: Orientation,
        working: u64,
    ) -> Result<Self> {
        let blend = blend(&colour, policy);
        let channels = channels(&colour, policy);
        let bytes = result_memory(width, height, channels, orientation);
        gate.memory(bytes.saturating_add(working))?;
        let samples = zeroed(width as usize * height as usize * usize::from(channels))?;
        let mode = mode(&colour, policy);
        let image = Image { width, height, channels, mode, samples };
        Ok(Self { image, colour, blend, convert: None, line: Vec::new() })
    }

    /// Converts the rows to come from an embedded profile to sRGB, if the policy asks for it.
    pub(super) fn profile(&mut self, profile: Option<&[u8]>, policy: &DecodePolicy) {
        if policy.icc == Icc::Srgb {
            self.convert = profile.and_then(|profile| ToSrgb::new(profile, &self.colour));
        }
    }

    /// The samples of the result, for decoders that write them directly, and the bytes of one row.
    pub(super) fn samples_mut(&mut self) -> (&mut [u8], usize) {
        let stride = self.image.width as usize * usize::from(self.image.channels);
        (&mut self.image.samples, stride)
    }

    /// Writes samples of 0, which need not be black, to the rows from `y` on: what a file leaves out.
    pub(super) fn blank(&mut self, y: u32) {
        let samples = match self.colour {
            Colour::Grey { .. } | Colour::Bilevel | Colour::Levels { .. } | Colour::Indexed { .. } => 1,
            Colour::GreyAlpha { .. } => 2,
            Colour::Rgb { .. } => 3,
            Colour::Rgba { .. } | Colour::Cmyk => 4,
        };
        let row = vec![0; self.image.width as usize * samples];
        for y in y..self.image.height {
            self.put(0, y, &row);
        }
    }

    /// Writes `row` to the pixels from (`x`, `y`) on; what would lie outside is left out.
    pub(super) fn put(&mut self, x: u32, y: u32, row: &[u8]) {
        self.scatter(x, y, 1, row);
    }

    /// Writes `row` to every `step`th pixel from (`x`, `y`) on.
    pub(super) fn scatter(&mut self, x: u32, y: u32, step: usize, row: &[u8]) {
        let channels = usize::from(self.image.channels);
        let stride = self.image.width as usize * channels;
        let start = (y as usize).saturating_mul(stride);
        let Some(line) = self.image.samples.get_mut(start..start.saturating_add(stride)) else { return };
        let Some(line) = line.get_mut(x as usize * channels..) else { return };
        let (mut colour, mut row) = (&self.colour, row);
        if let Some(convert) = &self.convert {
            // Colours with their alpha first, so that what is composited is sRGB.
            self.line.resize(self.image.width as usize * 4, 0);
            write::<4>(colour, Blend::Keep, &mut self.line, 1, row);
            convert.apply(&mut self.line);
            (colour, row) = (&Colour::Rgba { rgba: true }, &self.line);
        }
        match channels {
            4 => write::<4>(colour, self.blend, line, step, row),
            _ => write::<3>(colour, self.blend, line, step, row),
        }
    }

    /// The finished image, turned.
    pub(super) fn finish(self, orientation: Orientation) -> Result<Image> {
        orientation.apply(self.image)
    }
}

fn write<const N: usize>(colour: &Colour, blend: Blend, line: &mut [u8], step: usize, row: &[u8]) {
    let (pixels, _) = line.as_chunks_mut::<N>();
    let emit = |rgba: [u8; 4]| -> [u8; N] {
        let mixed = match blend {
            Blend::Over(back) => over(back, rgba),
            Blend::Drop | Blend::Keep | Blend::Ink => rgba,
        };
        let mut out = [0; N];
        out.copy_from_slice(&mixed[..N]);
        out
    };
    match colour {
        Colour::Grey { key } if blend == Blend::Drop => {
            let _ = key;
            spread(pixels, step, row, |&[v]: &[u8; 1]| emit([v, v, v, 255]));
        }
        Colour::Grey { key } => {
            spread(pixels, step, row, |&[v]: &[u8; 1]| emit([v, v, v, visible(*key == Some(v))]));
        }
        Colour::Bilevel => spread(pixels, step, row, |&[v]: &[u8; 1]| emit([v, v, v, 255])),
        Colour::GreyAlpha { .. } => spread(pixels, step, row, |&[v, a]: &[u8; 2]| emit([v, v, v, a])),
        Colour::Indexed { palette, .. } | Colour::Levels { palette, .. } => {
            let table: [[u8; N]; 256] = std::array::from_fn(|i| emit(palette[i]));
            spread(pixels, step, row, |&[v]: &[u8; 1]| table[usize::from(v)]);
        }
        Colour::Rgb { .. } if blend == Blend::Drop => {
            spread(pixels, step, row, |&[r, g, b]: &[u8; 3]| emit([r, g, b, 255]));
        }
        Colour::Rgb { key } => spread(pixels, step, row, |&rgb: &[u8; 3]| {
            let [r, g, b] = rgb;
            emit([r, g, b, visible(*key == Some(rgb))])
        }),
        Colour::Rgba { .. } => spread(pixels, step, row, |rgba: &[u8; 4]| emit(*rgba)),
        Colour::Cmyk if blend == Blend::Ink => spread(pixels, step, row, |inks: &[u8; 4]| emit(*inks)),
        Colour::Cmyk => spread(pixels, step, row, |inks: &[u8; 4]| emit(cmyk(*inks))),
    }
}

/// Maps each pixel of `row`; the step of 1 is a loop of its own, so that it can be vectorised.
fn spread<const M: usize, const N: usize>(
    pixels: &mut [[u8; N]],
    step: usize,
    row: &[u8],
    map: impl Fn(&[u8; M]) -> [u8; N],
) {
    let (source, _) = row.as_chunks::<M>();
    if step == 1 {
        pixels.iter_mut().zip(source).for_each(|(out, pixel)| *out = map(pixel));
    } else {
        pixels.iter_mut().step_by(step).zip(source).for_each(|(out, pixel)| *out = map(pixel));
    }
}

fn visible(is_key: bool) -> u8 {
    if is_key { 0 } else { 255 }
}

/// Pillow's `alpha_composite` over an opaque colour: 7 further bits of precision, each division rounded.
fn over(back: [u8; 3], [r, g, b, alpha]: [u8; 4]) -> [u8; 4] {
    let source = u32::from(alpha) << 7;
    let below = (255 << 7) - source;
    let mix = |front: u8, back: u8| {
        let sum = u32::from(front) * source + u32::from(back) * below + (0x80 << 7);
        ((((sum >> 8) + sum) >> 8) >> 7) as u8
    };
    [mix(r, back[0]), mix(g, back[1]), mix(b, back[2]), 255]
}

/// Pillow's conversion of ink to light: what black leaves, less the ink's share of it.
pub(super) fn cmyk([c, m, y, k]: [u8; 4]) -> [u8; 4] {
    let light = 255 - u32::from(k);
    let less = |ink: u8| {
        let product = u32::from(ink) * light + 128;
        light.saturating_sub(((product >> 8) + product) >> 8) as u8
    };
    [less(c), less(m), less(y), 255]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compositing_is_exact_at_both_ends() {
        for level in 0..=255 {
            let pixel = [level, 255 - level, 7, 0];
            assert_eq!(over([9, 8, level], pixel), [9, 8, level, 255]);
            let pixel = [level, 255 - level, 7, 255];
            assert_eq!(over([9, 8, level], pixel), [level, 255 - level, 7, 255]);
        }
    }

    #[test]
    fn ink_without_black_is_the_complement() {
        for ink in 0..=255 {
            assert_eq!(cmyk([ink, 0, 255, 0]), [255 - ink, 255, 0, 255]);
            assert_eq!(cmyk([ink, 0, 0, 255]), [0, 0, 0, 255]);
        }
    }
}
