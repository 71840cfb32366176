//! Foyer's disk tier in a directory: one file an entry, written beside its place and renamed into it.
//!
//! So a killed process leaves whole entries and at most one unfinished file, which the next start removes. An entry is
//! read straight into the memory of its tensors. Foyer's own block engine was not taken, since it trusts the lengths
//! in its index, passes each entry through two more buffers, and after failed writes loses blocks until `close` waits
//! for ever.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::future::ready;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use foyer::{
    Age, Code, Device, DeviceBuilder, Engine, EngineBuildContext, EngineConfig, HybridCacheProperties, Load,
    NoopDeviceBuilder, PieceRef, StorageFilterResult,
};
use foyer_storage::Populated;
use futures_core::future::BoxFuture;

use super::entry::Stored;
use super::format;
use super::index::Index;
use super::key::{KEY_BYTES, Key, head};
use super::stats::Counters;

type Piece = PieceRef<Key, Stored, HybridCacheProperties>;

/// Bytes of entries that wait to be written; beyond them results are kept in memory alone.
const QUEUE_BYTES: u64 = 256 << 20;
/// Longest wait for the writer at the end, should the disk hang.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a file before the entry: its key with a checksum, in a page of its own.
const PREFIX: usize = 4096;
const SUFFIX: &str = "mme";
const UNFINISHED: &str = "unfinished";

/// The directory, and what is known of it.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    capacity: u64,
    /// Most bytes of tensors that are read.
    max_entry: u64,
    /// Largest file that is read.
    largest: u64,
    index: Mutex<Index>,
    queued: AtomicU64,
    counters: Arc<Counters>,
}

impl Directory {
    /// Takes stock of `root`, which this process has locked. Files that are no entries are left alone.
    pub fn open(
        root: &Path,
        capacity: u64,
        max_entry: u64,
        counters: Arc<Counters>,
    ) -> io::Result<Arc<Self>> {
        let largest = format::stored_bytes(max_entry).saturating_add(format::MAX_HEADER as u64);
        let mut found = Vec::new();
        for item in fs::read_dir(root)? {
            let item = item?;
            let path = item.path();
            if path.extension().is_some_and(|suffix| suffix == UNFINISHED) {
                // The writer that left it is gone: the directory is locked.
                let _ = fs::remove_file(path);
            } else if let Some(hash) = hash_of(&path)
                && let Ok(status) = item.metadata()
            {
                if status.len() > largest {
                    // Nothing of ours, or of other bounds: it must not drive out the rest.
                    counters.errors.count();
                    let _ = fs::remove_file(path);
                    continue;
                }
                found.push((status.modified().unwrap_or(SystemTime::UNIX_EPOCH), hash, status.len()));
            }
        }
        found.sort_unstable();
        let mut index = Index::default();
        found.into_iter().for_each(|(_, hash, bytes)| index.insert(hash, bytes));
        let gone = index.make_room(0, capacity);
        let directory = Self {
            root: root.to_owned(),
            capacity,
            max_entry,
            largest,
            index: Mutex::new(index),
            queued: AtomicU64::new(0),
            counters,
        };
        gone.into_iter().for_each(|hash| directory.delete(hash));
        Ok(Arc::new(directory))
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.index().bytes()
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, hash: u64) -> PathBuf {
        self.root.join(format!("{hash:016x}.{SUFFIX}"))
    }

    fn delete(&self, hash: u64) {
        let _ = fs::remove_file(self.path(hash));
    }

    /// The entry `hash`. One that cannot be read, whatever the reason, is removed and counted.
    fn load(&self, hash: u64) -> Option<(Key, Stored)> {
        if !self.index().contains(hash) {
            return None;
        }
        match self.read(hash) {
            Ok(entry) => {
                self.index().touch(hash);
                Some(entry)
            }
            Err(error) => {
                self.unreadable(hash, error.kind());
                None
            }
        }
    }

    /// Counts an entry that could not be read, and removes it.
    fn unreadable(&self, hash: u64, kind: io::ErrorKind) {
        let mut index = self.index();
        if kind == io::ErrorKind::NotFound && !index.contains(hash) {
            // Evicted between the look for it and the reading.
            return;
        }
        self.counters.errors.count();
        // Out of memory says nothing about the entry.
        if kind != io::ErrorKind::OutOfMemory {
            index.remove(hash);
            drop(index);
            self.delete(hash);
        }
    }

    fn read(&self, hash: u64) -> io::Result<(Key, Stored)> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        // A link is not followed, and a pipe in a file's place not waited for.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(self.path(hash))?;
        let status = file.metadata()?;
        if !status.is_file() || status.len() > self.largest {
            return Err(damaged());
        }
        let mut prefix = [0; PREFIX];
        file.read_exact(&mut prefix)?;
        let key = prefix.first_chunk::<KEY_BYTES>().map(|bytes| Key(*bytes)).ok_or_else(damaged)?;
        if head(&key) != hash || prefix != self::prefix(&key) {
            return Err(damaged());
        }
        let available = status.len().saturating_sub(PREFIX as u64);
        let entry = format::read(&mut file, &key.0, available, self.max_entry)?;
        if file.read(&mut [0])? != 0 {
            return Err(damaged());
        }
        // Recency outlives the process where the file system lets it.
        let _ = file.set_modified(SystemTime::now());
        Ok((key, Stored(Arc::new(entry))))
    }

    /// Writes an entry to its place. A failure is counted and leaves nothing behind.
    fn store(&self, key: &Key, value: &Stored) {
        let hash = head(key);
        let bytes = value.estimated_size() as u64;
        let gone = self.index().make_room(bytes, self.capacity);
        gone.into_iter().for_each(|hash| self.delete(hash));
        let unfinished = self.root.join(format!("{hash:016x}.{UNFINISHED}"));
        match self.write(&unfinished, key, value).and_then(|bytes| {
            fs::rename(&unfinished, self.path(hash))?;
            Ok(bytes)
        }) {
            Ok(bytes) => {
                let mut index = self.index();
                index.insert(hash, bytes);
                // A long header takes more pages than were made room for.
                let gone = index.make_room(0, self.capacity);
                drop(index);
                gone.into_iter().for_each(|hash| self.delete(hash));
            }
            Err(_) => {
                self.counters.errors.count();
                let _ = fs::remove_file(unfinished);
            }
        }
    }

    fn write(&self, path: &Path, key: &Key, value: &Stored) -> io::Result<u64> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(path)?;
        let mut writer = BufWriter::with_capacity(PREFIX, file);
        writer.write_all(&prefix(key))?;
        format::write(&value.0, &key.0, &mut writer)?;
        let file: File = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(file.metadata()?.len())
    }
}

/// What a file begins with.
fn prefix(key: &Key) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    let parts = key.0.into_iter().chain(format::checksum(&key.0));
    prefix.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    prefix
}

fn hash_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.strip_suffix('.')?;
    let digits = name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| u64::from_str_radix(name, 16).ok())?
}

/// What Foyer asks for entries and hands entries to.
pub(super) struct DirectoryEngine {
    directory: Arc<Directory>,
    device: Arc<dyn Device>,
    /// The way to the writer; taken away by `close`.
    pieces: Mutex<Option<Sender<Piece>>>,
    /// Closed by the writer's end.
    ended: Mutex<Receiver<()>>,
}

impl fmt::Debug for DirectoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryEngine").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Makes the engine of a directory.
#[derive(Debug)]
pub(super) struct DirectoryConfig(pub Arc<Directory>);

impl DirectoryConfig {
    fn start(self) -> foyer::Result<Arc<dyn Engine<Key, Stored, HybridCacheProperties>>> {
        let (pieces, queue) = channel::<Piece>();
        let (alive, ended) = channel::<()>();
        let directory = self.0.clone();
        let run = move || {
            let _alive = alive;
            for piece in queue {
                directory.store(piece.key(), piece.value());
                let bytes = piece.value().estimated_size() as u64;
                drop(piece);
                directory.queued.fetch_sub(bytes, Ordering::Relaxed);
            }
        };
        thread::Builder::new().name("mm-cache".into()).spawn(run).map_err(foyer::Error::io_error)?;
        let device = NoopDeviceBuilder::default().build()?;
        let (pieces, ended) = (Mutex::new(Some(pieces)), Mutex::new(ended));
        Ok(Arc::new(DirectoryEngine { directory: self.0, device, pieces, ended }))
    }
}

impl EngineConfig<Key, Stored, HybridCacheProperties> for DirectoryConfig {
    fn build(
        self: Box<Self>,
        _context: EngineBuildContext,
    ) -> BoxFuture<'static, foyer::Result<Arc<dyn Engine<Key, Stored, HybridCacheProperties>>>> {
        Box::pin(ready(self.start()))
    }
}

impl From<DirectoryConfig> for Box<dyn EngineConfig<Key, Stored, HybridCacheProperties>> {
    fn from(config: DirectoryConfig) -> Self {
        Box::new(config)
    }
}

impl Engine<Key, Stored, HybridCacheProperties> for DirectoryEngine {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn filter(&self, _hash: u64, _estimated_size: usize) -> StorageFilterResult {
        StorageFilterResult::Admit
    }

    fn enqueue(&self, piece: Piece, _estimated_size: usize) {
        let bytes = piece.value().estimated_size() as u64;
        let queued = self.directory.queued.fetch_add(bytes, Ordering::Relaxed);
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let room = queued == 0 || queued.saturating_add(bytes) <= QUEUE_BYTES;
        let sent = room && pieces.as_ref().is_some_and(|pieces| pieces.send(piece).is_ok());
        if !sent {
            self.directory.queued.fetch_sub(bytes, Ordering::Relaxed);
            self.directory.counters.bypasses.count();
        }
    }

    fn load(&self, hash: u64) -> BoxFuture<'static, foyer::Result<Load<Key, Stored, HybridCacheProperties>>> {
        let load = match self.directory.load(hash) {
            Some((key, value)) => Load::Entry { key, value, populated: Populated { age: Age::Young } },
            None => Load::Miss,
        };
        Box::pin(ready(Ok(load)))
    }

    fn delete(&self, hash: u64) {
        self.directory.index().remove(hash);
        self.directory.delete(hash);
    }

    fn may_contains(&self, hash: u64) -> bool {
        self.directory.index().contains(hash)
    }

    fn destroy(&self) -> BoxFuture<'static, foyer::Result<()>> {
        let gone = self.directory.index().make_room(0, 0);
        gone.into_iter().for_each(|hash| self.directory.delete(hash));
        Box::pin(ready(Ok(())))
    }

    fn wait(&self) -> BoxFuture<'static, ()> {
        while self.directory.queued.load(Ordering::Relaxed) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        Box::pin(ready(()))
    }

    fn close(&self) -> BoxFuture<'static, foyer::Result<()>> {
        drop(self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is ever sent: this waits for the writer to drop its end.
        let _ = ended.recv_timeout(CLOSE_LIMIT);
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_was_evicted_under_its_reader_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let counters = Arc::new(Counters::default());
        let directory = Directory::open(folder.path(), 1 << 20, 1 << 10, counters.clone()).expect("a folder");
        directory.unreadable(7, io::ErrorKind::NotFound);
        assert_eq!(counters.errors.get(), 0);
        // In the index, and yet no file: someone else took it.
        directory.index().insert(7, 4096);
        directory.unreadable(7, io::ErrorKind::NotFound);
        assert_eq!((counters.errors.get(), directory.bytes()), (1, 0));
        directory.index().insert(7, 4096);
        directory.unreadable(7, io::ErrorKind::OutOfMemory);
        assert_eq!((counters.errors.get(), directory.bytes()), (2, 4096));
        directory.unreadable(7, io::ErrorKind::InvalidData);
        assert_eq!((counters.errors.get(), directory.bytes()), (3, 0));
    }
}
