//! Everything beside a request's source that decides what comes of it.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Collects named parts into the namespace of a cache's keys. Paths and times are never among them.
pub struct Identity(blake3::Hasher);

impl Default for Identity {
    fn default() -> Self {
        Self(blake3::Hasher::new_derive_key("mm-libtorch-encoder cache namespace 1"))
    }
}

impl Identity {
    /// Adds a part. Parts of the same names in the same order are compared.
    #[must_use]
    pub fn with(mut self, name: &str, value: &[u8]) -> Self {
        for part in [name.as_bytes(), value] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        self
    }

    /// The namespace.
    pub fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Hash of the contents of this library, of the bridge at `bridge` and of the CUDA library beside it where there is one,
/// read once a process.
///
/// Where one cannot be read, a value that no other process gives: entries are then not shared.
pub fn binary_identity(bridge: &Path) -> [u8; 32] {
    static IDENTITY: OnceLock<[u8; 32]> = OnceLock::new();
    *IDENTITY.get_or_init(|| {
        let mut hash = blake3::Hasher::new();
        let cuda = Some(bridge.with_file_name("libmm_cuda.so")).filter(|path| path.exists());
        let mut read = true;
        for path in [own_file(), Some(bridge.to_owned())].into_iter().chain(cuda.map(Some)) {
            let file = path.and_then(|path| File::open(path).ok());
            read &= file.is_some_and(|file| hash.update_reader(file).is_ok());
        }
        if !read {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            hash.update(&std::process::id().to_le_bytes()).update(&now.as_nanos().to_le_bytes());
        }
        *hash.finalize().as_bytes()
    })
}

/// The file that this code was loaded from.
fn own_file() -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is one of this library's own, and the structure lives during the call.
    let known = unsafe { libc::dladdr(own_file as fn() -> _ as *const c_void, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_and_its_place_count() {
        let of = |parts: &[(&str, &str)]| {
            let add = |identity: Identity, part: &(&str, &str)| identity.with(part.0, part.1.as_bytes());
            parts.iter().fold(Identity::default(), add).finish()
        };
        let all = [
            of(&[]),
            of(&[("dtype", "float32")]),
            of(&[("dtype", "float16")]),
            of(&[("dtypef", "loat32")]),
            of(&[("dtype", "float32"), ("family", "kimi")]),
            of(&[("family", "kimi"), ("dtype", "float32")]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|other| other != one));
        }
        assert_eq!(of(&[("dtype", "float32")]), all[1]);
    }

    #[test]
    fn this_library_has_a_file() {
        assert!(own_file().is_some_and(|path| path.is_file()));
        assert_eq!(binary_identity(Path::new("/nonexistent")), binary_identity(Path::new("/nonexistent")));
    }
}
