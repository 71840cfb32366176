//! Opening files of a folder that nobody vouches for.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::{Error, Result};

/// Opens the regular file `name` in `root` and tells its length; `None` if there is none. Links are followed.
///
/// Pipes and devices are refused before they are opened, because opening one can wait for ever.
pub(super) fn open(root: &Path, name: &str) -> Result<Option<(File, u64)>> {
    let path = root.join(name);
    let regular = |is_file: bool| {
        if is_file { Ok(()) } else { Err(Error::checkpoint(format!("{name}: is not a regular file"))) }
    };
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure(name, "opened", &error)),
        Ok(found) => regular(found.is_file())?,
    }
    let file = File::open(&path).map_err(|error| failure(name, "opened", &error))?;
    let found = file.metadata().map_err(|error| failure(name, "opened", &error))?;
    regular(found.is_file())?;
    Ok(Some((file, found.len())))
}

/// The whole of the file `name`, which may hold at most `limit` bytes; `None` if there is none.
pub(super) fn read(root: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let Some((file, len)) = open(root, name)? else { return Ok(None) };
    let refuse = |len: u64| {
        Error::checkpoint(format!("{name}: is {len} bytes long or longer, above the limit of {limit} bytes"))
    };
    if len > limit {
        return Err(refuse(len));
    }
    let mut bytes = Vec::new();
    // One byte more than the limit tells a file that grew since its length was asked for.
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| failure(name, "read", &error))?;
    if bytes.len() as u64 > limit {
        return Err(refuse(limit.saturating_add(1)));
    }
    Ok(Some(bytes))
}

/// An error that says why `place` could not be `done`, in this crate's own words.
pub(super) fn failure(place: &str, done: &str, error: &std::io::Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::NotFound => "it does not exist".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::NotADirectory => "a part of its path is not a folder".to_owned(),
        ErrorKind::UnexpectedEof => "it became shorter while it was in use".to_owned(),
        ErrorKind::StorageFull => "no space is left on the device".to_owned(),
        ErrorKind::AlreadyExists => "it exists already".to_owned(),
        ErrorKind::OutOfMemory => return Error::out_of_memory(format!("{place}: no memory to read it")),
        _ => match error.raw_os_error() {
            Some(code) => format!("the system reports error {code}"),
            None => "the system refuses it".to_owned(),
        },
    };
    Error::checkpoint(format!("{place}: cannot be {done}: {reason}"))
}
