//! Image data inflated row by row over the borders of chunks, ending where Pillow's decoder ends.

use flate2::{Decompress, FlushDecompress, Status};

use super::super::limits::Gate;
use super::super::policy::Truncated;
use super::chunks::Chunk;
use crate::Result;

/// Compressed bytes given to the inflater at a time, as Pillow reads them.
const SLICE: usize = 64 << 10;

/// The filtered rows of an image.
pub(super) struct Lines<'a> {
    bytes: &'a [u8],
    /// Place and length of what is left of the current chunk.
    chunk: (usize, usize),
    slice: &'a [u8],
    /// No image data follow `slice`.
    last: bool,
    inflate: Decompress,
    /// The compressed stream is over.
    finished: bool,
    truncated: Truncated,
    gate: &'a Gate<'a>,
}

/// What [`Lines::read`] gave: whole rows, and whether they were the last ones.
pub(super) struct Read {
    pub(super) bytes: usize,
    pub(super) ended: bool,
}

impl<'a> Lines<'a> {
    pub(super) fn new(
        bytes: &'a [u8],
        chunk: (usize, usize),
        truncated: Truncated,
        gate: &'a Gate<'a>,
    ) -> Self {
        let inflate = Decompress::new(true);
        Self { bytes, chunk, slice: &[], last: false, inflate, finished: false, truncated, gate }
    }

    /// Fills `out`, whose length is a multiple of `line`, or stops early at the end of the stream.
    ///
    /// A stream that ends exactly behind a row is complete to Pillow, whatever the height; one that ends within
    /// a row is cut short. While more data follow, rows are inflated many at a time; in the last slice one at a
    /// time, because Pillow gives up once the compressed bytes are consumed, even where the inflater still holds
    /// output back.
    pub(super) fn read(&mut self, out: &mut [u8], line: usize) -> Result<Read> {
        let mut filled = 0;
        if self.finished {
            return Ok(Read { bytes: 0, ended: true });
        }
        while filled < out.len() {
            if self.slice.is_empty() && !self.advance() {
                return self.short(filled, line);
            }
            let end = if self.last { (filled / line + 1) * line } else { out.len() };
            let Some(space) = out.get_mut(filled..end.min(out.len())) else { break };
            let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(self.slice, space, FlushDecompress::None);
            let read = (self.inflate.total_in() - read) as usize;
            let written = (self.inflate.total_out() - written) as usize;
            self.slice = self.slice.get(read..).unwrap_or_default();
            filled += written;
            match status {
                Ok(Status::StreamEnd) => {
                    if filled % line != 0 || written == 0 {
                        return self.short(filled, line);
                    }
                    self.finished = true;
                    return Ok(Read { bytes: filled, ended: filled < out.len() });
                }
                Ok(Status::Ok) if read > 0 || written > 0 => {}
                _ if self.truncated == Truncated::Fill => return self.short(filled, line),
                _ => return Err(self.gate.damaged("compressed data")),
            }
        }
        Ok(Read { bytes: filled, ended: false })
    }

    fn short(&mut self, filled: usize, line: usize) -> Result<Read> {
        match self.truncated {
            Truncated::Refuse => Err(self.gate.truncated()),
            Truncated::Fill => {
                self.finished = true;
                Ok(Read { bytes: filled - filled % line, ended: true })
            }
        }
    }

    /// Checks what is left of the image data once the pixels are there: the chunk in use may be cut, others not.
    pub(super) fn finish(self) -> Result<()> {
        let mut at = self.chunk.0.saturating_add(self.chunk.1).saturating_add(4);
        while let Some(next) =
            Chunk::at(self.bytes, at).filter(|next| matches!(&next.name, b"IDAT" | b"DDAT"))
        {
            if next.start.saturating_add(next.len) > self.bytes.len() && self.truncated == Truncated::Refuse {
                return Err(self.gate.truncated());
            }
            at = next.end();
        }
        Ok(())
    }

    /// Moves to the next slice of image data.
    fn advance(&mut self) -> bool {
        let Some((start, left)) = self.filled(self.chunk) else { return false };
        let want = left.min(SLICE);
        let end = (start + want).min(self.bytes.len());
        self.slice = self.bytes.get(start..end).unwrap_or_default();
        self.chunk = (start + want, left - want);
        self.last = self.filled(self.chunk).is_none();
        true
    }

    /// `chunk`, or the next one with content where it has none left; `None` where the image data end.
    fn filled(&self, mut chunk: (usize, usize)) -> Option<(usize, usize)> {
        while chunk.1 == 0 {
            let next = Chunk::at(self.bytes, chunk.0 + 4)?;
            if !matches!(&next.name, b"IDAT" | b"DDAT") {
                return None;
            }
            chunk = (next.start, next.len);
        }
        (chunk.0 < self.bytes.len()).then_some(chunk)
    }
}
