//! TIFF: the first picture, in strips or tiles, in the compressions and pixel kinds of docs/decoding.md.

mod codec;
mod layout;
mod places;
mod unpack;

use super::buffer::zeroed;
use super::bytes::Bytes;
use super::ifd::Ifd;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{DecodePolicy, Truncated};
use super::rows::Rows;
use super::{Header, Image};
use crate::Result;
use codec::{Chunk, Codec};
use layout::{Layout, Model, tag};
use places::Grid;
use unpack::Unpack;

/// Compressed strips may overlap in the file; together they have at most so many times its bytes.
const MAX_REUSE: u64 = 2;

pub(super) fn header(bytes: &[u8], gate: &Gate) -> Result<Header> {
    let ifd = open(bytes, gate)?;
    let layout = Layout::read(&ifd, gate)?;
    let (width, height) = orientation(&ifd).size(layout.width, layout.height);
    Ok(Header { format: "tiff", width, height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let ifd = open(bytes, gate)?;
    let mut layout = Layout::read(&ifd, gate)?;
    let codec = Codec::find(&layout, gate)?;
    check(&layout, codec, &ifd, gate)?;
    let convert = codec == Some(Codec::Jpeg) && layout.model == Model::YCbCr;
    if convert {
        layout.model = Model::Rgb;
    }
    if codec.is_some() && layout.planar {
        layout.planar = layout.samples > 1;
        if layout.unnamed_alpha {
            layout.model = Model::RgbaPremultiplied;
        }
    }
    let grid = Grid::read(&ifd, &layout, gate)?;
    let orientation = orientation(&ifd);
    let mut picture = Picture::new(&ifd, &layout, &grid, policy, orientation, gate)?;
    match codec {
        None => raw(bytes, &ifd, &grid, policy, &mut picture)?,
        Some(codec) => coded(bytes, &ifd, &grid, codec, convert, &mut picture)?,
    }
    picture.finish(orientation)
}

fn open<'a>(bytes: &'a [u8], gate: &Gate) -> Result<Ifd<'a>> {
    Ifd::first(bytes).ok_or_else(|| gate.error("is cut short before its directory"))
}

/// Pillow turns this format while it loads it, whether asked or not.
fn orientation(ifd: &Ifd) -> Orientation {
    Orientation::of_directory(ifd, ifd.bytes(tag::XMP))
}

/// Combinations that the parts could decode, but Pillow does not, or not rightly.
fn check(layout: &Layout, codec: Option<Codec>, ifd: &Ifd, gate: &Gate) -> Result<()> {
    let alone = matches!(layout.model, Model::GreyAlpha | Model::PaletteAlpha | Model::YCbCr);
    let refused = match codec {
        _ if layout.planar && alone => "planes of grey with alpha, palette with alpha or YCbCr",
        // Pillow lists these, but cannot read them.
        None if layout.reversed && layout.model == Model::Palette && layout.bits < 8 => {
            "palettes of reversed bits"
        }
        None if layout.reversed && layout.inverted && layout.bits == 8 => "inverted grey of reversed bits",
        None if layout.planar && (layout.bits != 8 || layout.reversed || layout.inverted) => {
            "uncompressed planes of other than 8 plain bits"
        }
        None if layout.planar && (layout.model == Model::RgbaPremultiplied || layout.unnamed_alpha) => {
            "uncompressed planes of alpha that is multiplied or not named"
        }
        None if layout.model == Model::YCbCr => match ifd.integers(tag::SUBSAMPLING).as_deref() {
            None | Some([1, 1]) => return Ok(()),
            _ => "uncompressed YCbCr with fewer samples of colour",
        },
        None => return Ok(()),
        Some(_) if layout.planar && layout.samples != layout.model.samples() => "more planes than are used",
        Some(Codec::Jpeg) if layout.bits != 8 => "JPEG strips of other than 8 bits",
        Some(Codec::Jpeg) => return Ok(()),
        Some(Codec::Fax4) if layout.bits != 1 => "fax compression of more than one bit",
        Some(_) if layout.model == Model::YCbCr => "compressed YCbCr other than JPEG",
        Some(_) if layout.luma => "compressed luma alone",
        Some(_) if layout.big_endian && layout.bits > 8 && layout.wide_number() => {
            "compressed big-endian numbers that are signed or of 32 bits"
        }
        Some(_) => return Ok(()),
    };
    Err(gate.error(format_args!("holds {refused}, which are not decoded")))
}

/// The result while its strips arrive.
struct Picture<'a> {
    layout: &'a Layout,
    gate: &'a Gate<'a>,
    unpack: Unpack<'a>,
    rows: Rows,
    /// All samples side by side, where the file holds them in planes.
    planes: Vec<u8>,
    samples: usize,
}

impl<'a> Picture<'a> {
    fn new(
        ifd: &Ifd,
        layout: &'a Layout,
        grid: &Grid,
        policy: &DecodePolicy,
        orientation: Orientation,
        gate: &'a Gate<'a>,
    ) -> Result<Self> {
        let palette = ifd.integers(tag::PALETTE).unwrap_or_default();
        let indexed = matches!(layout.model, Model::Palette | Model::PaletteAlpha);
        if indexed && (palette.is_empty() || palette.len() / 3 > 256) {
            return Err(gate.error("has no palette of at most 256 colours"));
        }
        let unpack = Unpack::new(layout, policy.sixteen, &palette);
        let samples = layout.model.samples();
        let pixels = u64::from(layout.width) * u64::from(layout.height);
        let canvas = if layout.planar { pixels * samples as u64 } else { 0 };
        let working = grid.chunk_bytes(layout).saturating_mul(2).saturating_add(canvas);
        let size = (layout.width, layout.height);
        let mut rows = Rows::new(gate, policy, size, unpack.colour(), orientation, working)?;
        rows.profile(ifd.bytes(tag::PROFILE), policy);
        Ok(Self { layout, gate, unpack, rows, planes: zeroed(canvas as usize)?, samples })
    }

    /// Takes one row of a strip or tile, as stored.
    fn put(&mut self, plane: usize, x: u32, y: u32, columns: u32, row: &[u8]) {
        if !self.layout.planar {
            self.rows.put(x, y, self.unpack.row(row, columns as usize));
            return;
        }
        let start = (y as usize * self.layout.width as usize + x as usize) * self.samples;
        let samples = self.unpack.plane(row, columns as usize);
        let Some(target) = self.planes.get_mut(start..) else { return };
        for (pixel, sample) in target.chunks_exact_mut(self.samples).zip(samples).take(columns as usize) {
            if let Some(place) = pixel.get_mut(plane) {
                *place = *sample;
            }
        }
    }

    fn finish(mut self, orientation: Orientation) -> Result<Image> {
        let stride = self.layout.width as usize * self.samples;
        for (y, row) in (0..self.layout.height).zip(self.planes.chunks_exact_mut(stride)) {
            self.unpack.join(row);
            self.rows.put(0, y, row);
        }
        drop(self.planes);
        self.rows.finish(orientation)
    }
}

/// Uncompressed pixels.
fn raw(bytes: &[u8], ifd: &Ifd, grid: &Grid, policy: &DecodePolicy, picture: &mut Picture) -> Result<()> {
    let (layout, gate) = (picture.layout, picture.gate);
    let offsets = ifd.integers(if grid.tiled { tag::TILE_OFFSETS } else { tag::STRIP_OFFSETS });
    let offsets = offsets.ok_or_else(|| gate.error("does not say where its pixels lie"))?;
    let mut turned = Vec::new();
    let places = places::raw(&offsets, layout, grid, gate)?;
    let drawn: u64 = places.iter().map(|place| u64::from(place.width) * u64::from(place.height)).sum();
    if drawn < u64::from(layout.width) * u64::from(layout.height) || policy.truncated == Truncated::Fill {
        picture.rows.blank(0);
    }
    for place in places {
        if place.plane >= picture.samples {
            return Err(gate.error("has more planes than its kind of pixels"));
        }
        let line = layout.row_bytes(place.width) as usize;
        for row in 0..place.height {
            let at = place.stride.checked_mul(u64::from(row)).and_then(|at| at.checked_add(place.offset));
            let stored = at.and_then(|at| usize::try_from(at).ok()).and_then(|at| bytes.span(at, line));
            let Some(stored) = stored else {
                match policy.truncated {
                    Truncated::Fill => break,
                    Truncated::Refuse => return Err(gate.truncated()),
                }
            };
            let stored = if layout.reversed {
                turned.clear();
                turned.extend(stored.iter().map(|byte| byte.reverse_bits()));
                &turned
            } else {
                stored
            };
            picture.put(place.plane, place.x, place.y + row, place.width, stored);
        }
    }
    Ok(())
}

/// Compressed pixels.
fn coded(
    bytes: &[u8],
    ifd: &Ifd,
    grid: &Grid,
    codec: Codec,
    convert: bool,
    picture: &mut Picture,
) -> Result<()> {
    let (layout, gate) = (picture.layout, picture.gate);
    let (offsets, counts) = if grid.tiled {
        (tag::TILE_OFFSETS, tag::TILE_COUNTS)
    } else {
        (tag::STRIP_OFFSETS, tag::STRIP_COUNTS)
    };
    let list = |tag| ifd.integers(tag).ok_or_else(|| gate.error("does not say where its pixels lie"));
    let (offsets, counts) = (list(offsets)?, list(counts)?);
    let coded = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
    if coded > MAX_REUSE * bytes.len() as u64 {
        return Err(gate.error("is damaged: its strips are together longer than the file"));
    }
    let mut chunks = offsets.iter().zip(&counts);
    let planes = if layout.planar { picture.samples } else { 1 };
    for plane in 0..planes {
        for row in 0..grid.down {
            for column in 0..grid.across {
                let (x, y) = (column * grid.width, row * grid.height);
                let (width, height) = (grid.width.min(layout.width - x), grid.height.min(layout.height - y));
                let place =
                    chunks.next().and_then(|(at, len)| Some((usize::try_from(*at).ok()?, *len as usize)));
                let data = place.and_then(|(at, len)| bytes.span(at, len)).ok_or_else(|| gate.truncated())?;
                let chunk = Chunk {
                    layout,
                    width: grid.width,
                    rows: if grid.tiled { grid.height } else { height },
                    most: if grid.tiled { grid.height } else { grid.height.min(layout.height) },
                    tables: ifd.bytes(tag::JPEG_TABLES).unwrap_or_default(),
                    predictor: ifd.integer(tag::PREDICTOR).unwrap_or(1),
                    convert,
                    gate,
                };
                let stored = codec.decode(data, &chunk)?;
                let line = layout.row_bytes(grid.width) as usize;
                for (row, stored) in (0..height).zip(stored.chunks_exact(line)) {
                    picture.put(plane, x, y + row, width, stored);
                }
            }
        }
    }
    Ok(())
}
