//! Result buffers that are never zeroed first, written in contiguous parts by one job a part.

use std::mem::MaybeUninit;

use bytemuck::Pod;

use super::execution::run_all;
use super::stream;
use crate::{Error, Result};

/// One job's share of a buffer.
pub struct Part<'a, T> {
    space: &'a mut [MaybeUninit<T>],
    written: usize,
    streams: bool,
}

impl<T: Pod> Part<'_, T> {
    /// Writes `values` at `offset`. No element may be written twice, and in the end none may be left out.
    #[inline(always)]
    pub fn write(&mut self, offset: usize, values: &[T]) {
        let space = &mut self.space[offset..offset + values.len()];
        if self.streams {
            stream::copy(values, space);
        } else {
            space.write_copy_of_slice(values);
        }
        self.written += values.len();
    }

    /// Whether runs of `length` elements at multiples of `length` are whole cache lines that bypass the cache, so that
    /// a row written in such runs costs no more than one written at once.
    pub fn streams_runs(&self, length: usize) -> bool {
        let lines = self.space.as_ptr().cast::<u8>().align_offset(stream::LINE) == 0;
        self.streams && lines && (length * size_of::<T>()).is_multiple_of(stream::LINE)
    }

    /// Writes `values` behind what was written so far.
    #[inline(always)]
    pub fn append(&mut self, values: &[T]) {
        self.write(self.written, values);
    }
}

/// A vector whose parts of the given `lengths` were written by `fill(part number, part)`.
///
/// # Panics
/// If a job leaves elements out: that is a fault of this library.
pub fn build<T: Pod + Send>(lengths: &[usize], fill: impl Fn(usize, &mut Part<T>) + Sync) -> Result<Vec<T>> {
    let total = lengths.iter().sum();
    let mut out = Vec::new();
    out.try_reserve_exact(total).map_err(|_| {
        Error::out_of_memory(format!("no memory for a result of {} bytes", total * size_of::<T>()))
    })?;
    let streams = total * size_of::<T>() >= stream::STREAM_BYTES;
    let mut space = &mut out.spare_capacity_mut()[..total];
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, rest) = space.split_at_mut(length);
        parts.push(Part { space: part, written: 0, streams });
        space = rest;
    }
    let fill = &fill;
    run_all(
        parts
            .iter_mut()
            .enumerate()
            .map(|(i, part)| {
                move || {
                    fill(i, part);
                    stream::fence();
                }
            })
            .collect(),
    );
    assert!(parts.iter().all(|part| part.written == part.space.len()), "a part of a result was not written");
    // SAFETY: the capacity is at least `total`. Each part counts what is written through bounds-checked writes that
    // do not overlap, so an equal count means that every element of every part was written.
    unsafe { out.set_len(total) };
    Ok(out)
}
