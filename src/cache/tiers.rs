//! The cache: memory, and behind it the disk where one is configured.

use std::future::Future;
use std::hash::BuildHasherDefault;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use foyer::{
    CacheBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy, HybridCacheProperties, LruConfig,
    Spawner,
};

use super::config::CacheConfig;
use super::disk::{Directory, DirectoryConfig};
use super::entry::{Entry, Stored};
use super::key::{HeadHasher, Key};
use super::lock::{DirectoryLock, reason};
use super::stats::{CacheStats, Counters};
use crate::family::Grid;
use crate::torch::{Device, Tensor};
use crate::{Error, Result};

type Hasher = BuildHasherDefault<HeadHasher>;
type Memory = foyer::Cache<Key, Stored, Hasher, HybridCacheProperties>;

/// Finished results by key.
pub struct Cache {
    memory: Memory,
    /// Taken away by `close`.
    disk: RwLock<Option<Arc<Disk>>>,
    namespace: [u8; 32],
    max_entry: u64,
    counters: Arc<Counters>,
}

/// Dropped in this order: the hybrid cache hands its last task to the runtime, which drops it.
struct Disk {
    hybrid: HybridCache<Key, Stored, Hasher>,
    /// Foyer asks for one. Nothing runs on it: each future of this engine is ready when it is made.
    _runtime: tokio::runtime::Runtime,
    directory: Arc<Directory>,
    _lock: DirectoryLock,
}

impl Cache {
    /// Opens a cache whose keys lie in `namespace`; a directory is locked and taken stock of.
    ///
    /// # Errors
    /// `Argument` if the settings cannot work or the directory cannot be used.
    pub fn open(config: &CacheConfig, namespace: [u8; 32]) -> Result<Self> {
        config.check()?;
        let counters = Arc::new(Counters::default());
        let capacity = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
        let weight = |_: &Key, stored: &Stored| stored.weight();
        // One shard: the whole budget is one, and its lock is held for a look-up or an insertion alone.
        let (memory, disk) = match &config.disk_path {
            None => {
                let builder =
                    CacheBuilder::new(capacity).with_shards(1).with_eviction_config(LruConfig::default());
                (builder.with_hash_builder(Hasher::default()).with_weighter(weight).build(), None)
            }
            Some(root) => {
                let lock = DirectoryLock::take(root)?;
                let listed =
                    Directory::open(root, config.disk_bytes, config.largest_entry(), counters.clone());
                let directory = listed.map_err(|error| {
                    Error::argument(format!("disk_path {root:?} cannot be listed ({})", reason(error.kind())))
                })?;
                let failed = |_| Error::internal("the disk tier could not be started");
                let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed)?;
                let builder = HybridCacheBuilder::new()
                    .with_policy(HybridCachePolicy::WriteOnInsertion)
                    .with_flush_on_close(false)
                    .memory(capacity)
                    .with_shards(1)
                    .with_eviction_config(LruConfig::default())
                    .with_hash_builder(Hasher::default())
                    .with_weighter(weight)
                    .storage()
                    .with_spawner(Spawner::from(runtime.handle().clone()))
                    .with_engine_config(DirectoryConfig(directory.clone()));
                let built = at_once(builder.build()).and_then(|built| built.ok());
                let hybrid = built.ok_or_else(|| Error::internal("the disk tier could not be started"))?;
                (
                    hybrid.memory().clone(),
                    Some(Arc::new(Disk { hybrid, _runtime: runtime, directory, _lock: lock })),
                )
            }
        };
        Ok(Self { memory, disk: RwLock::new(disk), namespace, max_entry: config.largest_entry(), counters })
    }

    fn disk(&self) -> Option<Arc<Disk>> {
        self.disk.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The key of an item whose own identity is `content`.
    pub fn key(&self, content: &str) -> Key {
        Key::new(&self.namespace, content)
    }

    /// The entry of `key` in memory, as the one used last.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let found = self.memory.get(key)?;
        self.counters.memory_hits.count();
        Some(found.value().0.clone())
    }

    /// Whether [`Cache::load`] is worth its reading.
    pub fn on_disk(&self, key: &Key) -> bool {
        self.disk().is_some_and(|disk| disk.hybrid.storage().may_contains(key))
    }

    /// The entry of `key` from disk, kept in memory from now on. `fits` says whether it can be a result of the
    /// request: one that cannot is counted as damaged and removed.
    pub fn load(&self, key: &Key, fits: impl FnOnce(&Entry) -> bool) -> Option<Arc<Entry>> {
        let disk = self.disk()?;
        let storage = disk.hybrid.storage();
        let stored = match at_once(storage.load(key))?.ok()? {
            foyer::Load::Entry { value, .. } => value,
            // It is still in the way to the disk.
            foyer::Load::Piece { piece, .. } => piece.value().clone(),
            foyer::Load::Miss | foyer::Load::Throttled => return None,
        };
        if !fits(&stored.0) {
            self.counters.errors.count();
            storage.delete(key);
            return None;
        }
        self.counters.disk_hits.count();
        self.memory.insert_with_properties(*key, stored.clone(), HybridCacheProperties::default());
        Some(stored.0)
    }

    /// Keeps a copy of `tensors`, which live on `device`, and gives it; none if they are too large.
    ///
    /// # Errors
    /// `OutOfMemory`, or LibTorch's failure to copy.
    pub fn insert(
        &self,
        key: &Key,
        tensors: &[(&'static str, Tensor)],
        device: Device,
        grids: &[Grid],
        offsets: &[usize],
    ) -> Result<Option<Arc<Entry>>> {
        let mut bytes = 0u64;
        for (_, tensor) in tensors {
            let elements = tensor.shape()?.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
            bytes = bytes.saturating_add(elements.saturating_mul(tensor.dtype()?.size() as u64));
        }
        if bytes > self.max_entry {
            self.counters.bypasses.count();
            return Ok(None);
        }
        let stored = Stored(Arc::new(Entry::copy(tensors, device, grids, offsets)?));
        match self.disk() {
            Some(disk) => drop(disk.hybrid.insert(*key, stored.clone())),
            None => drop(self.memory.insert(*key, stored.clone())),
        }
        Ok(Some(stored.0))
    }

    /// Counts a result that could not be kept.
    pub fn bypassed(&self) {
        self.counters.bypasses.count();
    }

    /// Counts a request that is computed.
    pub fn missed(&self) {
        self.counters.misses.count();
    }

    /// Counts a request that waits for another's computation.
    pub fn joined(&self) {
        self.counters.joins.count();
    }

    /// What was counted, and what is held.
    pub fn stats(&self) -> CacheStats {
        let Counters { memory_hits, disk_hits, misses, joins, bypasses, errors } = &*self.counters;
        CacheStats {
            memory_hits: memory_hits.get(),
            disk_hits: disk_hits.get(),
            misses: misses.get(),
            joins: joins.get(),
            bypasses: bypasses.get(),
            errors: errors.get(),
            memory_bytes: self.memory.usage() as u64,
            disk_bytes: self.disk().map_or(0, |disk| disk.directory.bytes()),
        }
    }

    /// Waits until everything inserted so far is written, or could not be.
    pub fn flush(&self) {
        if let Some(disk) = self.disk() {
            at_once(disk.hybrid.storage().wait());
        }
    }

    /// Writes what waits for the disk and lets go of all entries and of the directory. Tensors that callers hold stay.
    pub fn close(&self) {
        let disk = self.disk.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(disk) = disk {
            // The engine's close does not fail.
            let _ = at_once(disk.hybrid.close());
        }
        // Not `clear`, which leaves the usage as it was (Foyer 0.22.6).
        self.memory.evict_all();
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.close();
    }
}

/// The value of a future that is ready when it is first asked.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
