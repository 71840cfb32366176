//! The pool of threads on which calls from Python run their bands and batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// Threads unless told otherwise, if the machine has as many cores.
const DEFAULT_THREADS: usize = 8;
/// Most threads that can be asked for.
pub const MAX_THREADS: usize = 256;

struct State {
    threads: Option<usize>,
    /// The pool with the process that started it: its threads do not survive a fork.
    pool: Option<(u32, Arc<ThreadPool>)>,
}

static STATE: Mutex<State> = Mutex::new(State { threads: None, pool: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_THREADS)
}

/// Threads of the pool.
pub fn threads() -> usize {
    state().threads.unwrap_or_else(default_threads)
}

/// Sets the number of threads; calls under way finish on the old ones.
pub fn set_threads(threads: usize) -> Result<()> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(Error::argument(format!("{threads} threads are not within 1..={MAX_THREADS}")));
    }
    let mut state = state();
    if state.threads != Some(threads) {
        state.threads = Some(threads);
        forget_or_drop(state.pool.take());
    }
    Ok(())
}

/// The pool of this process, started when first asked for.
pub fn pool() -> Result<Arc<ThreadPool>> {
    let mut state = state();
    if let Some((process, pool)) = &state.pool
        && *process == std::process::id()
    {
        return Ok(pool.clone());
    }
    forget_or_drop(state.pool.take());
    let pool = ThreadPoolBuilder::new()
        .num_threads(state.threads.unwrap_or_else(default_threads))
        .thread_name(|i| format!("mm-pixels-{i}"))
        .build()
        .map_err(|_| Error::out_of_memory("the threads for image preprocessing could not be started"))?;
    let pool = Arc::new(pool);
    state.pool = Some((std::process::id(), pool.clone()));
    Ok(pool)
}

/// A pool of this process is dropped; one inherited through a fork has no threads to stop and is left alone.
fn forget_or_drop(pool: Option<(u32, Arc<ThreadPool>)>) {
    if let Some((process, pool)) = pool
        && process != std::process::id()
    {
        std::mem::forget(pool);
    }
}
