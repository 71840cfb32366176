//! The threads that run the tower: one a replica, all on one copy of the weights.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::batch::Forward;
use super::graphs::Graphs;
use super::queue::Queue;
use super::settings::GraphSettings;
use super::threads::Threads;
use crate::torch::{self, Stream};
use crate::{Error, Result};

/// Starts `replicas` threads and waits until each is ready to take items, or for the first error. Gives the priority
/// that their streams have.
///
/// They end when `queue` is closed and empty; a caller that got an error closes it.
pub(super) fn start(
    threads: &Threads,
    queue: &Arc<Queue>,
    forward: Forward,
    replicas: usize,
    priority: i32,
    graphs: Option<GraphSettings>,
) -> Result<i32> {
    let forward = Arc::new(forward);
    let (told, ready) = channel();
    for replica in 0..replicas {
        let (queue, forward, told) = (queue.clone(), forward.clone(), told.clone());
        let graphs = graphs.clone();
        threads.start("mm-encoder", move || {
            let stream = prepare(&forward, replicas, priority);
            let given = stream.as_ref().map(Stream::priority).map_err(Error::clone);
            let _ = told.send(given);
            drop(told);
            if let Ok(stream) = stream {
                serve(&queue, &forward, replica, &stream, graphs);
            }
        })?;
    }
    drop(told);
    let mut given = 0;
    for _ in 0..replicas {
        given =
            ready.recv().unwrap_or_else(|_| Err(Error::internal("a worker ended before it was ready")))?;
    }
    Ok(given)
}

/// What belongs to this thread alone: gradients off, its part of the CPU's threads, its own stream behind the weights.
fn prepare(forward: &Forward, replicas: usize, priority: i32) -> Result<Stream> {
    torch::disable_gradients()?;
    // On the CPU replicas share the compute threads.
    torch::share_threads(replicas)?;
    let stream = Stream::enter(forward.device, priority)?;
    if let Some(loaded) = &forward.loaded {
        stream.wait(loaded)?;
    }
    Ok(stream)
}

fn serve(queue: &Queue, forward: &Forward, replica: usize, stream: &Stream, graphs: Option<GraphSettings>) {
    let mut graphs = Graphs::new(graphs);
    while let Some(items) = queue.next_batch(replica) {
        // Items that a panic drops are answered by their drop.
        let _ = catch_unwind(AssertUnwindSafe(|| forward.run(items, queue, stream, &mut graphs)));
    }
    graphs.release(queue.counters());
    // The weights are freed behind the last reader. A device that failed has no reader any more.
    let _ = stream.drain();
}
