//! One image file directory: the tag table of TIFF files and of EXIF blocks.

use super::bytes::Bytes;

/// Entries read of one directory; real ones hold a few dozen.
const MAX_ENTRIES: u64 = 4096;
/// Values read of one entry: strips of an image of the greatest height.
const MAX_VALUES: usize = 1 << 20;

/// A directory over the bytes it points into. Entries that are malformed are absent.
pub(super) struct Ifd<'a> {
    data: &'a [u8],
    order: Order,
    entries: Vec<Entry>,
    next: Option<u64>,
}

#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    kind: u16,
    start: usize,
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Order {
    big_endian: bool,
    /// BigTIFF: counts and offsets of 8 bytes.
    wide: bool,
}

impl Order {
    fn read(self, data: &[u8], at: usize, len: usize) -> Option<u64> {
        let bytes = data.span(at, len)?;
        let push = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        Some(if self.big_endian { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) })
    }

    fn word(self) -> usize {
        if self.wide { 8 } else { 4 }
    }
}

/// Bytes of one value of a field type; 0 for types that are skipped.
fn unit(kind: u16) -> usize {
    match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 => 8,
        _ => 0,
    }
}

impl<'a> Ifd<'a> {
    /// The first directory of a TIFF stream that starts with its byte-order mark.
    pub(super) fn first(data: &'a [u8]) -> Option<Self> {
        let big_endian = match data.span(0, 4)? {
            b"II\x2a\0" | b"II\0\x2a" | b"II\x2b\0" => false,
            b"MM\0\x2a" | b"MM\x2a\0" | b"MM\0\x2b" => true,
            _ => return None,
        };
        let wide = data.u8_at(2) == Some(43) || data.u8_at(3) == Some(43);
        let order = Order { big_endian, wide };
        let start = order.read(data, if wide { 8 } else { 4 }, order.word())?;
        Some(Self::at(data, order, usize::try_from(start).ok()?))
    }

    fn at(data: &'a [u8], order: Order, start: usize) -> Self {
        let mut ifd = Self { data, order, entries: Vec::new(), next: None };
        ifd.fill(start);
        ifd
    }

    /// Stops at the first entry that cannot be read; what came before stays.
    fn fill(&mut self, start: usize) -> Option<()> {
        let (order, data) = (self.order, self.data);
        let (count_len, word) = if order.wide { (8, 8) } else { (2, 4) };
        let count = order.read(data, start, count_len)?;
        let mut at = start + count_len;
        let mut total = 0;
        for _ in 0..count.min(MAX_ENTRIES) {
            let tag = order.read(data, at, 2)? as u16;
            let kind = order.read(data, at + 2, 2)? as u16;
            let values = order.read(data, at + 4, word)?;
            let inline = at + 4 + word;
            let here = order.read(data, inline, word)?;
            at = inline + word;
            if self.entry(tag).is_some() || unit(kind) == 0 {
                continue;
            }
            let Some(len) =
                usize::try_from(values).ok().and_then(|n| n.checked_mul(unit(kind))).filter(|n| *n > 0)
            else {
                continue;
            };
            let start = if len <= word {
                inline
            } else {
                // Values that together exceed the stream overlap or lie outside it.
                total += len.min(data.len() + 1);
                if total > data.len() {
                    continue;
                }
                usize::try_from(here).ok()?
            };
            data.span(start, len)?;
            self.entries.push(Entry { tag, kind, start, len });
        }
        self.next = order.read(data, at, word);
        Some(())
    }

    fn entry(&self, tag: u16) -> Option<Entry> {
        self.entries.iter().find(|entry| entry.tag == tag).copied()
    }

    /// Whether numbers are stored most significant byte first.
    pub(super) fn big_endian(&self) -> bool {
        self.order.big_endian
    }

    /// The bytes of `tag` as they lie in the stream.
    pub(super) fn bytes(&self, tag: u16) -> Option<&'a [u8]> {
        let entry = self.entry(tag)?;
        self.data.span(entry.start, entry.len)
    }

    /// The non-negative integers of `tag`; none where its type is not an integer wider than a byte.
    pub(super) fn integers(&self, tag: u16) -> Option<Vec<u64>> {
        let entry = self.entry(tag)?;
        if !matches!(entry.kind, 3 | 4 | 6 | 8 | 9 | 13 | 16) {
            return None;
        }
        let size = unit(entry.kind);
        let count = (entry.len / size).min(MAX_VALUES);
        (0..count).map(|i| self.order.read(self.data, entry.start + i * size, size)).collect()
    }

    /// The first integer of `tag`.
    pub(super) fn integer(&self, tag: u16) -> Option<u64> {
        self.integers(tag)?.first().copied()
    }
}
