//! Requests to results: preprocessing on the caller's thread, the tower on a worker, order and failure kept apart.

mod start;
mod ticket;
mod worker;

pub use start::{Progress, Settings};
pub use ticket::{Encoded, Ticket, Times};

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;

use crate::family::Grid;
use crate::pixels::{PixelValues, Samples};
use crate::prepare::Preprocessor;
use crate::torch::Device;
use crate::{Dtype, Error, Result};
use worker::Job;

/// A tower with its weights, ready to encode from any thread of this process.
pub struct Encoder {
    preprocessor: Preprocessor,
    device: Device,
    dtype: Dtype,
    /// The way to the worker; taken away by `close`.
    jobs: Mutex<Option<Sender<Job>>>,
    /// Held while `close` waits for the worker, so that nobody returns from it earlier.
    worker: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

impl Encoder {
    /// The preprocessing that requests pass through.
    pub fn preprocessor(&self) -> &Preprocessor {
        &self.preprocessor
    }

    /// Where the tower runs.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The dtype of the tower and its embeddings.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Decodes and prepares `bytes` on this thread and queues them for the tower.
    ///
    /// Blocks while the queue is full. `expected` tokens, if given, are checked before any work.
    pub fn submit(&self, bytes: &[u8], expected: Option<usize>) -> Result<Ticket> {
        let jobs = self.jobs()?;
        let prepared = self.preprocessor.prepare(bytes, self.dtype, expected)?;
        let times = Times { decode: prepared.decode, resize: prepared.resize, ..Times::default() };
        self.queue(jobs, prepared.pixels, vec![prepared.extent.grid], prepared.hash, times)
    }

    /// Queues a patch matrix that the caller prepared: patches of all `grids` in order.
    pub fn submit_pixels(&self, pixels: PixelValues, grids: Vec<Grid>) -> Result<Ticket> {
        let jobs = self.jobs()?;
        let family = self.preprocessor.family();
        if grids.is_empty() {
            return Err(Error::argument("grid_thws must have at least one row"));
        }
        // Before anything in proportion to a grid: its sides may be of any size.
        let needed = grids.iter().try_fold(0usize, |sum, grid| sum.checked_add(grid.checked_patches()?));
        if needed != Some(pixels.rows) || pixels.columns != family.input_columns() {
            return Err(Error::argument(format!(
                "pixel_values is [{}, {}], but the grids need [{}, {}]",
                pixels.rows,
                pixels.columns,
                needed.map_or("too many".into(), |rows| rows.to_string()),
                family.input_columns()
            )));
        }
        for grid in &grids {
            family.tokens(*grid)?;
        }
        self.queue(jobs, pixels, grids, String::new(), Times::default())
    }

    fn queue(
        &self,
        jobs: Sender<Job>,
        pixels: PixelValues,
        grids: Vec<Grid>,
        hash: String,
        times: Times,
    ) -> Result<Ticket> {
        let matches = matches!(
            (&pixels.samples, self.dtype),
            (Samples::F32(_), Dtype::F32) | (Samples::Bf16(_), Dtype::Bf16) | (Samples::F16(_), Dtype::F16)
        );
        if !matches {
            return Err(Error::argument(format!("pixel_values must be {}", self.dtype.name())));
        }
        let (reply, answer) = crossbeam_channel::bounded(1);
        let abandoned = Arc::new(AtomicBool::new(false));
        let job =
            Job { pixels, grids, hash, times, queued: Instant::now(), abandoned: abandoned.clone(), reply };
        jobs.send(job)
            .map_err(|_| Error::internal("the encoder's worker has ended; create a new encoder"))?;
        Ok(Ticket::new(answer, abandoned))
    }

    fn jobs(&self) -> Result<Sender<Job>> {
        self.check_process()?;
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(|| Error::closed("this encoder is closed"))
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(Error::closed(
            "this encoder belongs to the parent process: its threads do not exist after a fork; create one in each process",
        ))
    }

    /// Lets accepted requests finish, then ends the worker and frees the weights. A second call is a no-op.
    pub fn close(&self) -> Result<()> {
        self.check_process()?;
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = worker.take() {
            worker.join().map_err(|_| Error::internal("the encoder's worker ended by a panic"))?;
        }
        Ok(())
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if self.close().is_err() {
            // A forked child: channel and handle mean nothing here and must not be touched. Nor may their locks be
            // waited for: a thread of the parent may have held them at the fork.
            std::mem::forget(self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            std::mem::forget(self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
