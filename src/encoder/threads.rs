//! Threads that are started together and joined together.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::{Error, Result};

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of an encoder's.
///
/// Such a thread may come to end an encoder, when Python collects garbage in it. It must wait for no other one then, which
/// may wait for what it holds, let alone for itself.
pub(super) fn is_own() -> bool {
    OWN.get()
}

/// Threads of one encoder.
#[derive(Default)]
pub(super) struct Threads {
    /// Locked while they are joined, so that nobody returns from [`Threads::join`] before they have ended.
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts a thread that runs `body`.
    pub fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let body = move || {
            OWN.set(true);
            body();
        };
        let handle = thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|_| {
            Error::out_of_memory(
                "a thread could not be started: the limit of threads or memory is reached; use fewer replicas or raise it",
            )
        })?;
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Waits until all have ended.
    pub fn join(&self) -> Result<()> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let panicked = handles.drain(..).filter_map(|handle| handle.join().err()).count();
        match panicked {
            0 => Ok(()),
            _ => Err(Error::internal("a thread of the encoder ended by a panic")),
        }
    }

    /// Leaves them alone, without locking: in a forked child they do not exist.
    pub fn forget(&mut self) {
        let handles = self.handles.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(handles));
    }
}
