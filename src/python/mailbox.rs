//! How answers reach an event loop: a list of finished tokens, and a socket that is readable while it is not empty.
//!
//! The thread that answers pushes a number and writes a byte. It neither takes the GIL nor waits for anyone, and the
//! loop needs no thread of its own to listen.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::{Error, Result};

struct Inner {
    /// Finished since the last drain.
    tokens: Mutex<Vec<u64>>,
    bell: UnixStream,
    ear: UnixStream,
}

/// Finished requests of one event loop, by their tokens.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
pub struct Mailbox {
    inner: Arc<Inner>,
}

/// Puts one token into a mailbox, from any thread.
pub struct Sender {
    inner: Arc<Inner>,
    token: u64,
}

impl Mailbox {
    /// The sender of `token`.
    pub fn sender(&self, token: u64) -> Sender {
        Sender { inner: self.inner.clone(), token }
    }
}

impl Sender {
    /// Puts the token in and wakes the loop if it is the first since the last drain.
    pub fn send(self) {
        let mut tokens = self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.push(self.token);
        let first = tokens.len() == 1;
        drop(tokens);
        if first {
            // A full socket has bytes in it, so the loop wakes all the same; a closed one has no listener.
            let _ = (&self.inner.bell).write(&[1]);
        }
    }
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    let make = || {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok((bell, ear))
    };
    make().map_err(|_: std::io::Error| {
        Error::out_of_memory(
            "no file descriptors are left for the event loop's signal: raise the limit of open files",
        )
    })
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (bell, ear) = pair()?;
        Ok(Self { inner: Arc::new(Inner { tokens: Mutex::default(), bell, ear }) })
    }

    /// The file descriptor that is readable while tokens wait.
    fn fileno(&self) -> i32 {
        self.inner.ear.as_raw_fd()
    }

    /// Takes out all tokens, in the order of their ends. Never blocks.
    fn drain(&self) -> Vec<u64> {
        let mut bytes = [0; 64];
        // The bytes first: a token that comes in between then rings again.
        loop {
            match (&self.inner.ear).read(&mut bytes) {
                Ok(64) => (),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                _ => break,
            }
        }
        std::mem::take(&mut *self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Adds the class of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Mailbox>()
}
