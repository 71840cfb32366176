//! One process, and in it one cache, for a directory.
//!
//! A record lock (`fcntl`) belongs to a process: a killed one loses it, and a child that it forked does not keep it. It
//! says nothing between two caches of one process, so those are kept apart by a list.
#![allow(unsafe_code)]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

const LOCK_FILE: &str = "lock";

/// A directory: device, inode, and the process that uses it.
type Place = (u64, u64, u32);

static USED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

fn used() -> MutexGuard<'static, Vec<Place>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that is this cache's alone until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    place: Place,
    _file: File,
}

impl DirectoryLock {
    /// Makes the directory if need be and takes it.
    pub fn take(root: &Path) -> Result<Self> {
        let refuse = |what: &str, error: &std::io::Error| {
            Error::argument(format!(
                "disk_path {root:?} cannot be {what} ({}): give a directory that this process may write",
                reason(error.kind())
            ))
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(root).map_err(|error| refuse("made", &error))?;
        let status = root.metadata().map_err(|error| refuse("read", &error))?;
        let place = (status.dev(), status.ino(), std::process::id());
        // Held until the end: closing any descriptor of the file would drop the process's lock on it, so a second
        // attempt of this process must not even open it.
        let mut used = used();
        if used.contains(&place) {
            return Err(Error::argument(format!(
                "disk_path {root:?} is used by another encoder of this process: give each its own directory"
            )));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = options.mode(0o600).custom_flags(flags).open(root.join(LOCK_FILE));
        let file = file.map_err(|error| refuse("written", &error))?;
        if !lock(&file) {
            return Err(Error::argument(format!(
                "disk_path {root:?} is used by an encoder of another process: give each its own directory"
            )));
        }
        used.push(place);
        Ok(Self { place, _file: file })
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        used().retain(|place| *place != self.place);
    }
}

/// Why a directory cannot be used.
pub(super) fn reason(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => "permission denied",
        ErrorKind::NotFound => "a folder on the way to it does not exist and cannot be made",
        ErrorKind::NotADirectory => "a part of it is a file",
        ErrorKind::AlreadyExists => "there is a file of that name",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "the disk is full",
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => "this is no possible name",
        _ => "the system refused it",
    }
}

/// Whether this process has the lock now.
fn lock(file: &File) -> bool {
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and the structure lives during the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &whole) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_once_and_free_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("new/cache");
        let first = DirectoryLock::take(&root).expect("free");
        let error = DirectoryLock::take(&root).expect_err("taken").to_string();
        assert!(error.contains("another encoder of this process"), "{error}");
        drop(first);
        drop(DirectoryLock::take(&root).expect("free again"));
    }

    #[test]
    fn a_file_is_no_directory() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = DirectoryLock::take(file.path()).expect_err("a file").to_string();
        assert!(error.contains("cannot be made (there is a file of that name)"), "{error}");
        let error = DirectoryLock::take(&file.path().join("below")).expect_err("a file").to_string();
        assert!(error.contains("cannot be made (a part of it is a file)"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_explained() {
        let error = DirectoryLock::take(Path::new("/proc/cache/here")).expect_err("no folder").to_string();
        assert!(error.contains("cannot be made (a folder on the way to it does not exist"), "{error}");
    }
}
