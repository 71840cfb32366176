//! Work on a stream that was captured once and is put on it again as a whole.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};

use super::cuda::{api, check};
use super::stream::Stream;
use crate::{Error, Result};

/// `MM_BODY_FAILED` of `cuda/api.h`.
const BODY_FAILED: i32 = 3;

type Work = Box<dyn FnMut() -> Result<()>>;

/// A captured piece of work, bound to the thread that captured it.
pub struct Graph {
    index: u16,
    stream: *mut c_void,
    raw: NonNull<c_void>,
    body: Body,
}

/// What was captured. It owns all that the graph reads and writes, and lives as long.
struct Body(NonNull<Context>);

struct Context {
    work: Work,
    error: Option<Error>,
}

impl Body {
    fn new(work: Work) -> Self {
        Self(NonNull::from(Box::leak(Box::new(Context { work, error: None }))))
    }

    /// The error that [`run`] left.
    fn error(&self) -> Error {
        // SAFETY: the context is live, and nobody else is in it between two calls of `run`.
        let error = unsafe { (*self.0.as_ptr()).error.take() };
        error.unwrap_or_else(|| Error::internal("a capture failed without an error"))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `new`, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Does the work of a [`Context`], for the library.
unsafe extern "C" fn run(context: *mut c_void) -> i32 {
    // SAFETY: the library gives back the pointer of a live `Body`, on the thread that called it, once at a time.
    let context = unsafe { &mut *context.cast::<Context>() };
    let panicked = |_| Err(Error::internal("the tower panicked while it was captured"));
    context.error = catch_unwind(AssertUnwindSafe(&mut context.work)).unwrap_or_else(panicked).err();
    if context.error.is_some() { BODY_FAILED } else { 0 }
}

impl Stream {
    /// Captures what `work` puts on the calling thread's stream, which is this one before and behind it, and meanwhile
    /// one that is for captures alone. The work does not run before it is replayed, on this stream.
    ///
    /// `work` owns all that it reads and writes on the device. It must neither wait for the device nor copy from the
    /// host, and its memory must be nobody else's for as long as the graph lives. Where the device cannot capture, as
    /// under test, a replay calls it again.
    pub fn capture(&self, work: impl FnMut() -> Result<()> + 'static) -> Result<Graph> {
        let (index, stream) = self.raw().ok_or_else(|| Error::internal("the host captures no graphs"))?;
        let api = api()?;
        let (body, mut raw) = (Body::new(Box::new(work)), null_mut());
        // SAFETY: the stream is live and this thread's; the body outlives the graph, and `raw` is writable.
        let status = unsafe { (api.capture)(index.into(), stream, run, body.0.as_ptr().cast(), &mut raw) };
        if status == BODY_FAILED {
            return Err(body.error());
        }
        check(index, status, api)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("no graph came back"))?;
        Ok(Graph { index, stream, raw, body })
    }
}

impl Graph {
    /// Puts the work on the stream of its thread.
    pub fn replay(&mut self) -> Result<()> {
        let api = api()?;
        // SAFETY: graph and body are live; LibTorch's streams live as long as the process.
        let status = unsafe { (api.replay)(self.index.into(), self.stream, self.raw.as_ptr()) };
        if status == BODY_FAILED { Err(self.body.error()) } else { check(self.index, status, api) }
    }
}

impl Drop for Graph {
    /// Waits for the last replay: what it reads and writes is freed behind this.
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: the graph is owned and given back once. A device that failed runs no replay any more.
            unsafe {
                (api.drain)(self.index.into(), self.stream);
                (api.forget_graph)(self.index.into(), self.raw.as_ptr());
            }
        }
    }
}
