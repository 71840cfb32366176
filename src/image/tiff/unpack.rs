//! Rows of stored samples become rows of one byte a sample.

use super::super::policy::Sixteen;
use super::super::rows::{Colour, Palette};
use super::layout::{Layout, Model, Number};

/// Turns rows of a layout into samples of [`Unpack::colour`].
pub(super) struct Unpack<'a> {
    layout: &'a Layout,
    sixteen: Sixteen,
    palette: Box<Palette>,
    out: Vec<u8>,
}

impl<'a> Unpack<'a> {
    /// `palette` holds all reds, then all greens, then all blues, of 16 bits.
    pub(super) fn new(layout: &'a Layout, sixteen: Sixteen, palette: &[u64]) -> Self {
        let mut table = Box::new([[0, 0, 0, 255]; 256]);
        let count = palette.len() / 3;
        for (i, entry) in table.iter_mut().enumerate().take(count) {
            let level = |band: usize| palette.get(band * count + i).map_or(0, |v| (v >> 8) as u8);
            *entry = [level(0), level(1), level(2), 255];
        }
        Self { layout, sixteen, palette: table, out: Vec::new() }
    }

    /// What the samples of [`Self::row`] mean.
    pub(super) fn colour(&self) -> Colour {
        match self.layout.model {
            Model::Grey => Colour::Grey { key: None },
            Model::GreyAlpha => Colour::GreyAlpha { rgba: false },
            Model::Palette => Colour::Indexed { palette: self.palette.clone(), transparent: false },
            Model::PaletteAlpha => Colour::Rgba { rgba: false },
            Model::Rgb | Model::YCbCr => Colour::Rgb { key: None },
            Model::Rgba | Model::RgbaPremultiplied => Colour::Rgba { rgba: true },
            Model::Cmyk => Colour::Cmyk,
        }
    }

    /// One row of `columns` pixels, all samples of a pixel side by side.
    pub(super) fn row(&mut self, row: &[u8], columns: usize) -> &[u8] {
        self.out.clear();
        let stored = self.layout.stored;
        let kept = self.layout.model.samples().min(stored);
        self.levels(row, columns * stored);
        if kept < stored {
            let mut to = 0;
            for pixel in 0..self.out.len() / stored {
                self.out.copy_within(pixel * stored..pixel * stored + kept, to);
                to += kept;
            }
            self.out.truncate(to);
        }
        self.finish();
        &self.out
    }

    /// The samples of one plane, a byte each.
    pub(super) fn plane(&mut self, row: &[u8], columns: usize) -> &[u8] {
        self.out.clear();
        self.levels(row, columns);
        &self.out
    }

    /// Finishes a row whose samples came in planes.
    pub(super) fn join(&self, row: &mut [u8]) {
        if self.layout.model == Model::RgbaPremultiplied {
            row.as_chunks_mut::<4>().0.iter_mut().for_each(divide);
        }
    }

    fn levels(&mut self, row: &[u8], count: usize) {
        let out = &mut self.out;
        let big = self.layout.big_endian;
        let short = |b: &[u8; 2]| if big { u16::from_be_bytes(*b) } else { u16::from_le_bytes(*b) };
        let word = |b: &[u8; 4]| if big { u32::from_be_bytes(*b) } else { u32::from_le_bytes(*b) };
        let grey = matches!(self.layout.model, Model::Grey);
        match (self.layout.bits, self.layout.number) {
            (8, _) => out.extend_from_slice(row.get(..count).unwrap_or(row)),
            (12, _) => {
                let pairs = row.chunks(3).flat_map(|b| {
                    let at = |i: usize| u32::from(b.get(i).copied().unwrap_or(0));
                    [at(0) << 4 | at(1) >> 4, (at(1) & 15) << 8 | at(2)]
                });
                out.extend(pairs.take(count).map(|v| match self.sixteen {
                    Sixteen::Pillow => v.min(255) as u8,
                    Sixteen::Scale => ((v * 255 + 2047) / 4095) as u8,
                }));
            }
            (16, Number::Signed) => {
                out.extend(row.as_chunks::<2>().0.iter().map(|b| (short(b) as i16).clamp(0, 255) as u8));
            }
            (16, _) => out.extend(row.as_chunks::<2>().0.iter().map(|b| match self.sixteen {
                Sixteen::Pillow if grey => short(b).min(255) as u8,
                Sixteen::Pillow => (short(b) >> 8) as u8,
                Sixteen::Scale => ((u32::from(short(b)) * 255 + 32_767) / 65_535) as u8,
            })),
            // Float to integer saturates, and what is no number becomes 0.
            (32, Number::Float) => {
                out.extend(row.as_chunks::<4>().0.iter().map(|b| f32::from_bits(word(b)) as u8))
            }
            (32, Number::Signed) => {
                out.extend(row.as_chunks::<4>().0.iter().map(|b| (word(b) as i32).clamp(0, 255) as u8));
            }
            // Pillow holds them in 32 signed bits.
            (32, _) => {
                out.extend(row.as_chunks::<4>().0.iter().map(|b| (word(b) as i32).clamp(0, 255) as u8))
            }
            (bits, _) => {
                let top = ((1u16 << bits) - 1) as u8;
                let step = if grey { 255 / top } else { 1 };
                let samples =
                    row.iter().flat_map(|b| (0..8 / bits).rev().map(move |i| (b >> (i * bits)) & top));
                out.extend(samples.take(count).map(|v| v * step));
            }
        }
        if self.layout.inverted && grey {
            out.iter_mut().for_each(|v| *v = !*v);
        }
    }

    fn finish(&mut self) {
        match self.layout.model {
            Model::RgbaPremultiplied => self.out.as_chunks_mut::<4>().0.iter_mut().for_each(divide),
            Model::YCbCr => self.out.as_chunks_mut::<3>().0.iter_mut().for_each(rgb),
            Model::PaletteAlpha => {
                let coloured = self.out.as_chunks::<2>().0.iter().flat_map(|[index, alpha]| {
                    let [r, g, b, _] = self.palette[usize::from(*index)];
                    [r, g, b, *alpha]
                });
                self.out = coloured.collect();
            }
            _ => {}
        }
    }
}

/// Takes alpha out of the colours, rounding down as Pillow does.
fn divide(pixel: &mut [u8; 4]) {
    let alpha = u32::from(pixel[3]);
    if alpha == 0 {
        *pixel = [0; 4];
        return;
    }
    pixel[..3].iter_mut().for_each(|v| *v = (u32::from(*v) * 255 / alpha).min(255) as u8);
}

/// JPEG's YCbCr to RGB in Pillow's arithmetic: six fractional bits, each product rounded, each sum cut.
fn rgb(pixel: &mut [u8; 3]) {
    let [y, cb, cr] = pixel.map(i32::from);
    let part = |factor: i32, level: i32| {
        // Factors are in units of 1e-5. Half a 64th is added and the rest cut towards zero, also below zero.
        let product = i64::from(factor) * 64 * i64::from(level - 128);
        ((product + 50_000) / 100_000) as i32
    };
    let red = y + (part(140_200, cr) >> 6);
    let green = y + ((part(-34_414, cb) + part(-71_414, cr)) >> 6);
    let blue = y + (part(177_200, cb) >> 6);
    *pixel = [red, green, blue].map(|v| v.clamp(0, 255) as u8);
}
