//! GIF: the first frame on its canvas. Later frames are never read.

mod lzw;

use super::bytes::Bytes;
use super::limits::Gate;
use super::policy::{DecodePolicy, Truncated};
use super::rows::{Colour, Palette, Rows};
use super::{Header, Image};
use super::{buffer::zeroed, orient::Orientation};
use crate::Result;
use lzw::Stop;

/// Tables of the LZW decoder.
const TABLES: u64 = 32 << 10;

/// Everything before the compressed pixels of the first frame.
struct Head<'a> {
    width: u32,
    height: u32,
    frame: Frame,
    /// The palette in force; none where it is the ramp of greys.
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
    bits: u32,
    data: &'a [u8],
}

struct Frame {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
    interlaced: bool,
}

pub(super) fn header(bytes: &[u8], gate: &Gate) -> Result<Header> {
    let head = Head::read(bytes, gate)?;
    Ok(Header { format: "gif", width: head.width, height: head.height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let head = Head::read(bytes, gate)?;
    let frame = &head.frame;
    let colour = head.colour();
    let (width, height) = (frame.width as usize, frame.height as usize);
    let working = width as u64 * height as u64 + TABLES;
    let size = (head.width, head.height);
    let mut rows = Rows::new(gate, policy, size, colour, Orientation::default(), working)?;
    let blank = head.transparent.unwrap_or(0);
    let mut pixels = zeroed(width * height)?;
    match lzw::decode(head.data, head.bits, &mut pixels) {
        Ok(()) => {}
        Err(_) if policy.truncated == Truncated::Fill => {}
        Err(Stop::Truncated) => return Err(gate.truncated()),
        Err(Stop::Damaged) => return Err(gate.damaged("compressed data")),
    }
    let mut line = vec![blank; head.width as usize];
    for y in (0..head.height).filter(|y| !(frame.y..frame.y + frame.height).contains(y)) {
        rows.put(0, y, &line);
    }
    for (y, row) in order(frame.height, frame.interlaced).zip(pixels.chunks_exact(width)) {
        if let Some(target) = line.get_mut(frame.x as usize..frame.x as usize + width) {
            target.copy_from_slice(row);
        }
        rows.put(0, frame.y + y, &line);
    }
    rows.finish(Orientation::default())
}

/// Rows in the order in which they are stored.
fn order(height: u32, interlaced: bool) -> impl Iterator<Item = u32> {
    let passes: &[(u32, usize)] = if interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    passes.iter().flat_map(move |(start, step)| (*start..height).step_by(*step))
}

impl<'a> Head<'a> {
    fn read(bytes: &'a [u8], gate: &Gate) -> Result<Self> {
        let head =
            Self::parse(bytes).ok_or_else(|| gate.error("is cut short or damaged before its first frame"))?;
        gate.size(head.width, head.height)?;
        if head.frame.width == 0 || head.frame.height == 0 {
            return Err(gate.error("is damaged: its first frame has no pixels"));
        }
        Ok(head)
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (mut width, mut height) = (u32::from(bytes.u16_le(6)?), u32::from(bytes.u16_le(8)?));
        let flags = bytes.u8_at(10)?;
        bytes.u8_at(12)?;
        let mut at = 13;
        let mut palette = None;
        if flags & 0x80 != 0 {
            palette = coloured(table(bytes, at, flags)?);
            at += 3 << ((flags & 7) + 1);
        }
        let mut transparent = None;
        loop {
            let kind = bytes.u8_at(at)?;
            at += 1;
            match kind {
                b';' => return None,
                b'!' => {
                    let label = bytes.u8_at(at)?;
                    let (block, next) = block(bytes, at + 1);
                    at = next;
                    match (label, block) {
                        (0xF9, Some(control)) => {
                            if control.u8_at(0)? & 1 != 0 {
                                transparent = Some(control.u8_at(3)?);
                            }
                            control.u16_le(1)?;
                        }
                        // A comment ends with its own empty block; one that starts with it has none to skip.
                        (0xFE, None) => continue,
                        // The loop count of an animation is a block of its own to Pillow, even an empty one.
                        (0xFF, Some(name)) if name.starts_with(b"NETSCAPE2.0") => {
                            at = self::block(bytes, at).1
                        }
                        _ => {}
                    }
                    at = skip(bytes, at);
                }
                b',' => {
                    let field = |i: usize| bytes.u16_le(at + i).map(u32::from);
                    let (x, y, w, h) = (field(0)?, field(2)?, field(4)?, field(6)?);
                    let flags = bytes.u8_at(at + 8)?;
                    at += 9;
                    (width, height) = (width.max(x + w), height.max(y + h));
                    if flags & 0x80 != 0 {
                        // Pillow falls back to the file's palette where the frame's own is the ramp of greys.
                        palette = coloured(table(bytes, at, flags)?).or(palette);
                        at += 3 << ((flags & 7) + 1);
                    }
                    let bits = u32::from(bytes.u8_at(at)?);
                    let frame = Frame { x, y, width: w, height: h, interlaced: flags & 0x40 != 0 };
                    let data = bytes.get(at + 1..)?;
                    return Some(Self { width, height, frame, palette, transparent, bits, data });
                }
                _ => {}
            }
        }
    }

    fn colour(&self) -> Colour {
        let Some(stored) = self.palette else { return Colour::Grey { key: self.transparent } };
        let mut palette: Palette = [[0, 0, 0, 255]; 256];
        for (entry, rgb) in palette.iter_mut().zip(stored.as_chunks::<3>().0) {
            entry[..3].copy_from_slice(rgb);
        }
        if let Some(index) = self.transparent {
            palette[usize::from(index)][3] = 0;
        }
        Colour::Indexed { palette: Box::new(palette), transparent: self.transparent.is_some() }
    }
}

/// A colour table; one that the file cuts within a colour is damaged.
fn table(bytes: &[u8], at: usize, flags: u8) -> Option<&[u8]> {
    let end = (at + (3 << ((flags & 7) + 1))).min(bytes.len());
    bytes.get(at..end).filter(|table| table.len().is_multiple_of(3))
}

/// The table, unless it is the ramp of greys, which Pillow leaves aside.
fn coloured(table: &[u8]) -> Option<&[u8]> {
    let ramp = table.as_chunks::<3>().0.iter().zip(0..=255).all(|(rgb, level)| *rgb == [level; 3]);
    (!ramp).then_some(table)
}

/// The block at `at`, none if it is empty, and what follows it.
fn block(bytes: &[u8], at: usize) -> (Option<&[u8]>, usize) {
    match bytes.u8_at(at) {
        None | Some(0) => (None, at.saturating_add(1)),
        Some(len) => {
            let end = at + 1 + usize::from(len);
            (bytes.get(at + 1..end.min(bytes.len())), end)
        }
    }
}

/// What follows the blocks from `at` on.
fn skip(bytes: &[u8], mut at: usize) -> usize {
    while let (Some(_), next) = block(bytes, at) {
        at = next;
    }
    at.saturating_add(1)
}
