//! A request on its way, and what comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::family::Grid;
use crate::torch;
use crate::{Error, Result};

/// Time one item spent in each stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Bytes to pixels.
    pub decode: Duration,
    /// Pixels to patches.
    pub resize: Duration,
    /// Waiting for the tower.
    pub queue: Duration,
    /// In the tower.
    pub forward: Duration,
}

/// One item's embeddings, published for Python to take. Dropping it frees what nobody took.
pub struct Encoded {
    /// Id for `torch.ops.mm_libtorch_encoder.take`.
    pub id: i64,
    /// Names of the published tensors, in order; "embeddings" first.
    pub names: Vec<&'static str>,
    /// Identity of source and choices; empty for prepared pixels.
    pub hash: String,
    /// Patch grids; a sound's are of one patch a frame.
    pub grids: Vec<Grid>,
    /// First row of each grid's embeddings, and one past the last.
    pub offsets: Vec<usize>,
    /// Time spent in each stage.
    pub times: Times,
}

impl Drop for Encoded {
    fn drop(&mut self) {
        torch::discard(self.id);
    }
}

/// A queued request. Dropping it before the answer tells the worker to skip it.
pub struct Ticket {
    answer: Receiver<Result<Encoded>>,
    abandoned: Arc<AtomicBool>,
}

impl Ticket {
    pub(super) fn new(answer: Receiver<Result<Encoded>>, abandoned: Arc<AtomicBool>) -> Self {
        Self { answer, abandoned }
    }

    /// Waits at most `time` for the answer; none if it has not come.
    pub fn wait(&self, time: Duration) -> Option<Result<Encoded>> {
        match self.answer.recv_timeout(time) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Error::internal("the encoder's worker ended before it answered")))
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}
