//! The threads that run the tower: one a replica, all on one copy of the weights.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::batch::Forward;
use super::queue::Queue;
use super::threads::Threads;
use crate::torch;
use crate::{Error, Result};

/// Starts `replicas` threads and waits until each is ready to take items, or for the first error.
///
/// They end when `queue` is closed and empty; a caller that got an error closes it.
pub(super) fn start(threads: &Threads, queue: &Arc<Queue>, forward: Forward, replicas: usize) -> Result<()> {
    let forward = Arc::new(forward);
    let (told, ready) = channel();
    for replica in 0..replicas {
        let (queue, forward, told) = (queue.clone(), forward.clone(), told.clone());
        threads.start("mm-encoder", move || serve(&queue, &forward, replica, replicas, told))?;
    }
    drop(told);
    for _ in 0..replicas {
        ready.recv().unwrap_or_else(|_| Err(Error::internal("a worker ended before it was ready")))?;
    }
    Ok(())
}

fn serve(queue: &Queue, forward: &Forward, replica: usize, replicas: usize, told: Sender<Result<()>>) {
    // Both settings belong to this thread alone. On the CPU replicas share the compute threads.
    let ready = torch::disable_gradients().and_then(|()| torch::share_threads(replicas));
    let begun = ready.is_ok();
    let _ = told.send(ready);
    drop(told);
    while begun && let Some(items) = queue.next_batch(replica) {
        // Items that a panic drops are answered by their drop.
        let _ = catch_unwind(AssertUnwindSafe(|| forward.run(items, queue)));
    }
}
