//! Portable bitmaps, greymaps and pixmaps (P1 to P6).

use super::bytes::Bytes;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{DecodePolicy, Sixteen, Truncated};
use super::rows::{Colour, Rows};
use super::{Header, Image};
use crate::Result;

/// Characters of a number.
const MAX_TOKEN: usize = 10;

struct Head {
    width: u32,
    height: u32,
    /// Samples a pixel; 1 or 3.
    samples: usize,
    /// Numbers as text.
    plain: bool,
    /// Highest level; 1 with `bilevel`, whose 1 is black.
    top: u32,
    bilevel: bool,
    start: usize,
}

pub(super) fn header(bytes: &[u8], gate: &Gate) -> Result<Header> {
    let head = Head::read(bytes, gate)?;
    Ok(Header { format: "ppm", width: head.width, height: head.height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let head = Head::read(bytes, gate)?;
    let colour = match head.samples {
        3 => Colour::Rgb { key: None },
        _ if head.bilevel => Colour::Bilevel,
        _ => Colour::Grey { key: None },
    };
    let count = head.width as usize * head.samples;
    let size = (head.width, head.height);
    let mut rows = Rows::new(gate, policy, size, colour, Orientation::default(), count as u64 * 4)?;
    let mut levels = vec![0u32; count];
    let mut row = vec![0u8; count];
    let mut at = head.start;
    let mut token = Vec::new();
    for y in 0..head.height {
        match head.line(bytes, &mut at, &mut levels, &mut token, gate)? {
            true => {}
            false if policy.truncated == Truncated::Fill && head.unscaled() => break,
            false => return Err(gate.truncated()),
        }
        for (out, level) in row.iter_mut().zip(&levels) {
            *out = head.level(*level, policy.sixteen);
        }
        rows.put(0, y, &row);
    }
    rows.finish(Orientation::default())
}

impl Head {
    fn read(bytes: &[u8], gate: &Gate) -> Result<Self> {
        let damaged = || gate.error("is damaged: its header does not hold the numbers it should");
        let kind = bytes.u8_at(1).unwrap_or(0);
        if !bytes.u8_at(2).is_some_and(space) {
            return Err(damaged());
        }
        let mut at = 3;
        let mut number = || number(bytes, &mut at).ok_or_else(damaged);
        let (width, height) = (number()?, number()?);
        let bilevel = matches!(kind, b'1' | b'4');
        let top = if bilevel { 1 } else { number()? };
        if !(1..=65_535).contains(&top) {
            return Err(gate.error(format_args!("is damaged: its highest level is {top}, not 1 to 65535")));
        }
        gate.size(width, height)?;
        let samples = if matches!(kind, b'3' | b'6') { 3 } else { 1 };
        Ok(Self { width, height, samples, plain: kind <= b'3', top, bilevel, start: at })
    }

    /// Reads one row of levels; false where the file ends first.
    fn line(
        &self,
        bytes: &[u8],
        at: &mut usize,
        levels: &mut [u32],
        token: &mut Vec<u8>,
        gate: &Gate,
    ) -> Result<bool> {
        if self.plain {
            for level in levels {
                let next = if self.bilevel { digit(bytes, at) } else { plain(bytes, at, token) };
                match next {
                    Some(value) if value <= self.top => *level = value,
                    Some(_) => return Err(gate.error("is damaged: a level is no number up to the highest")),
                    None => return Ok(false),
                }
            }
            return Ok(true);
        }
        let len = match (self.bilevel, self.top) {
            (true, _) => levels.len().div_ceil(8),
            (_, 256..) => levels.len() * 2,
            _ => levels.len(),
        };
        let Some(row) = bytes.span(*at, len) else { return Ok(false) };
        *at += len;
        match (self.bilevel, self.top) {
            (true, _) => {
                let bits = row.iter().flat_map(|byte| (0..8).rev().map(move |i| (byte >> i) & 1));
                levels.iter_mut().zip(bits).for_each(|(level, bit)| *level = u32::from(bit));
            }
            (_, 256..) => {
                let words = row.as_chunks::<2>().0;
                levels.iter_mut().zip(words).for_each(|(level, w)| *level = u16::from_be_bytes(*w).into());
            }
            _ => levels.iter_mut().zip(row).for_each(|(level, byte)| *level = u32::from(*byte)),
        }
        Ok(true)
    }

    /// Whether the file's levels are those of the result; only such files does Pillow fill.
    fn unscaled(&self) -> bool {
        !self.plain && (self.bilevel || self.top == 255 || (self.top == 65_535 && self.samples == 1))
    }

    /// A level over the range of 8 bits, as Pillow rounds it.
    fn level(&self, level: u32, sixteen: Sixteen) -> u8 {
        if self.bilevel {
            return if level == 0 { 255 } else { 0 };
        }
        let deep = self.top > 255;
        let share = f64::from(level) / f64::from(self.top);
        if deep && self.samples == 1 && sixteen == Sixteen::Pillow {
            // Grey of more than 8 bits is stretched over 16 bits, then clipped.
            return (share * 65_535.0).round_ties_even().min(255.0) as u8;
        }
        (share * 255.0).round_ties_even().min(255.0) as u8
    }
}

fn space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

/// The next number of the header. A comment may stand within it.
fn number(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut token = Vec::new();
    while token.len() <= MAX_TOKEN {
        let Some(byte) = bytes.u8_at(*at) else { break };
        *at += 1;
        match byte {
            b'#' => {
                while bytes.u8_at(*at).is_some_and(|b| b != b'\n' && b != b'\r') {
                    *at += 1;
                }
                *at += 1;
            }
            byte if space(byte) => {
                if !token.is_empty() {
                    break;
                }
            }
            byte => token.push(byte),
        }
    }
    parse(&token)
}

fn parse(token: &[u8]) -> Option<u32> {
    let digits = !token.is_empty() && token.len() <= MAX_TOKEN && token.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(token).ok().filter(|_| digits)?;
    Some(text.parse().unwrap_or(u32::MAX))
}

/// Steps over a comment, its line end included.
fn comment(bytes: &[u8], at: &mut usize) {
    while let Some(byte) = bytes.u8_at(*at) {
        *at += 1;
        if byte == b'\n' || byte == b'\r' {
            break;
        }
    }
}

/// The next digit of a plain bitmap.
fn digit(bytes: &[u8], at: &mut usize) -> Option<u32> {
    loop {
        match bytes.u8_at(*at)? {
            b'#' => comment(bytes, at),
            byte if space(byte) => *at += 1,
            byte => {
                *at += 1;
                return Some(if byte == b'0' || byte == b'1' { u32::from(byte - b'0') } else { u32::MAX });
            }
        }
    }
}

/// The next number of plain pixels. A comment with its line end is nothing, so that it joins what it parts.
fn plain(bytes: &[u8], at: &mut usize, token: &mut Vec<u8>) -> Option<u32> {
    token.clear();
    while let Some(byte) = bytes.u8_at(*at) {
        match byte {
            b'#' => comment(bytes, at),
            byte if space(byte) => {
                *at += 1;
                if !token.is_empty() {
                    break;
                }
            }
            byte => {
                *at += 1;
                if token.len() <= MAX_TOKEN {
                    token.push(byte);
                }
            }
        }
    }
    if token.is_empty() { None } else { Some(parse(token).unwrap_or(u32::MAX)) }
}
