//! The threads that decode and prepare, while the tower runs earlier items.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::input::Inputs;
use super::item::{Item, Work};
use super::queue::Queue;
use super::threads::Threads;
use crate::prepare::Preprocessor;
use crate::{Dtype, Error, Result};

/// Threads of one encoder, where the machine has as many cores.
const MAX_THREADS: usize = 8;

/// Starts the threads; they end when `queue` is closed and nothing is left to prepare.
pub(super) fn start(
    threads: &Threads,
    queue: &Arc<Queue>,
    preprocessor: &Preprocessor,
    inputs: &Arc<Inputs>,
    dtype: Dtype,
) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..cores.min(MAX_THREADS) {
        let (queue, preprocessor, inputs) = (queue.clone(), preprocessor.clone(), inputs.clone());
        threads.start("mm-prepare", move || run(&queue, &preprocessor, &inputs, dtype))?;
    }
    Ok(())
}

/// Prepares items until there will be no more. A failure, even a panic, stays with its item.
fn run(queue: &Queue, preprocessor: &Preprocessor, inputs: &Inputs, dtype: Dtype) {
    while let Some(mut item) = queue.next_to_prepare() {
        let prepared = catch_unwind(AssertUnwindSafe(|| {
            let family = preprocessor.family();
            if item.reply.landing().is_some_and(|landing| landing.load(&item, family, dtype)) {
                return Ok(true);
            }
            prepare(&mut item, preprocessor, inputs, dtype).map(|()| false)
        }));
        match prepared {
            Ok(Ok(true)) => queue.unprepared(&item),
            Ok(Ok(false)) => queue.prepared(item),
            Ok(Err(error)) => fail(queue, item, error),
            Err(_) => {
                fail(queue, item, Error::internal("preparing this image panicked; the encoder goes on"))
            }
        }
    }
}

fn fail(queue: &Queue, item: Item, error: Error) {
    queue.unprepared(&item);
    queue.counters().failed();
    item.reply.send(Err(error));
}

fn prepare(item: &mut Item, preprocessor: &Preprocessor, inputs: &Inputs, dtype: Dtype) -> Result<()> {
    let Work::Source(source, form) = &item.work else { return Ok(()) };
    item.times.wait = item.since.elapsed();
    let bytes = (**source).as_ref();
    let prepared = preprocessor.prepare_patches(bytes, dtype, inputs.expansion(*form))?;
    if item.hash.is_none() {
        item.hash = Some(preprocessor.hash(bytes));
    }
    (item.times.decode, item.times.resize) = (prepared.decode, prepared.resize);
    item.work = Work::Pixels(Arc::new(prepared.pixels));
    item.since = Instant::now();
    Ok(())
}
