//! Requests to results: one bounded queue, a pool that prepares, replicas that run the tower; order and failures kept
//! apart.
//!
//! A request becomes a [`Ticket`] at once. Its item waits outside while the queue is full, then for a thread of the
//! pool, then for a replica, each in order of arrival.

mod admission;
mod batch;
mod graphs;
mod input;
mod item;
mod pool;
mod queue;
mod settings;
mod shared;
mod start;
mod stats;
mod threads;
mod ticket;
mod warmup;
mod worker;

pub use graphs::{GraphMemory, GraphPool};
pub use item::{Encoded, Request, Source, Times};
pub use queue::Lengths;
pub use settings::{
    BATCH_IMAGES, BATCH_TOKENS, GRAPH_BYTES, GRAPH_HITS, GRAPH_TOKENS, GRAPHS, GraphLimits, GraphSettings,
    Load, QUEUE_BYTES, QUEUE_DEPTH, QUEUE_TOKENS, REPLICAS, Settings,
};
pub use start::Progress;
pub use stats::{Histogram, Stats};
pub use ticket::{Ticket, Waker};

use std::sync::Arc;
use std::time::Instant;

use crate::cache::CacheStats;
use crate::family::Grid;
use crate::pixels::{PixelValues, Samples};
use crate::prepare::Preprocessor;
use crate::torch::Device;
use crate::{Dtype, Error, Result};
use admission::Cost;
use input::{Form, Inputs};
use item::{Item, Work};
use queue::Queue;
use shared::Shared;
use threads::Threads;
use ticket::Reply;

/// A tower with its weights, ready to encode from any thread of this process.
pub struct Encoder {
    preprocessor: Preprocessor,
    inputs: Arc<Inputs>,
    device: Device,
    dtype: Dtype,
    /// The cache and what is computed for it.
    shared: Option<Arc<Shared>>,
    queue: Arc<Queue>,
    threads: Threads,
    stream_priority: i32,
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

    /// The priority of the workers' streams: 0, or below 0 on CUDA where a high one was asked for.
    pub fn stream_priority(&self) -> i32 {
        self.stream_priority
    }

    /// How much runs and waits at once.
    pub fn load(&self) -> &Load {
        self.queue.load()
    }

    /// What was counted so far, and what waits now.
    pub fn stats(&self) -> Result<Stats> {
        self.check_process()?;
        Ok(self.queue.counters().read(self.queue.lengths()))
    }

    /// What the cache counted and holds; nothing where there is none.
    pub fn cache_stats(&self) -> Result<CacheStats> {
        self.check_process()?;
        Ok(self.shared.as_ref().map_or_else(CacheStats::default, |shared| shared.cache().stats()))
    }

    /// Queues an image and returns at once, where the queue is full too: the ticket then waits for room.
    ///
    /// Whatever is wrong with the request is its ticket's answer.
    pub fn submit(&self, request: Request) -> Ticket {
        let (ticket, reply) = Ticket::new(self.queue.clone(), Some(request.source.clone()));
        self.answer(reply, |reply| self.accept(request, reply));
        ticket
    }

    /// From bytes to a place in the queue.
    fn accept(&self, request: Request, reply: &mut Option<Reply>) -> Result<()> {
        self.check_open()?;
        let bytes = (*request.source).as_ref();
        let hash = self.shared.as_ref().map(|_| self.preprocessor.hash(bytes));
        if let (Some(shared), Some(hash)) = (&self.shared, &hash)
            && let Some(entry) = shared.get(hash)
        {
            let tokens = entry.offsets().last().copied().unwrap_or(0);
            let grid = entry.grids().first().copied().unwrap_or(Grid::still(0, 0));
            self.preprocessor.check_tokens(request.expected, tokens, grid)?;
            if let Some(reply) = reply.take() {
                reply.send(shared::answer(&entry, hash));
            }
            return Ok(());
        }
        let plan = self.preprocessor.plan_expecting(bytes, request.expected)?;
        let (form, columns) = (self.inputs.form(), self.preprocessor.family().input_columns());
        let held = self.inputs.bytes(form, plan.grid.patches(), columns);
        let cost = Cost { tokens: plan.tokens, bytes: held.saturating_add(bytes.len()) };
        if let (Some(shared), Some(hash)) = (&self.shared, &hash)
            && let Some(caller) = reply.take()
        {
            *reply = shared.board(hash, caller);
        }
        let work = Work::Source(request.source, form);
        self.push(work, vec![plan.grid], vec![0, plan.tokens], hash, cost, reply);
        Ok(())
    }

    /// Queues a patch matrix that the caller prepared: patches of all `grids` in order.
    pub fn submit_pixels(&self, pixels: PixelValues, grids: Vec<Grid>) -> Ticket {
        let (ticket, reply) = Ticket::new(self.queue.clone(), None);
        self.answer(reply, |reply| self.accept_pixels(pixels, grids, reply));
        ticket
    }

    fn accept_pixels(&self, pixels: PixelValues, grids: Vec<Grid>, reply: &mut Option<Reply>) -> Result<()> {
        self.check_open()?;
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
        let matches = matches!(
            (&pixels.samples, self.dtype),
            (Samples::F32(_), Dtype::F32) | (Samples::Bf16(_), Dtype::Bf16) | (Samples::F16(_), Dtype::F16)
        );
        if !matches {
            return Err(Error::argument(format!("pixel_values must be {}", self.dtype.name())));
        }
        let mut offsets = vec![0];
        let mut tokens = 0usize;
        for grid in &grids {
            tokens = tokens.saturating_add(family.tokens(*grid)?);
            offsets.push(tokens);
        }
        let bytes = self.inputs.bytes(Form::Values, pixels.rows, pixels.columns);
        self.push(Work::Pixels(Arc::new(pixels.into())), grids, offsets, None, Cost { tokens, bytes }, reply);
        Ok(())
    }

    /// Lets `accept` take the reply away, or answers with its error.
    fn answer(&self, reply: Reply, accept: impl FnOnce(&mut Option<Reply>) -> Result<()>) {
        let mut reply = Some(reply);
        if let Err(error) = accept(&mut reply)
            && let Some(reply) = reply
        {
            if error.kind() != crate::ErrorKind::Closed {
                self.queue.counters().failed();
            }
            reply.send(Err(error));
        }
    }

    fn push(
        &self,
        work: Work,
        grids: Vec<Grid>,
        offsets: Vec<usize>,
        hash: Option<String>,
        cost: Cost,
        reply: &mut Option<Reply>,
    ) {
        if let Some(reply) = reply.take() {
            let (since, times) = (Instant::now(), Times::default());
            self.queue.push(Item { work, grids, offsets, hash, cost, times, since, reply, warmup: false });
        }
    }

    /// An error in a forked child and after [`Encoder::close`].
    pub fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.queue.is_closed() {
            return Err(Error::closed("this encoder is closed"));
        }
        Ok(())
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(Error::closed(
            "this encoder belongs to the parent process: its threads do not exist after a fork; create one in each process",
        ))
    }

    /// Finishes what the queue let in, refuses what still waits for room, ends the threads and frees the weights. A
    /// second call waits for the first and is a no-op after it.
    ///
    /// On a thread of an encoder's own, where Python may collect garbage, it waits for nothing.
    pub fn close(&self) -> Result<()> {
        self.check_process()?;
        self.queue.close();
        if threads::is_own() { Ok(()) } else { end(&self.threads, self.shared.as_deref()) }
    }
}

/// Waits for the threads, which a closed queue ends; then nothing uses the cache any more.
fn end(threads: &Threads, shared: Option<&Shared>) -> Result<()> {
    let ended = threads.join();
    if let Some(shared) = shared {
        shared.cache().close();
    }
    ended
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if threads::is_own() && self.check_process().is_ok() {
            self.queue.close();
            let (threads, shared) = (std::mem::take(&mut self.threads), self.shared.take());
            // Where there is no thread for it, the threads end all the same.
            let wait = move || drop(end(&threads, shared.as_deref()));
            let _ = std::thread::Builder::new().name("mm-close".to_owned()).spawn(wait);
            return;
        }
        if self.close().is_err() {
            // A forked child: the threads do not exist, and their locks must not be waited for, since a thread of the
            // parent may have held them at the fork.
            self.threads.forget();
            std::mem::forget(self.shared.clone());
        }
    }
}
