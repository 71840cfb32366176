//! Checked reads of integers from encoded bytes.

/// Reads that yield nothing past the end.
pub(crate) trait Bytes {
    /// `len` bytes at `at`.
    fn span(&self, at: usize, len: usize) -> Option<&[u8]>;

    /// One byte.
    fn u8_at(&self, at: usize) -> Option<u8> {
        self.span(at, 1).and_then(|b| b.first().copied())
    }
    /// Little-endian 16 bits.
    fn u16_le(&self, at: usize) -> Option<u16> {
        self.span(at, 2)?.try_into().ok().map(u16::from_le_bytes)
    }
    /// Big-endian 16 bits.
    fn u16_be(&self, at: usize) -> Option<u16> {
        self.span(at, 2)?.try_into().ok().map(u16::from_be_bytes)
    }
    /// Little-endian 32 bits.
    fn u32_le(&self, at: usize) -> Option<u32> {
        self.span(at, 4)?.try_into().ok().map(u32::from_le_bytes)
    }
    /// Big-endian 32 bits.
    fn u32_be(&self, at: usize) -> Option<u32> {
        self.span(at, 4)?.try_into().ok().map(u32::from_be_bytes)
    }
}

impl Bytes for [u8] {
    fn span(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.get(at..at.checked_add(len)?)
    }
}
