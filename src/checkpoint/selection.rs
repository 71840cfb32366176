//! The tensors of one tower, read from their shards when asked for.
//!
//! Tensors are read (`pread`) and not mapped. A mapped file that another process cuts short, or that lies on a
//! network file system that goes away, kills the process with SIGBUS, which no code here could turn into an error.
//! Reading costs about as much. Measured on 0.92 GB in the page cache, in seconds of CPU time: into fresh memory
//! [`Selection::read_into`] takes 0.54 and a mapping 0.61, both bound by the first touch of that memory; to look at
//! every byte once takes 0.10 in steps, 0.14 by [`Selection::tensor`], 0.08 through a mapping, and `cat` needs 0.09.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::fault::{Fault, Faults};
use super::file::failure;
use super::json::quoted;
use crate::{Dtype, Error, Result};

/// Bytes that one step reads: small enough that they are still in the cache when the step's second half sees them.
const STEP_BYTES: usize = 256 << 10;

/// Bytes of one sample of a tensor for [`Selection::identity`].
const SAMPLE_BYTES: u64 = 4 << 10;

/// Samples of one tensor for [`Selection::identity`]; the first and last bytes are among them.
const SAMPLES: u64 = 4;

/// Most threads that [`Selection::contents`] starts.
const DIGEST_THREADS: usize = 4;

/// The tensors of one tower in their files. Cheap to make: no tensor is read before it is asked for.
#[derive(Debug, Default)]
pub struct Selection {
    sources: Vec<Source>,
    /// Sorted by name.
    slots: Vec<Slot>,
    /// The memory of the tensor that was dropped last: fresh memory costs more than the reading.
    spare: Mutex<Vec<u64>>,
}

/// An open file that holds tensors.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) file: File,
}

/// Where a tensor is. Its length is that of its pieces together and agrees with its shape and element type.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    /// For errors: the names that its pieces have in the checkpoint, quoted.
    pub(super) stored: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// What stands one after the other in the tensor.
    pub(super) pieces: Vec<Piece>,
    pub(super) len: u64,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) source: usize,
    pub(super) start: u64,
    pub(super) len: u64,
}

/// What a tensor is, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The name without the checkpoint's prefix.
    pub name: &'a str,
    /// The element type in the file.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
}

/// A tensor read into memory of its own, which serves the next one after it.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// The name without the checkpoint's prefix.
    pub name: &'a str,
    /// The element type of the bytes.
    pub dtype: Dtype,
    /// The dimensions, outermost first; the last is contiguous.
    pub shape: &'a [usize],
    len: usize,
    words: Vec<u64>,
    spare: &'a Mutex<Vec<u64>>,
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < self.words.len() {
            *spare = std::mem::take(&mut self.words);
        }
    }
}

impl Tensor<'_> {
    /// The elements in little-endian order, aligned to eight bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words).get(..self.len).unwrap_or(&[])
    }
}

impl Selection {
    pub(super) fn new(sources: Vec<Source>, mut slots: Vec<Slot>) -> Self {
        slots.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self { sources, slots, spare: Mutex::default() }
    }

    /// The tensors, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.slots.iter().map(|slot| TensorInfo { name: &slot.name, dtype: slot.dtype, shape: &slot.shape })
    }

    /// Whether there is a tensor `name`: an optional one may be absent.
    pub fn has(&self, name: &str) -> bool {
        self.slot(name).is_ok()
    }

    /// What the tensor `name` is.
    ///
    /// # Errors
    /// `Internal` if the tower did not ask for `name`.
    pub fn info(&self, name: &str) -> Result<TensorInfo<'_>> {
        let slot = self.slot(name)?;
        Ok(TensorInfo { name: &slot.name, dtype: slot.dtype, shape: &slot.shape })
    }

    /// Bytes of all tensors together as stored.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.len))
    }

    /// Reads the tensor `name`. A loop that drops each tensor before the next holds memory for the largest one.
    ///
    /// # Errors
    /// `Internal` if the tower did not ask for `name`, `Checkpoint` if the file cannot be read or became shorter,
    /// `OutOfMemory` if there is no memory for it.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let slot = self.slot(name)?;
        let refuse = || Error::out_of_memory(format!("no memory for the {} bytes of {name}", slot.len));
        let len = usize::try_from(slot.len).map_err(|_| refuse())?;
        let mut words = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        if words.len() < len.div_ceil(8) {
            words = Vec::new();
            words.try_reserve_exact(len.div_ceil(8)).map_err(|_| refuse())?;
        }
        // New memory is zeroed and filled step by step, so that the zeros are overwritten in the cache.
        let mut start = 0;
        while start < len {
            let end = len.min(start + STEP_BYTES);
            words.resize(words.len().max(end.div_ceil(8)), 0);
            let bytes = bytemuck::cast_slice_mut(&mut words);
            self.read(slot, start as u64, bytes.get_mut(start..end).unwrap_or(&mut []))?;
            start = end;
        }
        let (name, shape) = (&*slot.name, &*slot.shape);
        Ok(Tensor { name, dtype: slot.dtype, shape, len, words, spare: &self.spare })
    }

    /// Reads the tensor `name` into `out`, whose length must be the tensor's: the way without a copy.
    ///
    /// # Errors
    /// As [`Selection::tensor`].
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let slot = self.slot(name)?;
        if out.len() as u64 != slot.len {
            return Err(Error::internal(format!("{name} has {} bytes, room is for {}", slot.len, out.len())));
        }
        self.read(slot, 0, out)
    }

    /// [`Selection::read_into`] of a tensor that must hold numbers alone. The look at them costs little while a step's
    /// bytes are in the cache.
    ///
    /// # Errors
    /// As [`Selection::tensor`], and `Checkpoint` if there is NaN or infinity among the elements.
    pub fn read_finite_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let slot = self.slot(name)?;
        if out.len() as u64 != slot.len {
            return Err(Error::internal(format!("{name} has {} bytes, room is for {}", slot.len, out.len())));
        }
        for (i, step) in out.chunks_mut(STEP_BYTES).enumerate() {
            self.read(slot, (i * STEP_BYTES) as u64, step)?;
            if !finite(slot.dtype, step) {
                return Err(Error::checkpoint(format!("the tensor {} holds NaN or infinity", slot.stored)));
            }
        }
        Ok(())
    }

    /// Reads every tensor and lists those that hold NaN or infinities. Costs a pass over all bytes.
    ///
    /// # Errors
    /// `Checkpoint` if there are any, or a file cannot be read.
    pub fn check_finite(&self) -> Result<()> {
        let mut faults = Faults::default();
        let mut buffer = vec![0; STEP_BYTES];
        for slot in &self.slots {
            let mut start = 0;
            while start < slot.len {
                let step = usize::try_from(slot.len - start).map_or(STEP_BYTES, |rest| rest.min(STEP_BYTES));
                let bytes = buffer.get_mut(..step).unwrap_or(&mut []);
                self.read(slot, start, bytes)?;
                if !finite(slot.dtype, bytes) {
                    faults.add(Fault::Damaged, || format!("{} holds NaN or infinity", slot.stored));
                    break;
                }
                start += step as u64;
            }
        }
        faults.into_result()
    }

    /// A fingerprint of the tower's weights: BLAKE3 over the tensors' names, element types, shapes and four evenly
    /// spaced samples of 4 KiB each (small tensors whole).
    ///
    /// It does not depend on file times, paths or sharding, so copies of one checkpoint agree. Training changes
    /// every sample; an edit of single elements made to escape the samples is not seen. Reads about 16 KiB a tensor.
    ///
    /// # Errors
    /// `Checkpoint` if a file cannot be read.
    pub fn identity(&self) -> Result<[u8; 32]> {
        let mut hash = blake3::Hasher::new_derive_key("mm-libtorch-encoder tower weights 1");
        let mut sample = Vec::new();
        for slot in &self.slots {
            name_and_shape(slot, &mut hash);
            let (count, len) =
                if slot.len > SAMPLES * SAMPLE_BYTES { (SAMPLES, SAMPLE_BYTES) } else { (1, slot.len) };
            for i in 0..count {
                let start = (slot.len - len) / (count.max(2) - 1) * i;
                let start = if i + 1 == count { slot.len - len } else { start };
                sample.resize(len as usize, 0);
                self.read(slot, start, &mut sample)?;
                hash.update(&sample);
            }
        }
        Ok(*hash.finalize().as_bytes())
    }

    /// BLAKE3 over the names, element types, shapes and every byte of the tensors: what [`Selection::identity`] leaves
    /// to chance is seen here. Runs on up to four threads, at the speed of memory where the files were just read.
    ///
    /// # Errors
    /// `Checkpoint` if a file cannot be read.
    pub fn contents(&self) -> Result<[u8; 32]> {
        let next = AtomicUsize::new(0);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let work = || {
            let mut done = Vec::new();
            let mut buffer = vec![0; STEP_BYTES];
            while let Some((i, slot)) = {
                let i = next.fetch_add(1, Ordering::Relaxed);
                self.slots.get(i).map(|slot| (i, slot))
            } {
                done.push((i, self.digest(slot, &mut buffer)?));
            }
            Ok(done)
        };
        let parts = thread::scope(|scope| {
            let threads: Vec<_> = (0..cores.min(DIGEST_THREADS)).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        let mut digests = Vec::with_capacity(self.slots.len());
        for part in parts {
            digests.extend(part.unwrap_or_else(|_| Err(Error::internal("hashing the weights panicked")))?);
        }
        digests.sort_unstable();
        let mut hash = blake3::Hasher::new_derive_key("mm-libtorch-encoder tower contents 1");
        for (_, digest) in &digests {
            hash.update(digest);
        }
        Ok(*hash.finalize().as_bytes())
    }

    fn digest(&self, slot: &Slot, buffer: &mut [u8]) -> Result<[u8; 32]> {
        let mut hash = blake3::Hasher::new();
        name_and_shape(slot, &mut hash);
        let mut start = 0;
        while start < slot.len {
            let step = usize::try_from(slot.len - start).map_or(buffer.len(), |rest| rest.min(buffer.len()));
            let bytes = buffer.get_mut(..step).unwrap_or(&mut []);
            self.read(slot, start, bytes)?;
            hash.update(bytes);
            start += step as u64;
        }
        Ok(*hash.finalize().as_bytes())
    }

    fn slot(&self, name: &str) -> Result<&Slot> {
        let found = self.slots.binary_search_by(|slot| slot.name.as_str().cmp(name));
        let slot = found.ok().and_then(|i| self.slots.get(i));
        slot.ok_or_else(|| Error::internal(format!("the tower did not ask for the tensor {}", quoted(name))))
    }

    /// Fills `out` from the tensor's bytes at `start`.
    fn read(&self, slot: &Slot, mut start: u64, mut out: &mut [u8]) -> Result<()> {
        for piece in &slot.pieces {
            let Some(rest) = piece.len.checked_sub(start) else {
                start -= piece.len;
                continue;
            };
            let step = usize::try_from(rest).map_or(out.len(), |rest| rest.min(out.len()));
            let (now, later) = out.split_at_mut(step);
            let source =
                self.sources.get(piece.source).ok_or_else(|| Error::internal("a shard is not open"))?;
            source
                .file
                .read_exact_at(now, piece.start.saturating_add(start))
                .map_err(|error| failure(&source.name, "read", &error))?;
            (start, out) = (0, later);
        }
        if out.is_empty() { Ok(()) } else { Err(Error::internal(format!("{} ends too early", slot.name))) }
    }
}

fn name_and_shape(slot: &Slot, hash: &mut blake3::Hasher) {
    for text in [slot.name.as_str(), slot.dtype.name()] {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.update(&(slot.shape.len() as u64).to_le_bytes());
    for &dim in &slot.shape {
        hash.update(&(dim as u64).to_le_bytes());
    }
}

/// Whether no element is NaN or infinite: an exponent of all ones marks both. Looks at every element without a
/// branch, which lets the compiler use wide registers.
fn finite(dtype: Dtype, bytes: &[u8]) -> bool {
    let halves = |exponent: u16| {
        let found = |b: &[u8; 2]| u16::from_le_bytes(*b) & exponent == exponent;
        !bytes.as_chunks().0.iter().fold(false, |any, b| any | found(b))
    };
    match dtype {
        Dtype::F32 => {
            !bytes.as_chunks().0.iter().fold(false, |any, b| any | !f32::from_le_bytes(*b).is_finite())
        }
        Dtype::Bf16 => halves(0x7f80),
        Dtype::F16 => halves(0x7c00),
    }
}
