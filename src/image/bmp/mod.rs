//! BMP and DIB: every depth, mask, header and run-length coding that Pillow reads.

mod header;
mod rle;

use super::bytes::Bytes;
use super::limits::Gate;
use super::orient::Orientation;
use super::policy::{DecodePolicy, Truncated};
use super::rows::{Colour, Rows};
use super::{Header, Image};
use crate::Result;
use header::Packing;
pub(super) use header::{Bitmap, Coding};

pub(super) fn header(bytes: &[u8], gate: &Gate) -> Result<Header> {
    let bitmap = open(bytes, gate)?;
    Ok(Header { format: "bmp", width: bitmap.width, height: bitmap.height })
}

pub(super) fn decode(bytes: &[u8], policy: &DecodePolicy, gate: &Gate) -> Result<Image> {
    let bitmap = open(bytes, gate)?;
    let colour = bitmap.colour(gate)?;
    let size = (bitmap.width, bitmap.height);
    let mut rows = Rows::new(gate, policy, size, colour, Orientation::default(), bitmap.working())?;
    if policy.truncated == Truncated::Fill {
        rows.blank(0);
    }
    bitmap.rows(bytes, policy, gate, |y, row| rows.put(0, y, row))?;
    rows.finish(Orientation::default())
}

fn open(bytes: &[u8], gate: &Gate) -> Result<Bitmap> {
    let bitmap = if bytes.starts_with(b"BM") {
        let pixels = bytes.u32_le(10).ok_or_else(|| gate.truncated())?;
        Bitmap::read(bytes, 14, pixels as usize, gate)?
    } else {
        Bitmap::read(bytes, 0, 0, gate)?
    };
    gate.size(bitmap.width, bitmap.height)?;
    Ok(bitmap)
}

impl Bitmap {
    /// Bytes that [`Self::rows`] allocates.
    pub(super) fn working(&self) -> u64 {
        let (width, height) = (u64::from(self.width), u64::from(self.height));
        match self.coding {
            Coding::Raw => width * 8,
            Coding::Rle8 | Coding::Rle4 => width * height + 256,
        }
    }

    /// Hands out the rows with one byte a sample, each with its place from the top.
    pub(super) fn rows(
        &self,
        bytes: &[u8],
        policy: &DecodePolicy,
        gate: &Gate,
        mut put: impl FnMut(u32, &[u8]),
    ) -> Result<()> {
        let fill = policy.truncated == Truncated::Fill;
        let place = |i: u32| if self.top_down { i } else { self.height - 1 - i };
        if self.coding != Coding::Raw {
            let (width, height) = (self.width as usize, self.height as usize);
            // Run-length coded bytes are indices to Pillow, whatever depth the header states.
            if !matches!(self.packing, Packing::Bits(_)) || self.bilevel {
                return Err(gate.error("is damaged: its compression does not fit its depth"));
            }
            let pixels = rle::decode(bytes, self.pixels, width, width * height, self.coding == Coding::Rle4)?;
            if pixels.len() < width * height {
                return Err(gate.truncated());
            }
            for (i, row) in (0..self.height).zip(pixels.chunks_exact(width)) {
                put(place(i), row);
            }
            return Ok(());
        }
        let line = (self.width as usize * self.packing.bits()).div_ceil(8);
        if self.stride < line {
            return Err(gate.error("is damaged: its palette does not fit its depth"));
        }
        let mut samples = Vec::new();
        for i in 0..self.height {
            let at = (self.stride as u64 * u64::from(i)).saturating_add(self.pixels as u64);
            let row = usize::try_from(at).ok().and_then(|at| bytes.span(at, line));
            match row {
                Some(row) => put(place(i), self.packing.unpack(row, self.width as usize, &mut samples)),
                None if fill => break,
                None => return Err(gate.truncated()),
            }
        }
        Ok(())
    }

    /// What a sample means.
    pub(super) fn colour(&self, gate: &Gate) -> Result<Colour> {
        if let Packing::Colour { alpha, .. } = self.packing {
            return Ok(if alpha { Colour::Rgba { rgba: true } } else { Colour::Rgb { key: None } });
        }
        if let Packing::Five { .. } = self.packing {
            return Ok(Colour::Rgb { key: None });
        }
        let mut palette = Box::new([[0, 0, 0, 255]; 256]);
        match &self.palette {
            Some((entries, size)) => {
                if entries.len() / size > 256 {
                    return Err(gate.error("is damaged: its palette has more than 256 colours"));
                }
                for (entry, bgr) in palette.iter_mut().zip(entries.chunks_exact(*size)) {
                    *entry = [bgr[2], bgr[1], bgr[0], 255];
                }
            }
            None if self.bilevel => palette[1] = [255; 4],
            None => return Ok(Colour::Grey { key: None }),
        }
        Ok(Colour::Indexed { palette, transparent: false })
    }
}
