//! The host's small tables on their way to the device: kept in one run of a tower, used again in another.
//!
//! A captured copy would read host memory that is used for something else by the time of its replay. So a captured run
//! takes the device's tensors of the run before it, and copies nothing.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::tensor::{Element, Tensor};
use crate::{Error, Result};

/// What a run of a tower copied to the device, in order.
#[derive(Default)]
pub struct Uploads(Vec<(u64, Tensor)>);

enum Mode {
    Copy,
    Keep(Uploads),
    /// The places from the second on are still to be asked for.
    Reuse(Uploads, usize),
}

thread_local! {
    static MODE: RefCell<Mode> = const { RefCell::new(Mode::Copy) };
}

/// Copies again when it is dropped, however `body` ended.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        MODE.set(Mode::Copy);
    }
}

impl Uploads {
    /// Runs `body` and keeps what this thread uploads in it.
    pub fn keep<R>(body: impl FnOnce() -> Result<R>) -> Result<(R, Self)> {
        MODE.set(Mode::Keep(Self::default()));
        let restore = Restore;
        let result = body()?;
        let mode = MODE.replace(Mode::Copy);
        drop(restore);
        match mode {
            Mode::Keep(uploads) => Ok((result, uploads)),
            _ => Err(Error::internal("runs of a tower do not nest")),
        }
    }

    /// Runs `body`, whose uploads in this thread are these and are not copied again. An error where they would differ.
    pub fn reuse<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        MODE.set(Mode::Reuse(self.share()?, 0));
        let restore = Restore;
        let result = body()?;
        let mode = MODE.replace(Mode::Copy);
        drop(restore);
        match mode {
            Mode::Reuse(_, used) if used == self.0.len() => Ok(result),
            _ => Err(other()),
        }
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> Result<usize> {
        self.0.iter().try_fold(0, |sum: usize, (_, tensor)| Ok(sum.saturating_add(tensor.byte_count()?)))
    }

    fn share(&self) -> Result<Self> {
        let shared = self.0.iter().map(|(print, tensor)| Ok((*print, tensor.share()?)));
        Ok(Self(shared.collect::<Result<_>>()?))
    }
}

/// `copy`'s upload of `elements`, or the tensor that stands for it.
pub(super) fn pass<T: Element>(
    elements: &[T],
    shape: &[usize],
    copy: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    // Out of its place for the time of the copy.
    match MODE.replace(Mode::Copy) {
        Mode::Copy => copy(),
        Mode::Keep(mut uploads) => {
            let outcome = copy().and_then(|tensor| {
                uploads.0.push((print(elements, shape), tensor.share()?));
                Ok(tensor)
            });
            MODE.set(Mode::Keep(uploads));
            outcome
        }
        Mode::Reuse(uploads, used) => {
            let kept = uploads.0.get(used).filter(|(kept, _)| *kept == print(elements, shape));
            let outcome = kept.map_or_else(|| Err(other()), |(_, tensor)| tensor.share());
            MODE.set(Mode::Reuse(uploads, used + 1));
            outcome
        }
    }
}

/// A number that other elements, types or shapes do not have, but by chance.
fn print<T: Element>(elements: &[T], shape: &[usize]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (T::CODE, shape).hash(&mut hasher);
    // SAFETY: an element type has no padding, so that all its bytes may be read.
    let bytes = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
    hasher.write(bytes);
    hasher.finish()
}

fn other() -> Error {
    Error::internal("the tower's tables are not those of its run before the capture")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::torch;

    /// Uploads `tables` as a device would get them; the host stands for the device.
    fn run(tables: &[&[f32]]) -> Result<Vec<Tensor>> {
        let place =
            |table: &&[f32]| pass(table, &[table.len()], || Tensor::from_slice(table, &[table.len()]));
        tables.iter().map(place).collect()
    }

    #[test]
    fn the_second_run_takes_the_tensors_of_the_first() {
        torch::open(OsStr::new(env!("MM_TORCH_BRIDGE"))).unwrap();
        let tables: [&[f32]; 2] = [&[1.0, 2.0], &[3.0]];
        let (first, uploads) = Uploads::keep(|| run(&tables)).unwrap();
        assert_eq!(uploads.bytes().unwrap(), 12);
        for _ in 0..2 {
            let again = uploads.reuse(|| run(&tables)).unwrap();
            for (first, again) in first.iter().zip(&again) {
                assert_eq!(first.host_bytes().unwrap().as_ptr(), again.host_bytes().unwrap().as_ptr());
            }
        }
        // Outside of both, every upload is a copy of its own.
        let fresh = run(&tables).unwrap();
        assert_ne!(first[0].host_bytes().unwrap().as_ptr(), fresh[0].host_bytes().unwrap().as_ptr());
    }

    #[test]
    fn other_uploads_are_an_error() {
        torch::open(OsStr::new(env!("MM_TORCH_BRIDGE"))).unwrap();
        let ((), uploads) = Uploads::keep(|| run(&[&[1.0, 2.0], &[3.0]]).map(drop)).unwrap();
        let others: [&[&[f32]]; 5] =
            [&[], &[&[1.0, 2.0]], &[&[1.0, 2.0], &[4.0]], &[&[1.0], &[3.0]], &[&[1.0, 2.0], &[3.0], &[3.0]]];
        for tables in others {
            assert!(uploads.reuse(|| run(tables)).is_err(), "{tables:?}");
            assert!(matches!(MODE.replace(Mode::Copy), Mode::Copy));
        }
        let failed = Uploads::keep(|| -> Result<()> { Err(Error::internal("the tower")) });
        assert_eq!(failed.err().map(|error| error.to_string()).as_deref(), Some("the tower"));
        assert!(matches!(MODE.replace(Mode::Copy), Mode::Copy));
    }
}
