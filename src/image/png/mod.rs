//! PNG, and the default image of animated PNG.

mod chunks;
mod filter;
mod inflate;

use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{Alpha, DecodePolicy, Icc, Sixteen};
use super::rows::{Colour, Palette, Rows};
use super::{Header, Image};
use crate::Result;
use chunks::{Head, Region, Transparency};
use inflate::{Lines, Read};

/// Filtered bytes inflated at a time: within the second-level cache.
const BATCH: usize = 128 << 10;
/// Start and step of the columns and rows of each pass of an interlaced image.
const PASSES: [(u32, u32, u32, u32); 7] =
    [(0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)];
/// Memory of the inflater.
const INFLATE_BYTES: u64 = 64 << 10;

pub(super) fn header(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Header> {
    let head = Head::read(bytes, gate)?;
    gate.size(head.width, head.height)?;
    let (width, height) = orientation(&head, policy).size(head.width, head.height);
    Ok(Header { format: "png", width, height })
}

fn orientation(head: &Head, policy: &DecodePolicy) -> Orientation {
    if !policy.orient {
        return Orientation::default();
    }
    Orientation::find(head.exif().as_deref(), head.xmp().as_deref())
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    pixels(bytes, &Head::read(bytes, gate)?, policy, gate)
}

/// Decodes without a look at orientation and transparent colours, as Pillow does within icons.
pub(super) fn decode_bare(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let mut head = Head::read(bytes, gate)?;
    head.transparency = None;
    pixels(bytes, &head, &DecodePolicy { orient: false, ..*policy }, gate)
}

fn pixels(bytes: &[u8], head: &Head, policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    gate.size(head.width, head.height)?;
    let Region { x, y, width, height } = head.region;
    if width == 0 || height == 0 {
        return Err(gate.error("is damaged: its first frame has no pixels"));
    }
    let orientation = orientation(head, policy);
    let samples = [1, 0, 3, 1, 2, 0, 4][usize::from(head.kind)];
    let layout = Layout { depth: head.depth, samples, sixteen: policy.sixteen };
    let line = 1 + layout.bytes(width);
    let batch = (BATCH / line).max(1);
    let working = (line * (batch + 3)) as u64 * 2 + INFLATE_BYTES;
    let colour = colour(head, policy, gate)?;
    let mut rows = Rows::new(gate, policy, (head.width, head.height), colour, orientation, working)?;
    if policy.icc == Icc::Srgb {
        rows.profile(head.profile().as_deref(), policy);
    }
    let whole = (width, height) == (head.width, head.height);
    if head.interlaced || !whole {
        rows.blank(0);
    }
    let mut lines = Lines::new(bytes, head.data, policy.truncated, gate);
    let passes = if head.interlaced { &PASSES[..] } else { &[(0, 1, 0, 1)] };
    'passes: for &(column, across, row, down) in passes {
        let count = |size: u32, start: u32, step: u32| size.saturating_sub(start).div_ceil(step);
        let (columns, mut left) = (count(width, column, across), count(height, row, down));
        if columns == 0 {
            continue;
        }
        let line = 1 + layout.bytes(columns);
        let mut above = vec![0; line - 1];
        let mut scratch = vec![0; line * batch.min(left as usize)];
        let mut reduced = Vec::new();
        let mut target = y + row;
        while left > 0 {
            let want = scratch.len().min(line * left as usize);
            let Read { bytes: got, ended } = lines.read(&mut scratch[..want], line)?;
            for line in scratch[..got].chunks_exact_mut(line) {
                let Some((kind, samples)) = line.split_first_mut() else { break };
                filter::undo(*kind, layout.pixel(), &above, samples)
                    .ok_or_else(|| gate.error("is damaged: a row has an unknown filter"))?;
                above.copy_from_slice(samples);
                rows.scatter(
                    x + column,
                    target,
                    across as usize,
                    layout.reduce(samples, columns, &mut reduced),
                );
                target += down;
                left -= 1;
            }
            if ended {
                if whole && !head.interlaced {
                    rows.blank(target);
                }
                break 'passes;
            }
        }
    }
    lines.finish()?;
    rows.finish(orientation)
}

/// How a row's samples are stored.
struct Layout {
    depth: u8,
    samples: usize,
    sixteen: Sixteen,
}

impl Layout {
    /// Bytes of a row of `columns` pixels.
    fn bytes(&self, columns: u32) -> usize {
        (columns as usize * self.samples * usize::from(self.depth)).div_ceil(8)
    }

    /// Bytes of a pixel, at least 1.
    fn pixel(&self) -> usize {
        (self.samples * usize::from(self.depth)).div_ceil(8)
    }

    /// The row with one byte a sample. Grey levels of fewer bits are spread over 0 to 255 by [`colour`].
    fn reduce<'a>(&self, row: &'a [u8], columns: u32, reduced: &'a mut Vec<u8>) -> &'a [u8] {
        match self.depth {
            8 => return row,
            16 => {
                let (words, _) = row.as_chunks::<2>();
                let grey = self.samples == 1;
                reduced.clear();
                match self.sixteen {
                    Sixteen::Scale => {
                        reduced.extend(words.iter().map(|w| scale(u16::from_be_bytes(*w))));
                    }
                    Sixteen::Pillow if grey => {
                        reduced.extend(words.iter().map(|[high, low]| if *high == 0 { *low } else { 255 }));
                    }
                    Sixteen::Pillow => reduced.extend(words.iter().map(|[high, _]| *high)),
                }
            }
            depth => {
                let (bits, mask) = (usize::from(depth), ((1u16 << depth) - 1) as u8);
                reduced.clear();
                reduced.extend(
                    row.iter().flat_map(|byte| (0..8 / bits).rev().map(move |i| (byte >> (i * bits)) & mask)),
                );
                reduced.truncate(columns as usize);
            }
        }
        reduced
    }
}

/// 16 bits to 8, to the nearest level.
fn scale(value: u16) -> u8 {
    ((u32::from(value) * 255 + 32_767) / 65_535) as u8
}

fn colour(head: &Head, policy: &DecodePolicy, gate: &Gate) -> Result<Colour> {
    let key = match &head.transparency {
        Some(Transparency::Key(key)) => Some(*key),
        _ => None,
    };
    Ok(match head.kind {
        0 if head.depth == 1 => Colour::Indexed {
            palette: Box::new(levels(head.depth, key.map(|k| k[0]))),
            transparent: key.is_some(),
        },
        0 if head.depth < 8 => {
            let key = key.map(|k| k[0]);
            Colour::Levels { palette: Box::new(levels(head.depth, key)), key }
        }
        0 => Colour::Grey { key: key.map(|k| k[0]) },
        2 => Colour::Rgb { key },
        3 => {
            let (palette, transparent) = palette(head, policy, gate)?;
            Colour::Indexed { palette: Box::new(palette), transparent }
        }
        // Pillow has no mode for grey with alpha of 16 bits and takes RGBA.
        4 if head.depth == 16 => Colour::GreyAlpha { rgba: true },
        4 => Colour::GreyAlpha { rgba: false },
        _ => Colour::Rgba { rgba: true },
    })
}

/// Grey levels of 1, 2 or 4 bits as a palette.
fn levels(depth: u8, key: Option<u8>) -> Palette {
    let step = 255 / ((1u16 << depth) - 1);
    let mut palette = [[0, 0, 0, 255]; 256];
    for (level, entry) in palette.iter_mut().take(1 << depth).enumerate() {
        let v = (level as u16 * step) as u8;
        *entry = [v, v, v, if key == Some(v) { 0 } else { 255 }];
    }
    palette
}

/// The palette under its tRNS chunk; entries that the file leaves out are black and opaque.
fn palette(head: &Head, policy: &DecodePolicy, gate: &Gate) -> Result<(Palette, bool)> {
    let mut palette = [[0, 0, 0, 255]; 256];
    let stored = head.palette.unwrap_or_default();
    // Pillow counts in whole bits: one or two bytes over are dropped.
    if stored.len() / 3 > 256 {
        return Err(gate.error("is damaged: its palette has more than 256 colours"));
    }
    for (entry, rgb) in palette.iter_mut().zip(stored.as_chunks::<3>().0) {
        entry[..3].copy_from_slice(rgb);
    }
    let Some(Transparency::Palette(alpha)) = &head.transparency else { return Ok((palette, false)) };
    let needed = matches!(policy.alpha, Alpha::Over(_) | Alpha::Keep | Alpha::Native);
    let at = single(alpha);
    if needed && at.unwrap_or(alpha.len().saturating_sub(1)) > 255 {
        return Err(gate.error("is damaged: its transparency has more than 256 entries"));
    }
    match at {
        Some(at) => palette.iter_mut().skip(at).take(1).for_each(|entry| entry[3] = 0),
        None => palette.iter_mut().zip(*alpha).for_each(|(entry, alpha)| entry[3] = *alpha),
    }
    Ok((palette, true))
}

/// Where exactly one entry is 0 and all others are 255, that entry. A final line feed counts for neither, which
/// is how Pillow's pattern for this case reads.
fn single(alpha: &[u8]) -> Option<usize> {
    let alpha = alpha.strip_suffix(b"\n").unwrap_or(alpha);
    let at = alpha.iter().position(|a| *a == 0)?;
    alpha.iter().enumerate().all(|(i, a)| i == at || *a == 255).then_some(at)
}
