//! One request on its way through the stages, and the time it spent in each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::Cost;
use super::input::Form;
use super::ticket::Reply;
use crate::Result;
use crate::family::{Grid, Modality};
use crate::pixels::Patches;
use crate::torch::{Device, Event, Tensor};

/// Encoded bytes that are kept alive and unchanged until nobody needs them any more.
pub type Source = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What to encode.
#[derive(Clone)]
pub struct Request {
    /// The file of an image, or of a sound.
    pub source: Source,
    /// The tokens the caller counts on; others are an error before any pixel is touched.
    pub expected: Option<usize>,
}

/// Time one item spent in each stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Waiting for room in the queue and for a thread that prepares it.
    pub wait: Duration,
    /// Bytes to pixels.
    pub decode: Duration,
    /// Pixels to patches, or samples to the tower's rate.
    pub resize: Duration,
    /// Waiting for the tower.
    pub queue: Duration,
    /// In the tower; the whole forward where it was shared.
    pub forward: Duration,
    /// From the tower's outputs to tensors of this item's own.
    pub transfer: Duration,
}

/// Stages that are timed.
pub(super) const STAGES: usize = 6;

impl Times {
    /// All of them by name, in the order an item passes the stages.
    pub fn stages(&self) -> [(&'static str, Duration); STAGES] {
        let Self { wait, decode, resize, queue, forward, transfer } = *self;
        [
            ("wait", wait),
            ("decode", decode),
            ("resize", resize),
            ("queue", queue),
            ("forward", forward),
            ("transfer", transfer),
        ]
    }
}

/// One item's embeddings.
pub struct Encoded {
    /// The tensors by name; "embeddings" first.
    pub tensors: Vec<(&'static str, Tensor)>,
    /// On CUDA, the moment from which the tensors may be read; whoever reads them on another stream waits for it.
    pub ready: Option<Arc<Event>>,
    /// Identity of source and choices; empty for prepared pixels.
    pub hash: String,
    /// Patch grids; none of sound.
    pub grids: Vec<Grid>,
    /// First row of each grid's embeddings, and one past the last.
    pub offsets: Vec<usize>,
    /// Time spent in each stage.
    pub times: Times,
}

impl Encoded {
    /// The same result in the host's memory, copied behind all work on the calling thread's stream.
    pub(super) fn on_host(mut self) -> Result<Self> {
        for (_, tensor) in &mut self.tensors {
            *tensor = tensor.copied(Device::Cpu)?;
        }
        self.ready = None;
        Ok(self)
    }

    /// The same result, in host memory, for another: tensors of its own over the same memory.
    pub(super) fn shared(&self) -> Result<Self> {
        let tensors = self.tensors.iter().map(|(name, tensor)| Ok((*name, tensor.contiguous()?.alias()?)));
        Ok(Self {
            tensors: tensors.collect::<Result<_>>()?,
            ready: self.ready.clone(),
            hash: self.hash.clone(),
            grids: self.grids.clone(),
            offsets: self.offsets.clone(),
            times: self.times,
        })
    }
}

/// How far an item is.
pub(super) enum Work {
    /// Encoded bytes, and what becomes of them.
    Source(Source, Form),
    /// The tower's input.
    Pixels(Arc<Patches>),
}

/// A request between its plan and its answer.
pub(super) struct Item {
    pub work: Work,
    pub grids: Vec<Grid>,
    /// As [`Encoded::offsets`].
    pub offsets: Vec<usize>,
    /// As [`Encoded::hash`]; none while it is not known.
    pub hash: Option<String>,
    pub cost: Cost,
    pub times: Times,
    /// When the present wait began.
    pub since: Instant,
    pub reply: Reply,
    /// A blank image, of which nothing is counted.
    pub warmup: bool,
}

impl Item {
    /// The grids that a result names: sound has none, although its tokens are planned on one.
    pub fn named_grids(&self, modality: Modality) -> &[Grid] {
        match modality {
            Modality::Image => &self.grids,
            Modality::Audio => &[],
        }
    }

    /// Rows of the embeddings.
    pub fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }
}
