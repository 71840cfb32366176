//! Decompression of one strip or tile.

use fax::decoder::{DecodeStatus, Group4Decoder, pels};
use flate2::{Decompress, FlushDecompress, Status};
use weezl::{BitOrder, LzwStatus};

use super::super::buffer::zeroed;
use super::super::jpeg::{self, Decoder, Options, Output};
use super::super::limits::Gate;
use super::layout::Layout;
use crate::Result;

/// How chunks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Fax4,
    Lzw,
    Jpeg,
    Deflate,
    PackBits,
}

/// What decompression needs beside the bytes.
pub(super) struct Chunk<'a> {
    pub(super) layout: &'a Layout,
    pub(super) width: u32,
    pub(super) rows: u32,
    /// Rows that the last strip may hold beyond the picture.
    pub(super) most: u32,
    pub(super) tables: &'a [u8],
    pub(super) predictor: u64,
    /// YCbCr becomes RGB.
    pub(super) convert: bool,
    pub(super) gate: &'a Gate<'a>,
}

impl Codec {
    pub(super) fn find(layout: &Layout, gate: &Gate) -> Result<Option<Self>> {
        Ok(Some(match layout.compression {
            1 => return Ok(None),
            4 => Self::Fax4,
            5 => Self::Lzw,
            7 => Self::Jpeg,
            8 | 32_946 => Self::Deflate,
            32_773 => Self::PackBits,
            other => return Err(gate.error(format_args!("has compression {other}, which is not decoded"))),
        }))
    }

    /// The stored samples of a chunk.
    pub(super) fn decode(self, data: &[u8], chunk: &Chunk) -> Result<Vec<u8>> {
        let gate = chunk.gate;
        if self == Self::Jpeg {
            return decode_jpeg(data, chunk);
        }
        let row = chunk.layout.row_bytes(chunk.width) as usize;
        let mut out = zeroed(row * chunk.rows as usize)?;
        let turned: Vec<u8>;
        let data = if chunk.layout.reversed {
            turned = data.iter().map(|byte| byte.reverse_bits()).collect();
            &turned
        } else {
            data
        };
        match self {
            Self::Fax4 => fax(data, chunk.width, &mut out, row),
            Self::Lzw => lzw(data, &mut out),
            Self::PackBits => packbits(data, &mut out),
            Self::Deflate | Self::Jpeg => deflate(data, &mut out),
        }
        .ok_or_else(|| gate.damaged("compressed data"))?;
        if matches!(self, Self::Lzw | Self::Deflate) {
            predict(&mut out, row, chunk)?;
        }
        Ok(out)
    }
}

fn lzw(data: &[u8], out: &mut [u8]) -> Option<()> {
    let mut decoder = weezl::decode::Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    let (mut read, mut written) = (0, 0);
    while written < out.len() {
        let step = decoder.decode_bytes(data.get(read..)?, out.get_mut(written..)?);
        read += step.consumed_in;
        written += step.consumed_out;
        match step.status {
            Ok(LzwStatus::Ok) if step.consumed_in + step.consumed_out > 0 => {}
            _ => break,
        }
    }
    (written == out.len()).then_some(())
}

fn deflate(data: &[u8], out: &mut [u8]) -> Option<()> {
    let mut inflate = Decompress::new(true);
    match inflate.decompress(data, out, FlushDecompress::None) {
        Ok(Status::Ok | Status::StreamEnd) => (inflate.total_out() == out.len() as u64).then_some(()),
        _ => None,
    }
}

fn packbits(data: &[u8], out: &mut [u8]) -> Option<()> {
    let (mut read, mut written) = (0, 0);
    while written < out.len() {
        let control = *data.get(read)? as i8;
        read += 1;
        let room = out.len() - written;
        match control {
            -128 => {}
            0.. => {
                let len = (control as usize + 1).min(room);
                out.get_mut(written..written + len)?.copy_from_slice(data.get(read..read + len)?);
                read += control as usize + 1;
                written += len;
            }
            _ => {
                let len = (1 - isize::from(control)) as usize;
                let len = len.min(room);
                out.get_mut(written..written + len)?.fill(*data.get(read)?);
                read += 1;
                written += len;
            }
        }
    }
    Some(())
}

/// Black pixels become bits of 1.
fn fax(data: &[u8], width: u32, out: &mut [u8], row: usize) -> Option<()> {
    let bytes = data.iter().map(|byte| Ok::<u8, std::convert::Infallible>(*byte));
    let mut decoder = Group4Decoder::new(bytes, width).ok()?;
    for line in out.chunks_exact_mut(row) {
        if decoder.advance().ok()? == DecodeStatus::End {
            return None;
        }
        for (x, colour) in pels(decoder.transition(), width).enumerate() {
            if colour == fax::Color::Black {
                line[x / 8] |= 0x80 >> (x % 8);
            }
        }
    }
    Some(())
}

fn decode_jpeg(data: &[u8], chunk: &Chunk) -> Result<Vec<u8>> {
    let (gate, layout) = (chunk.gate, chunk.layout);
    let samples = layout.stored;
    let options = Options {
        tables: chunk.tables,
        memory: gate.memory(0)?,
        scans: jpeg::scans(chunk.width, chunk.rows),
        // Pillow's library goes on behind a strip that ends early.
        fill: true,
    };
    let mut decoder = Decoder::open(data, &options, gate)?;
    let fits = decoder.width == chunk.width && (chunk.rows..=chunk.most).contains(&decoder.height);
    if !fits || decoder.components as usize != samples {
        return Err(gate.damaged("frame header of a strip"));
    }
    gate.memory(decoder.memory)?;
    decoder.start(if chunk.convert { Output::RgbFromYCbCr } else { Output::Raw })?;
    let stride = chunk.width as usize * samples;
    let mut out = zeroed(stride * chunk.rows as usize)?;
    decoder.rows(&mut out, stride, chunk.rows)?;
    Ok(out)
}

/// Undoes the differences between neighbours.
fn predict(out: &mut [u8], row: usize, chunk: &Chunk) -> Result<()> {
    let layout = chunk.layout;
    let refuse = || {
        let what =
            format_args!("has predictor {} for {} bits, which is not decoded", chunk.predictor, layout.bits);
        chunk.gate.error(what)
    };
    match (chunk.predictor, layout.bits) {
        (1, _) => {}
        (2, 8) => out.chunks_exact_mut(row).for_each(|row| {
            for i in layout.stored..row.len() {
                row[i] = row[i].wrapping_add(row[i - layout.stored]);
            }
        }),
        (2, 16) => out.chunks_exact_mut(row).for_each(|row| {
            let (words, _) = row.as_chunks_mut::<2>();
            let get =
                |b: [u8; 2]| if layout.big_endian { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) };
            for i in layout.stored..words.len() {
                let sum = get(words[i]).wrapping_add(get(words[i - layout.stored]));
                words[i] = if layout.big_endian { sum.to_be_bytes() } else { sum.to_le_bytes() };
            }
        }),
        _ => return Err(refuse()),
    }
    Ok(())
}
