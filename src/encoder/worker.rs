//! The thread that runs the tower, one item after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};

use super::{Encoded, Times};
use crate::family::{Family, Grid, Tower};
use crate::pixels::{PixelValues, Samples};
use crate::torch::{self, Tensor};
use crate::{Error, Result};

/// One item for the tower.
pub struct Job {
    pub pixels: PixelValues,
    pub grids: Vec<Grid>,
    pub hash: String,
    pub times: Times,
    pub queued: Instant,
    /// Set when nobody waits for the answer any more.
    pub abandoned: Arc<AtomicBool>,
    pub reply: Sender<Result<Encoded>>,
}

/// Runs jobs until every sender is gone. A failure, even a panic, stays with its job.
pub fn run(tower: &dyn Tower, jobs: &Receiver<Job>, family: &dyn Family) {
    if torch::disable_gradients().is_err() {
        return;
    }
    for job in jobs {
        if job.abandoned.load(Ordering::Relaxed) {
            continue;
        }
        let reply = job.reply.clone();
        let answer = catch_unwind(AssertUnwindSafe(|| encode(tower, family, job)))
            .unwrap_or_else(|_| Err(Error::internal("the tower panicked on this item; the encoder goes on")));
        // Nobody may be waiting; the answer then frees itself.
        let _ = reply.send(answer);
    }
}

fn encode(tower: &dyn Tower, family: &dyn Family, job: Job) -> Result<Encoded> {
    let Job { pixels, grids, hash, mut times, queued, .. } = job;
    let start = Instant::now();
    times.queue = start - queued;
    let mut offsets = vec![0];
    for grid in &grids {
        offsets.push(offsets.last().copied().unwrap_or(0) + family.tokens(*grid)?);
    }
    let outputs = forward(tower, &pixels, &grids)?;
    let rows = outputs.embeddings.shape()?;
    if rows != [offsets.last().copied().unwrap_or(0), family.embedding_columns()] {
        return Err(Error::internal(format!(
            "the tower gave embeddings of shape {rows:?} for offsets {offsets:?}"
        )));
    }
    let mut names = vec!["embeddings"];
    let mut tensors = vec![outputs.embeddings];
    for (name, tensor) in outputs.extra {
        names.push(name);
        tensors.push(tensor);
    }
    times.forward = start.elapsed();
    Ok(Encoded { id: torch::publish(tensors)?, names, hash, grids, offsets, times })
}

fn forward(tower: &dyn Tower, pixels: &PixelValues, grids: &[Grid]) -> Result<crate::family::Outputs> {
    let shape = [pixels.rows, pixels.columns];
    let run = |x: &Tensor| tower.forward(x, grids);
    match &pixels.samples {
        Samples::F32(samples) => Tensor::with_borrowed(samples, &shape, run),
        Samples::Bf16(samples) => Tensor::with_borrowed(samples, &shape, run),
        Samples::F16(samples) => Tensor::with_borrowed(samples, &shape, run),
    }
}
