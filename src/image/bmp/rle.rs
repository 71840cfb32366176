//! Run-length coded bitmaps, with each tolerance of Pillow's decoder.

use super::super::buffer::room;
use super::super::bytes::Bytes;
use crate::Result;

/// Expands the runs from `at` on into at most about `total` indices; fewer where the data end early.
pub(super) fn decode(
    bytes: &[u8],
    mut at: usize,
    width: usize,
    total: usize,
    nibbles: bool,
) -> Result<Vec<u8>> {
    let mut out = room(total + 256)?;
    let mut column = 0;
    while out.len() < total {
        let (Some(count), Some(value)) = (bytes.u8_at(at), bytes.u8_at(at + 1)) else { break };
        at += 2;
        match (count, value) {
            (0, 0) => {
                out.resize(out.len().next_multiple_of(width), 0);
                column = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let (Some(right), Some(up)) = (bytes.u8_at(at), bytes.u8_at(at + 1)) else { break };
                at += 2;
                let skipped = usize::from(right) + usize::from(up) * width;
                out.resize((out.len() + skipped).min(total), 0);
                column = out.len() % width;
            }
            (0, literal) => {
                let want = usize::from(literal).min(total - out.len());
                let stored = if nibbles { want.div_ceil(2) } else { want };
                let end = (at + stored).min(bytes.len());
                let source = bytes.get(at..end).unwrap_or_default();
                if nibbles {
                    out.extend(source.iter().flat_map(|b| [b >> 4, b & 15]).take(want));
                } else {
                    out.extend_from_slice(source);
                }
                if source.len() < stored || out.len() == total {
                    break;
                }
                at += stored;
                column += usize::from(literal);
                // Literals end on an even offset of the file.
                at += at % 2;
            }
            (run, value) => {
                // What exceeds the row is dropped.
                let run = usize::from(run).min(width.saturating_sub(column));
                if nibbles {
                    out.extend((0..run).map(|i| if i % 2 == 0 { value >> 4 } else { value & 15 }));
                } else {
                    out.resize(out.len() + run, value);
                }
                column += run;
            }
        }
    }
    Ok(out)
}
