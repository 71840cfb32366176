//! What a cache counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the cache was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests answered from memory.
    pub memory_hits: u64,
    /// Requests answered from disk.
    pub disk_hits: u64,
    /// Requests that found nothing and were computed.
    pub misses: u64,
    /// Requests that waited for another's computation of the same picture.
    pub joins: u64,
    /// Results that were returned and not kept: too large, or more than the disk could take in.
    pub bypasses: u64,
    /// Entries on disk that were damaged, and reads and writes that failed.
    pub errors: u64,
    /// Bytes of entries in memory.
    pub memory_bytes: u64,
    /// Bytes of entries on disk.
    pub disk_bytes: u64,
}

/// The counters behind [`CacheStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub memory_hits: Counter,
    pub disk_hits: Counter,
    pub misses: Counter,
    pub joins: Counter,
    pub bypasses: Counter,
    pub errors: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
