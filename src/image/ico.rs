//! Windows icons: the largest picture, as PNG or as a bitmap with a mask.

use super::bmp::Bitmap;
use super::bytes::Bytes;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::DecodePolicy;
use super::rows::{Colour, Rows};
use super::{Header, Image, png};
use crate::Result;

const ENTRY: usize = 16;

/// The entry of the directory that Pillow opens.
struct Entry {
    /// Bits a pixel, as the directory says.
    bits: u16,
    size: usize,
    start: usize,
}

pub(super) fn header(bytes: &[u8], gate: &Gate) -> Result<Header> {
    let entry = largest(bytes).ok_or_else(|| gate.error("has no readable directory"))?;
    if let Some(picture) = picture(bytes, &entry) {
        let Header { width, height, .. } = png::header(picture, &DecodePolicy::default(), gate)?;
        return Ok(Header { format: "ico", width, height });
    }
    let bitmap = open(bytes, &entry, gate)?;
    Ok(Header { format: "ico", width: bitmap.width, height: bitmap.height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let entry = largest(bytes).ok_or_else(|| gate.error("has no readable directory"))?;
    if let Some(picture) = picture(bytes, &entry) {
        return png::decode_bare(picture, policy, gate);
    }
    let bitmap = open(bytes, &entry, gate)?;
    let (width, height) = (bitmap.width, bitmap.height);
    let mask = Mask::find(bytes, &entry, &bitmap).ok_or_else(|| gate.truncated())?;
    let colour = bitmap.colour(gate)?;
    let mut rows = Rows::new(
        gate,
        policy,
        (width, height),
        Colour::Rgba { rgba: true },
        Orientation::default(),
        bitmap.working() + u64::from(width) * 8,
    )?;
    let mut line = vec![0; width as usize * 4];
    bitmap.rows(bytes, policy, gate, |y, row| {
        let (pixels, _) = line.as_chunks_mut::<4>();
        colour.opaque(row, pixels);
        mask.apply(y, pixels);
        rows.put(0, y, &line);
    })?;
    rows.finish(Orientation::default())
}

fn picture<'a>(bytes: &'a [u8], entry: &Entry) -> Option<&'a [u8]> {
    bytes.get(entry.start..).filter(|rest| rest.starts_with(b"\x89PNG\r\n\x1a\n"))
}

/// The bitmap without the half of its height that is the mask.
fn open(bytes: &[u8], entry: &Entry, gate: &Gate) -> Result<Bitmap> {
    let mut bitmap = Bitmap::read(bytes, entry.start, 0, gate)?;
    bitmap.height /= 2;
    gate.size(bitmap.width, bitmap.height)?;
    Ok(bitmap)
}

/// The largest entry; of those the one with the fewest colours; of those the first.
fn largest(bytes: &[u8]) -> Option<Entry> {
    let count = usize::from(bytes.u16_le(4)?);
    let directory = bytes.span(6, count * ENTRY)?;
    let best = directory.chunks_exact(ENTRY).min_by_key(|entry| {
        let side = |at: usize| u32::from(entry[at].wrapping_sub(1)) + 1;
        let bits = u32::from(entry.u16_le(6).unwrap_or(0));
        let depth = match (bits, entry[2]) {
            (0, 0 | 1) => 256,
            (0, colours) => u32::from(colours - 1).ilog2() + 1,
            (bits, _) => bits,
        };
        (std::cmp::Reverse(side(0) * side(1)), depth)
    })?;
    Some(Entry { bits: best.u16_le(6)?, size: best.u32_le(8)? as usize, start: best.u32_le(12)? as usize })
}

/// Where alpha comes from; rows run upward.
enum Mask<'a> {
    /// The fourth byte of each pixel.
    Bytes { pixels: &'a [u8], width: usize, height: u32 },
    /// A bit of each pixel, 1 for transparent.
    Bits { rows: &'a [u8], stride: usize, height: u32 },
}

impl<'a> Mask<'a> {
    fn find(bytes: &'a [u8], entry: &Entry, bitmap: &Bitmap) -> Option<Self> {
        let (width, height) = (bitmap.width as usize, bitmap.height);
        if entry.bits == 32 {
            let pixels = bytes.span(bitmap.pixels, width.checked_mul(height as usize)?.checked_mul(4)?)?;
            return Some(Self::Bytes { pixels, width, height });
        }
        let stride = width.next_multiple_of(32) / 8;
        let len = stride.checked_mul(height as usize)?;
        let start = entry.start.checked_add(entry.size)?.checked_sub(len)?;
        // The last row may lack its padding.
        let least = len.checked_sub(stride)? + width.div_ceil(8);
        let rows = bytes.get(start..bytes.len().min(start + len)).filter(|rows| rows.len() >= least)?;
        Some(Self::Bits { rows, stride, height })
    }

    fn apply(&self, y: u32, pixels: &mut [[u8; 4]]) {
        match self {
            Self::Bytes { pixels: source, width, height } => {
                let start = (height - 1 - y) as usize * width * 4;
                let row = source.get(start..start + width * 4).unwrap_or_default();
                pixels.iter_mut().zip(row.as_chunks::<4>().0).for_each(|(pixel, bgra)| pixel[3] = bgra[3]);
            }
            Self::Bits { rows, stride, height } => {
                let start = (height - 1 - y) as usize * stride;
                let row = rows.get(start..rows.len().min(start + stride)).unwrap_or_default();
                let bits = row.iter().flat_map(|byte| (0..8).rev().map(move |i| (byte >> i) & 1));
                pixels
                    .iter_mut()
                    .zip(bits)
                    .for_each(|(pixel, bit)| pixel[3] = if bit == 0 { 255 } else { 0 });
            }
        }
    }
}
