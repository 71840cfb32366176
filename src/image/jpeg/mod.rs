//! JPEG through libjpeg-turbo with its default settings, accepting exactly what Pillow accepts.

mod lib;
mod markers;

use super::buffer::room;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{DecodePolicy, Icc, Truncated};
use super::rows::{Colour, Rows, result_memory};
use super::{Header, Image, Mode};
use crate::Result;
pub(super) use lib::{Decoder, Options, Output};
use markers::Markers;

/// Scans that any file may have; real progressive files have about ten.
const MAX_SCANS: u64 = 100;
/// Scans times pixels, so that many scans over a large picture cannot take minutes.
const MAX_SCANNED_PIXELS: u64 = 1 << 32;
/// Memory of libjpeg for tables, row buffers and upsampling, a pixel of width.
const ROW_BYTES: u64 = 512;

pub(super) fn header(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Header> {
    let markers = Markers::read(bytes, gate)?;
    gate.size(markers.width, markers.height)?;
    let (width, height) = orientation(&markers, policy).size(markers.width, markers.height);
    Ok(Header { format: "jpeg", width, height })
}

fn orientation(markers: &Markers, policy: &DecodePolicy) -> Orientation {
    if policy.orient {
        Orientation::find(markers.exif.as_deref(), markers.xmp)
    } else {
        Orientation::default()
    }
}

/// Scans that a picture of this size may have.
pub(super) fn scans(width: u32, height: u32) -> u32 {
    let pixels = (u64::from(width) * u64::from(height)).max(1);
    (MAX_SCANNED_PIXELS / pixels).clamp(1, MAX_SCANS) as u32
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let markers = Markers::read(bytes, gate)?;
    let (width, height) = (markers.width, markers.height);
    gate.size(width, height)?;
    let orientation = orientation(&markers, policy);
    let turned = result_memory(width, height, 3, orientation);
    let options = Options {
        tables: &[],
        memory: gate.memory(turned)?,
        scans: scans(width, height),
        fill: policy.truncated == Truncated::Fill,
    };
    let mut decoder = Decoder::open(bytes, &options, gate)?;
    if (decoder.width, decoder.height) != (width, height) || decoder.components != markers.components {
        return Err(gate.damaged("frame header"));
    }
    let (output, colour) = match markers.components {
        4 => (Output::Cmyk, Colour::Cmyk),
        _ => (Output::Rgb, Colour::Rgb { key: None }),
    };
    let working = decoder.memory + u64::from(width) * ROW_BYTES;
    let profile = (policy.icc == Icc::Srgb).then(|| markers.profile()).flatten();
    if markers.components != 4 && profile.is_none() {
        gate.memory(turned.saturating_add(working))?;
        decoder.start(output)?;
        return orientation.apply(whole(decoder)?);
    }
    let mut rows = Rows::new(gate, policy, (width, height), colour, orientation, working)?;
    rows.profile(profile.as_deref(), policy);
    decoder.start(output)?;
    let inks = markers.components == 4;
    let mut line = vec![0; width as usize * if inks { 4 } else { 3 }];
    let stride = line.len();
    for y in 0..height {
        decoder.rows(&mut line, stride, 1)?;
        if inks {
            // Pillow takes every four-component file for Adobe's, which stores inverted ink.
            line.iter_mut().for_each(|ink| *ink = !*ink);
        }
        rows.put(0, y, &line);
    }
    decoder.finish()?;
    rows.finish(orientation)
}

/// All rows of a started RGB decoder, whose memory is not zeroed first.
fn whole(mut decoder: Decoder) -> Result<Image> {
    let (width, height) = (decoder.width, decoder.height);
    let stride = width as usize * 3;
    let bytes = stride * height as usize;
    let mut samples = room(bytes)?;
    decoder.rows_into(&mut samples.spare_capacity_mut()[..bytes], stride, height)?;
    decoder.finish()?;
    // SAFETY: all rows were decoded, and they fill the memory without gaps.
    unsafe { samples.set_len(bytes) };
    Ok(Image { width, height, channels: 3, mode: Mode::Plain, samples })
}
