//! Forwards of grids that come often: captured once as a CUDA graph, then put on the stream as a whole.
//!
//! A graph belongs to the very list of grids, not to a number of tokens: launch geometry, segment edges and position
//! tables are part of it, and nothing is padded, so that a replay gives the bits of an eager forward.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use super::settings::{GraphLimits, GraphSettings};
use super::stats::Counters;
use crate::family::{Grid, Outputs, Tower};
use crate::torch::{Device, Graph, Stream, Tensor, Uploads, cuda};
use crate::{Dtype, Error, ErrorKind, Result};

/// Lists of grids of which a replica knows how often they came.
const KEYS: usize = 1024;
/// Captures that fail one after the other before a replica tries no more.
const FAILURES: usize = 3;

/// Held while a thread captures or frees a graph: what one of ours frees, no other one's capture meets.
static ALONE: Mutex<()> = Mutex::new(());

/// The way to the device allocator's private pools.
pub trait GraphMemory: Send + Sync + Debug {
    /// A new pool on device `index`, out of which the calling thread alone allocates until [`GraphPool::leave`].
    fn enter(&self, index: u16) -> Result<Box<dyn GraphPool>>;
}

/// Memory that only one graph uses; freed on drop, by the thread that made it.
pub trait GraphPool {
    /// The calling thread allocates as before again. Gives the bytes that the pool holds.
    fn leave(&mut self) -> Result<usize>;
}

/// The graphs of one replica; of its thread alone.
pub(super) struct Graphs {
    settings: Option<GraphSettings>,
    known: HashMap<Key, Known>,
    /// Forwards so far.
    clock: u64,
    /// Failures since the last success.
    failures: usize,
    /// Bytes of its graphs.
    held: usize,
}

/// One forward.
pub(super) struct Job<'a> {
    pub tower: &'a Arc<dyn Tower>,
    pub pixels: &'a Tensor,
    pub grids: &'a [Grid],
    pub tokens: usize,
    /// Captured as soon as it has run once.
    pub warmup: bool,
}

impl Job<'_> {
    fn run(&self) -> Result<Outputs> {
        self.tower.forward(self.pixels, self.grids)
    }
}

/// All that decides what a forward launches.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    grids: Vec<Grid>,
    shape: Vec<usize>,
    dtype: Dtype,
    kernels: u32,
}

struct Known {
    used: u64,
    state: State,
}

enum State {
    /// So many forwards.
    Seen(usize),
    Captured(Captured),
    /// Could not be captured, or replayed: eager for good.
    Eager,
}

/// A graph and what it owns. The order is that of the drops: the graph first, behind its last replay, its pool last.
struct Captured {
    graph: Graph,
    /// What the graph reads the pixels from.
    input: Tensor,
    /// What it writes.
    outputs: Slot,
    _pool: Box<dyn GraphPool>,
    bytes: usize,
}

type Slot = Rc<RefCell<Option<Outputs>>>;

impl Graphs {
    /// None yet; none ever without `settings`.
    pub fn new(settings: Option<GraphSettings>) -> Self {
        Self { settings, known: HashMap::new(), clock: 0, failures: 0, held: 0 }
    }

    /// The tower's outputs, in memory of their own: by a replay where there is a graph, else eagerly.
    ///
    /// A forward that makes its grids come often enough is captured behind its eager run, whose outputs are the answer:
    /// a capture that fails fails no request.
    pub fn run(&mut self, job: &Job<'_>, stream: &Stream, counters: &Counters) -> Result<Outputs> {
        match self.attempt(job, stream, counters) {
            // The memory that graphs hold may be what was missing.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.release(counters) => job.run(),
            outcome => outcome,
        }
    }

    /// `work`, and once more with the memory of all graphs where it was missing.
    pub fn relieve<R>(&mut self, counters: &Counters, work: impl Fn(&mut Self) -> Result<R>) -> Result<R> {
        match work(self) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.release(counters) => work(self),
            outcome => outcome,
        }
    }

    fn attempt(&mut self, job: &Job<'_>, stream: &Stream, counters: &Counters) -> Result<Outputs> {
        let Some(settings) = &self.settings else { return job.run() };
        let limits = settings.limits;
        if job.pixels.device()? == Device::Cpu || job.tokens > limits.max_tokens {
            return job.run();
        }
        let key = Key {
            grids: job.grids.to_vec(),
            shape: job.pixels.shape()?,
            dtype: job.pixels.dtype()?,
            kernels: cuda::in_use(),
        };
        self.clock += 1;
        let used = self.clock;
        let known = self.known.entry(key.clone()).or_insert(Known { used, state: State::Seen(0) });
        known.used = used;
        match &mut known.state {
            State::Eager => return job.run(),
            State::Captured(captured) => match captured.replay(job.pixels) {
                Ok(()) => {
                    counters.graph_replayed();
                    return captured.fresh_outputs();
                }
                Err(error) => {
                    counters.graph_failed(&error);
                    self.forget(&key, State::Eager, counters);
                    return job.run();
                }
            },
            State::Seen(hits) => {
                *hits += 1;
                let wanted = job.warmup || *hits >= limits.min_hits;
                if !wanted || self.failures >= FAILURES {
                    self.bound_keys();
                    return job.run();
                }
            }
        }
        let (outputs, uploads) = Uploads::keep(|| job.run())?;
        match self.capture(job, uploads, limits, stream) {
            Ok(captured) => {
                self.failures = 0;
                self.held += captured.bytes;
                counters.graph_captured(captured.bytes);
                self.known.insert(key, Known { used, state: State::Captured(captured) });
                self.bound_graphs(limits, counters);
            }
            Err(error) => {
                // Of a graph that is too large others need not be.
                self.failures += usize::from(error.kind() != ErrorKind::OutOfMemory);
                counters.graph_failed(&error);
                self.known.insert(key, Known { used, state: State::Eager });
            }
        }
        self.bound_keys();
        Ok(outputs)
    }

    /// A graph of the forward whose eager run made `uploads`.
    fn capture(
        &self,
        job: &Job<'_>,
        uploads: Uploads,
        limits: GraphLimits,
        stream: &Stream,
    ) -> Result<Captured> {
        let (Some(settings), Device::Cuda(index)) = (&self.settings, job.pixels.device()?) else {
            return Err(Error::internal("the host captures no graphs"));
        };
        // Dropped last, behind whatever a failure leaves.
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let own = uploads.bytes()?.saturating_add(job.pixels.byte_count()?);
        let input = Tensor::empty(&job.pixels.shape()?, job.pixels.dtype()?, Device::Cuda(index))?;
        let read = input.share()?;
        // Nothing leaves this function before `leave`. Outputs are declared behind their pool: where the capture fails,
        // they are freed before it.
        let mut pool = settings.memory.enter(index)?;
        let outputs = Slot::default();
        let work = {
            let (tower, grids) = (job.tower.clone(), job.grids.to_vec());
            let outputs = outputs.clone();
            move || {
                let fresh = uploads.reuse(|| tower.forward(&read, &grids))?;
                let mut kept = outputs.borrow_mut();
                match kept.as_mut() {
                    // Where a replay runs this again: the outputs stay where those of the capture are.
                    Some(kept) => overwrite(kept, &fresh)?,
                    None => *kept = Some(fresh),
                }
                Ok(())
            }
        };
        let graph = stream.capture(work);
        // In any case, and before anything else allocates.
        let bytes = pool.leave();
        let (graph, bytes) = (graph?, bytes?);
        if bytes == 0 {
            return Err(Error::internal("the capture took its memory from elsewhere than its pool"));
        }
        let bytes = bytes.saturating_add(own);
        let captured = Captured { graph, input, outputs, _pool: pool, bytes };
        if bytes > limits.max_bytes {
            return Err(Error::out_of_memory(format!(
                "a graph holds {bytes} bytes, and all of a replica may hold {}: raise max_bytes or lower max_tokens",
                limits.max_bytes
            )));
        }
        Ok(captured)
    }

    /// Forgets of the lists of grids without a graph those that were not used for the longest time.
    fn bound_keys(&mut self) {
        while self.known.len() > KEYS {
            let without = self.known.iter().filter(|(_, known)| !known.is_captured());
            let Some(key) = without.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone()) else {
                return;
            };
            self.known.remove(&key);
        }
    }

    /// Frees the graphs that were not used for the longest time until the others are within the bounds.
    fn bound_graphs(&mut self, limits: GraphLimits, counters: &Counters) {
        loop {
            let graphs = self.known.iter().filter(|(_, known)| known.is_captured());
            if graphs.clone().count() <= limits.max_graphs && self.held <= limits.max_bytes {
                return;
            }
            let Some(key) = graphs.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone()) else {
                return;
            };
            self.forget(&key, State::Seen(0), counters);
        }
    }

    /// Frees all graphs. False if there are none.
    pub fn release(&mut self, counters: &Counters) -> bool {
        let graphs = self.known.iter().filter(|(_, known)| known.is_captured());
        let keys: Vec<Key> = graphs.map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.forget(key, State::Seen(0), counters));
        !keys.is_empty()
    }

    /// Frees the graph of `key`, if there is one, and goes on in `state`.
    fn forget(&mut self, key: &Key, state: State, counters: &Counters) {
        let Some(known) = self.known.get_mut(key) else { return };
        if let State::Captured(captured) = std::mem::replace(&mut known.state, state) {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            self.held -= captured.bytes;
            counters.graph_dropped(captured.bytes);
            drop(captured);
        }
    }
}

impl Known {
    fn is_captured(&self) -> bool {
        matches!(self.state, State::Captured(_))
    }
}

impl Captured {
    /// Runs the graph on `pixels`: behind its last replay, and behind the copies of that one's outputs.
    fn replay(&mut self, pixels: &Tensor) -> Result<()> {
        self.input.copy_from(pixels)?;
        self.graph.replay()
    }

    /// What the last replay wrote, in memory of its own.
    fn fresh_outputs(&self) -> Result<Outputs> {
        let kept = self.outputs.borrow();
        let kept = kept.as_ref().ok_or_else(|| Error::internal("a graph without outputs"))?;
        let own = |tensor: &Tensor| tensor.copied(tensor.device()?);
        Ok(Outputs {
            embeddings: own(&kept.embeddings)?,
            extra: kept
                .extra
                .iter()
                .map(|(name, tensor)| Ok((*name, own(tensor)?)))
                .collect::<Result<_>>()?,
        })
    }
}

fn overwrite(kept: &mut Outputs, fresh: &Outputs) -> Result<()> {
    kept.embeddings.copy_from(&fresh.embeddings)?;
    for ((_, kept), (_, fresh)) in kept.extra.iter_mut().zip(&fresh.extra) {
        kept.copy_from(fresh)?;
    }
    Ok(())
}
