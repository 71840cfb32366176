//! GIF's variant of LZW, with the tolerance of Pillow's decoder.

use super::super::bytes::Bytes;

/// Codes have at most 12 bits.
const TABLE: usize = 1 << 12;
const MAX_BITS: u32 = 12;
/// Pillow reads a file in pieces of this size; where one ends matters only behind an early end code.
const PIECE: usize = 64 << 10;

/// Why decoding stopped before the pixels were full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The file ends.
    Truncated,
    /// A code that cannot stand there.
    Damaged,
}

/// The bits of the data blocks.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// End of the pieces read so far.
    limit: usize,
    /// Bytes left in the current block.
    block: usize,
    buffer: u32,
    count: u32,
}

impl Bits<'_> {
    /// The next code. A block counts only once it is whole.
    fn code(&mut self, size: u32) -> Option<u32> {
        while self.count < size {
            while self.block == 0 {
                self.block = self.block()?;
            }
            self.buffer |= u32::from(self.data.u8_at(self.at)?) << self.count;
            self.count += 8;
            self.at += 1;
            self.block -= 1;
        }
        let code = self.buffer & ((1 << size) - 1);
        self.buffer >>= size;
        self.count -= size;
        Some(code)
    }

    fn block(&mut self) -> Option<usize> {
        loop {
            let whole = self.data.u8_at(self.at).filter(|len| self.at + 1 + usize::from(*len) <= self.limit);
            if let Some(len) = whole.filter(|_| self.at < self.limit) {
                self.at += 1;
                return Some(usize::from(len));
            }
            self.more()?;
        }
    }

    /// Reads another piece of the file; nothing at its end.
    fn more(&mut self) -> Option<()> {
        if self.limit >= self.data.len() {
            return None;
        }
        self.limit = (self.limit + PIECE).min(self.data.len());
        Some(())
    }
}

/// Fills `pixels` from the blocks of `data`, whose codes start with `bits` + 1 bits.
///
/// An end code before the last pixel does not end the picture to Pillow: it goes on with what follows, if the file
/// has more than it has read by then.
pub(super) fn decode(data: &[u8], bits: u32, pixels: &mut [u8]) -> Result<(), Stop> {
    if bits > MAX_BITS {
        return Err(Stop::Damaged);
    }
    let mut input = Bits { data, at: 0, limit: PIECE.min(data.len()), block: 0, buffer: 0, count: 0 };
    let clear = 1usize << bits;
    let mut prefix = vec![0u16; TABLE];
    let mut suffix = vec![0u8; TABLE];
    let mut length = vec![1u16; TABLE];
    let (mut next, mut size) = (clear + 2, bits + 1);
    // The last code and the first byte of its string; none directly after a clear code.
    let mut last: Option<(usize, u8)> = None;
    let mut filled = 0;
    while filled < pixels.len() {
        let code = input.code(size).ok_or(Stop::Truncated)? as usize;
        if code == clear {
            (next, size, last) = (clear + 2, bits + 1, None);
            continue;
        }
        if code == clear + 1 {
            input.more().ok_or(Stop::Truncated)?;
            continue;
        }
        let Some((previous, first)) = last else {
            if code > clear {
                return Err(Stop::Damaged);
            }
            pixels[filled] = code as u8;
            filled += 1;
            last = Some((code, code as u8));
            continue;
        };
        if code > next {
            return Err(Stop::Damaged);
        }
        // The code about to be defined is the last string with its own first byte behind.
        let repeats = code == next;
        let string = if repeats { previous } else { code };
        let len = if string < clear { 1 } else { usize::from(length[string]) };
        let room = pixels.len() - filled;
        let mut link = string;
        for i in (1..len).rev() {
            if i < room {
                pixels[filled + i] = suffix[link];
            }
            link = usize::from(prefix[link]);
        }
        let root = link as u8;
        pixels[filled] = root;
        if repeats && len < room {
            pixels[filled + len] = first;
        }
        filled += (len + usize::from(repeats)).min(room);
        if next < TABLE {
            (prefix[next], suffix[next]) = (previous as u16, root);
            length[next] = if previous < clear { 2 } else { length[previous] + 1 };
            if next + 1 == 1 << size && size < MAX_BITS {
                size += 1;
            }
            next += 1;
        }
        last = Some((code, root));
    }
    Ok(())
}
