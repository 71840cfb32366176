//! WebP through libwebp: still pictures and the first frame of animations, on their canvas.

mod lib;

use super::buffer::zeroed;
use super::bytes::Bytes;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{DecodePolicy, Icc};
use super::rows::{Colour, Rows, channels, composited};
use super::{Header, Image};
use crate::Result;
use lib::Container;

/// Memory of libwebp, a pixel of the frame: the lossless decoder holds one 32-bit image.
const PIXEL_BYTES: u64 = 4;
/// Memory of libwebp beside that.
const BASE_BYTES: u64 = 4 << 20;

pub(super) fn header(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Header> {
    let container = open(bytes, gate)?;
    let (width, height) = orientation(&container, policy).size(container.width, container.height);
    Ok(Header { format: "webp", width, height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let container = open(bytes, gate)?;
    let size = (container.width, container.height);
    let orientation = orientation(&container, policy);
    let frame = container.first().ok_or_else(|| gate.damaged("first frame"))?;
    let opaque = Colour::Rgb { key: None };
    let colour = if container.has_alpha { Colour::Rgba { rgba: true } } else { opaque.clone() };
    let working = u64::from(frame.width) * u64::from(frame.height) * PIXEL_BYTES + BASE_BYTES;
    if !composited(&colour, policy) && policy.icc == Icc::Ignore {
        // Where the result has no alpha, libwebp leaves it out; the colours are the same.
        let colour = if channels(&colour, policy) == 4 { Colour::Rgba { rgba: true } } else { opaque };
        let mut rows = Rows::new(gate, policy, size, colour, orientation, working)?;
        let (samples, stride) = rows.samples_mut();
        frame.decode(samples, stride, gate)?;
        return rows.finish(orientation);
    }
    let stride = container.width as usize * if container.has_alpha { 4 } else { 3 };
    let canvas = stride as u64 * u64::from(container.height);
    let mut rows = Rows::new(gate, policy, size, colour, orientation, working + canvas)?;
    rows.profile(container.chunk(c"ICCP"), policy);
    let mut canvas = zeroed(stride * container.height as usize)?;
    frame.decode(&mut canvas, stride, gate)?;
    for (y, row) in (0..container.height).zip(canvas.chunks_exact(stride)) {
        rows.put(0, y, row);
    }
    drop(canvas);
    rows.finish(orientation)
}

/// Passes size and frame count before libwebp allocates anything in proportion to them.
fn open<'a>(bytes: &'a [u8], gate: &Gate) -> Result<Container<'a>> {
    if let Some((width, height)) = stated_size(bytes) {
        gate.size(width, height)?;
    }
    gate.frames(frames(bytes))?;
    let container =
        Container::open(bytes).ok_or_else(|| gate.error("is cut short or its chunks are damaged"))?;
    gate.size(container.width, container.height)?;
    Ok(container)
}

fn orientation(container: &Container, policy: &DecodePolicy) -> Orientation {
    if !policy.orient {
        return Orientation::default();
    }
    Orientation::find(container.chunk(c"EXIF"), container.chunk(c"XMP "))
}

/// The size in the first chunk, whatever follows it.
fn stated_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let u24 = |at| Some(bytes.u32_le(at)? & 0xFF_FFFF);
    match bytes.span(12, 4)? {
        b"VP8 " => Some((u32::from(bytes.u16_le(26)? & 0x3FFF), u32::from(bytes.u16_le(28)? & 0x3FFF))),
        b"VP8X" => {
            Some((u24(24)? + 1, u32::from(bytes.u16_le(27)?) + (u32::from(bytes.u8_at(29)?) << 16) + 1))
        }
        b"VP8L" => {
            let bits = bytes.u32_le(21)?;
            Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
        }
        _ => None,
    }
}

fn frames(bytes: &[u8]) -> u64 {
    let mut count = 0;
    let mut at = 12usize;
    while let (Some(name), Some(len)) = (bytes.span(at, 4), bytes.u32_le(at + 4)) {
        count += u64::from(name == b"ANMF");
        at = at.saturating_add(8 + len as usize + (len & 1) as usize);
    }
    count
}
