//! What an entry is found by.

use std::hash::{Hash, Hasher};
use std::io::{Read, Write};

use foyer::Code;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// 256 bits over a request's source and everything that decides what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(super) [u8; KEY_BYTES]);

impl Key {
    /// The key of `content`, an item's own identity, under `namespace`.
    pub fn new(namespace: &[u8; 32], content: &str) -> Self {
        Self(*blake3::keyed_hash(namespace, content.as_bytes()).as_bytes())
    }
}

/// The short form by which Foyer looks for `key`: a part of a cryptographic hash is as good as a hash of it. What is
/// found under it is compared with all of the key.
pub(super) fn head(key: &Key) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(head(self));
    }
}

/// Gives [`head`] as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadHasher(u64);

impl Hasher for HeadHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Code for Key {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        writer.write_all(&self.0).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
        Ok(Self(bytes))
    }

    fn estimated_size(&self) -> usize {
        KEY_BYTES
    }
}
