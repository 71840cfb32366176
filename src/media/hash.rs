//! Content hashes of encoded bytes.

/// BLAKE3 of `bytes`: 256 bits.
pub fn content_hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// The first eight bytes of [`content_hash`], read big-endian: the short form that SGLang uses.
/// It names items within one process; a key that outlives it needs all 256 bits.
pub fn content_hash_u64(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = content_hash(bytes);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_form_is_the_head_of_the_published_vector() {
        // BLAKE3's own test vector for empty input starts af1349b9f5f9a1a6.
        assert_eq!(content_hash_u64(b""), 0xaf13_49b9_f5f9_a1a6);
        assert_eq!(content_hash(b"")[8..12], [0xa0, 0x40, 0x4d, 0xea]);
    }
}
