//! The headers of BMP, as Pillow reads them.

use super::super::bytes::Bytes;
use super::super::limits::Gate;
use crate::Result;

/// How the pixels are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::image) enum Coding {
    Raw,
    Rle8,
    Rle4,
}

/// How a pixel's bits are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::image) enum Packing {
    /// An index or level of 1, 4 or 8 bits.
    Bits(usize),
    /// 16 bits: red and blue of 5, green of 5 or 6.
    Five { green: u32 },
    /// Bytes; where red, green, blue and alpha lie among them.
    Colour { bytes: usize, place: [usize; 4], alpha: bool },
}

/// A bitmap before its pixels.
#[derive(Clone, Debug)]
pub(in crate::image) struct Bitmap {
    pub(in crate::image) width: u32,
    pub(in crate::image) height: u32,
    pub(in crate::image) top_down: bool,
    pub(in crate::image) coding: Coding,
    pub(in crate::image) packing: Packing,
    /// Bytes from one row to the next.
    pub(in crate::image) stride: usize,
    /// Where the pixels start in the file.
    pub(in crate::image) pixels: usize,
    /// Entries of blue, green, red and the bytes of one; none where they are a ramp of greys.
    pub(in crate::image) palette: Option<(Vec<u8>, usize)>,
    /// Black and white: level 1 is white.
    pub(in crate::image) bilevel: bool,
}

/// Masks of red, green, blue and alpha in 32 bits, and the bytes where those lie.
const MASKS: [([u32; 4], [usize; 4], bool); 8] = [
    ([0xFF_0000, 0xFF00, 0xFF, 0], [2, 1, 0, 0], false),
    ([0xFF00_0000, 0xFF_0000, 0xFF00, 0], [3, 2, 1, 0], false),
    ([0xFF00_0000, 0xFF00, 0xFF, 0], [3, 1, 0, 0], false),
    ([0xFF00_0000, 0xFF_0000, 0xFF00, 0xFF], [3, 2, 1, 0], true),
    ([0xFF, 0xFF00, 0xFF_0000, 0xFF00_0000], [0, 1, 2, 3], true),
    ([0xFF_0000, 0xFF00, 0xFF, 0xFF00_0000], [2, 1, 0, 3], true),
    ([0xFF00_0000, 0xFF00, 0xFF, 0xFF_0000], [3, 1, 0, 2], true),
    ([0, 0, 0, 0], [2, 1, 0, 3], true),
];
/// Blue, green, red.
const BGR: [usize; 4] = [2, 1, 0, 0];
/// Entries of a palette that are read.
const MAX_COLOURS: u32 = 1 << 16;

impl Bitmap {
    /// Reads the header at `start`. `pixels` is where the file says its pixels lie; 0 for directly behind.
    pub(in crate::image) fn read(bytes: &[u8], start: usize, pixels: usize, gate: &Gate) -> Result<Self> {
        let short = || gate.truncated();
        let size = bytes.u32_le(start).ok_or_else(short)? as usize;
        if !matches!(size, 12 | 40 | 52 | 56 | 64 | 108 | 124) {
            return Err(gate.error(format_args!("has a header of {size} bytes, a kind that is not decoded")));
        }
        let head = bytes.span(start, size).ok_or_else(short)?;
        let mut at = start + size;
        let half = |at| head.u16_le(at).map(u32::from).unwrap_or(0);
        let word = |at| head.u32_le(at).unwrap_or(0);
        let core = size == 12;
        let (width, height, bits) =
            if core { (half(4), half(6), half(10)) } else { (word(4), word(8), half(14)) };
        let (compression, colours) = if core { (0, 0) } else { (word(16), word(32)) };
        let top_down = !core && head.u8_at(11) == Some(0xFF);
        let height = if top_down { height.wrapping_neg() } else { height };
        let mut packing = match bits {
            1 | 4 | 8 => Packing::Bits(bits as usize),
            16 => Packing::Five { green: 5 },
            24 => Packing::Colour { bytes: 3, place: BGR, alpha: false },
            32 => Packing::Colour { bytes: 4, place: BGR, alpha: false },
            _ => return Err(gate.error(format_args!("has {bits} bits a pixel, a depth that is not decoded"))),
        };
        let coding = match compression {
            0 => Coding::Raw,
            1 => Coding::Rle8,
            2 => Coding::Rle4,
            3 => {
                let masks = if size >= 52 {
                    [word(40), word(44), word(48), if size >= 56 { word(52) } else { 0 }]
                } else {
                    let mask = |i: usize| bytes.u32_le(at + 4 * i);
                    let masks = mask(0).zip(mask(1)).zip(mask(2)).ok_or_else(short)?;
                    at += 12;
                    [masks.0.0, masks.0.1, masks.1, 0]
                };
                packing = masked(bits, masks)
                    .ok_or_else(|| gate.error("has colour masks that are not decoded: save it without"))?;
                Coding::Raw
            }
            other => return Err(gate.error(format_args!("has compression {other}, which is not decoded"))),
        };
        let entry = if core { 3 } else { 4 };
        let colours = if colours == 0 { 1 << bits.min(16) } else { colours };
        let mut pixels = pixels;
        let behind = pixels == 14 + size && start == 14;
        if behind && bits <= 8 {
            pixels = pixels.saturating_add(colours as usize * entry);
        }
        let (mut palette, mut bilevel) = (None, false);
        if bits <= 8 {
            if colours > MAX_COLOURS {
                return Err(gate.error(format_args!("is damaged: its palette has {colours} colours")));
            }
            let end = (at + colours as usize * entry).min(bytes.len());
            let table = bytes.get(at..end).unwrap_or_default();
            at = end;
            if ramp(table, entry, colours) {
                bilevel = colours <= 2;
                packing = Packing::Bits(if bilevel { 1 } else { 8 });
            } else {
                palette = Some((table.to_vec(), entry));
            }
        }
        let stride = ((u64::from(width) * u64::from(bits) + 31) >> 3) & !3;
        let stride = usize::try_from(stride).map_err(|_| short())?;
        let pixels = if pixels == 0 { at } else { pixels };
        Ok(Self { width, height, top_down, coding, packing, stride, pixels, palette, bilevel })
    }
}

/// Whether a palette holds the greys from black upward, or black and white; only such a one is left aside.
fn ramp(table: &[u8], entry: usize, colours: u32) -> bool {
    (0..colours).all(|i| {
        let level = if colours == 2 && i == 1 { 255 } else { i as u8 };
        table.span(i as usize * entry, 3) == Some(&[level; 3])
    })
}

fn masked(bits: u32, masks: [u32; 4]) -> Option<Packing> {
    let [red, green, blue, _] = masks;
    match (bits, [red, green, blue]) {
        (32, _) => {
            let (_, place, alpha) = MASKS.iter().find(|(known, ..)| *known == masks)?;
            Some(Packing::Colour { bytes: 4, place: *place, alpha: *alpha })
        }
        (24, [0xFF_0000, 0xFF00, 0xFF]) => Some(Packing::Colour { bytes: 3, place: BGR, alpha: false }),
        (16, [0xF800, 0x7E0, 0x1F]) => Some(Packing::Five { green: 6 }),
        (16, [0x7C00, 0x3E0, 0x1F]) => Some(Packing::Five { green: 5 }),
        _ => None,
    }
}

impl Packing {
    /// Bits of one pixel.
    pub(in crate::image) fn bits(self) -> usize {
        match self {
            Self::Bits(bits) => bits,
            Self::Five { .. } => 16,
            Self::Colour { bytes, .. } => bytes * 8,
        }
    }

    /// The row with one byte a sample.
    pub(in crate::image) fn unpack<'a>(self, row: &'a [u8], width: usize, out: &'a mut Vec<u8>) -> &'a [u8] {
        out.clear();
        match self {
            Self::Bits(8) => return row,
            Self::Bits(bits) => {
                let mask = ((1u16 << bits) - 1) as u8;
                out.extend(
                    row.iter().flat_map(|b| (0..8 / bits).rev().map(move |i| (b >> (i * bits)) & mask)),
                );
                out.truncate(width);
            }
            Self::Five { green } => {
                let (red, top) = (5 + green, (1 << green) - 1);
                out.extend(row.as_chunks::<2>().0.iter().flat_map(|pair| {
                    let pixel = u32::from(u16::from_le_bytes(*pair));
                    let level = |shift: u32, top: u32| (((pixel >> shift) & top) * 255 / top) as u8;
                    [level(red, 31), level(5, top), level(0, 31)]
                }));
            }
            Self::Colour { bytes, place: [r, g, b, a], alpha } => {
                for pixel in row.chunks_exact(bytes) {
                    out.extend_from_slice(&[pixel[r], pixel[g], pixel[b]]);
                    out.extend(alpha.then(|| pixel[a]));
                }
            }
        }
        out
    }
}
