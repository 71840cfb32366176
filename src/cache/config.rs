//! How large a cache may grow, and where.

use std::path::PathBuf;

use super::entry::OVERHEAD_BYTES;
use super::format::stored_bytes;
use crate::{Error, Result};

/// Entries of the largest size that a disk tier must have room for: one is written while another is served.
const DISK_ENTRIES: u64 = 2;
/// Largest bound of any kind: sums of a few stay within 64 bits.
const MAX_BYTES: u64 = 1 << 60;

/// Bounds and place of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Most bytes of entries in host memory. Tensors that callers still hold count no more once they are evicted.
    pub memory_bytes: u64,
    /// A directory for the disk tier, used by one encoder at a time; none: memory alone.
    pub disk_path: Option<PathBuf>,
    /// Most bytes of entries in that directory.
    pub disk_bytes: u64,
    /// Largest entry. Larger results are returned and not kept.
    pub max_entry_bytes: u64,
}

impl CacheConfig {
    /// Most bytes of tensors that are kept: with what it takes beside them, an entry must fit into memory.
    pub(super) fn largest_entry(&self) -> u64 {
        self.max_entry_bytes.min(self.memory_bytes.saturating_sub(OVERHEAD_BYTES))
    }

    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// `Argument` with a sentence on the first fault.
    pub fn check(&self) -> Result<()> {
        let bounds = [
            ("memory_bytes", self.memory_bytes),
            ("max_entry_bytes", self.max_entry_bytes),
            ("disk_bytes", self.disk_bytes),
        ];
        for (name, bytes) in bounds {
            if bytes > MAX_BYTES {
                return Err(Error::argument(format!(
                    "{name} is {bytes}: at most {MAX_BYTES} (2^60) is allowed"
                )));
            }
            if bytes == 0 && name != "disk_bytes" {
                return Err(Error::argument(format!(
                    "{name} is 0: a cache needs room; use cache=None for none"
                )));
            }
        }
        if self.memory_bytes <= OVERHEAD_BYTES {
            return Err(Error::argument(format!(
                "memory_bytes ({}) is too small: an entry takes {OVERHEAD_BYTES} bytes beside its tensors",
                self.memory_bytes
            )));
        }
        if self.max_entry_bytes > self.memory_bytes {
            return Err(Error::argument(format!(
                "max_entry_bytes ({}) exceeds memory_bytes ({}): an entry must fit into memory; lower the one or raise \
                 the other",
                self.max_entry_bytes, self.memory_bytes
            )));
        }
        match &self.disk_path {
            None if self.disk_bytes > 0 => Err(Error::argument(format!(
                "disk_bytes is {}, but there is no disk_path: give a directory, or leave disk_bytes at 0",
                self.disk_bytes
            ))),
            None => Ok(()),
            Some(path) if path.as_os_str().is_empty() => {
                Err(Error::argument("disk_path is empty: give a directory, or None for memory alone"))
            }
            Some(_) => {
                let needed = stored_bytes(self.max_entry_bytes).saturating_mul(DISK_ENTRIES);
                if self.disk_bytes < needed {
                    return Err(Error::argument(format!(
                        "disk_bytes ({}) is too small: with max_entry_bytes={} the directory must hold {DISK_ENTRIES} \
                         entries with their headers, {needed} bytes; raise disk_bytes or lower max_entry_bytes",
                        self.disk_bytes, self.max_entry_bytes
                    )));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CacheConfig {
        CacheConfig {
            memory_bytes: 1 << 30,
            disk_path: Some("/cache".into()),
            disk_bytes: 1 << 30,
            max_entry_bytes: 256 << 20,
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        assert!(config().check().is_ok());
        let memory = CacheConfig { disk_path: None, disk_bytes: 0, ..config() };
        assert!(memory.check().is_ok());
        let faults = [
            (CacheConfig { memory_bytes: 0, ..config() }, "memory_bytes is 0"),
            (CacheConfig { memory_bytes: 1024, ..config() }, "takes 1024 bytes beside its tensors"),
            (CacheConfig { max_entry_bytes: 0, ..config() }, "max_entry_bytes is 0"),
            (CacheConfig { memory_bytes: u64::MAX, ..config() }, "2^60"),
            (CacheConfig { max_entry_bytes: 2 << 30, ..config() }, "exceeds memory_bytes"),
            (CacheConfig { disk_path: None, ..config() }, "there is no disk_path"),
            (CacheConfig { disk_bytes: 0, ..config() }, "disk_bytes (0) is too small"),
            (CacheConfig { disk_bytes: 512 << 20, ..config() }, "hold 2 entries"),
            (CacheConfig { disk_path: Some("".into()), ..config() }, "disk_path is empty"),
        ];
        for (config, sentence) in faults {
            let error = config.check().expect_err(sentence).to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
