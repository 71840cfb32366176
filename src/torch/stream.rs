//! The order of work on a device: the calling thread's stream, and moments on it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use super::cuda::{api, check};
use super::tensor::Device;
use crate::{Error, Result};

/// The calling thread's own stream on a device, until this is dropped on that thread.
///
/// On CUDA it is one of LibTorch's pool; the host has none, and everything here is then a no-op.
pub struct Stream(Option<Inner>);

struct Inner {
    index: u16,
    guard: *mut c_void,
    raw: *mut c_void,
    priority: i32,
    /// Bound to its thread: the guard restores that thread's device and stream.
    _thread: PhantomData<*const ()>,
}

impl Stream {
    /// Makes `device` the calling thread's device and a stream of its pool the thread's stream.
    ///
    /// A `priority` below 0 asks for LibTorch's high priority, all others get the normal one.
    pub fn enter(device: Device, priority: i32) -> Result<Self> {
        let Device::Cuda(index) = device else {
            return Ok(Self(None));
        };
        let api = api()?;
        let (mut guard, mut raw, mut actual) = (null_mut(), null_mut(), 0);
        // SAFETY: all three places are writable.
        let status = unsafe { (api.enter)(index.into(), priority, &mut guard, &mut raw, &mut actual) };
        // Before the check: what was entered is left again in any case.
        let stream = Inner { index, guard, raw, priority: actual, _thread: PhantomData };
        check(index, status, api)?;
        Ok(Self(Some(stream)))
    }

    /// The priority that the stream has: 0, or below 0 where it is LibTorch's high one.
    pub fn priority(&self) -> i32 {
        self.0.as_ref().map_or(0, |stream| stream.priority)
    }

    /// Number of its device and the stream itself; none on the host.
    pub(super) fn raw(&self) -> Option<(u16, *mut c_void)> {
        self.0.as_ref().map(|stream| (stream.index, stream.raw))
    }

    /// An event behind everything that was put on the stream so far; none on the host.
    pub fn mark(&self) -> Result<Option<Event>> {
        let Some(stream) = &self.0 else {
            return Ok(None);
        };
        let api = api()?;
        let mut raw = null_mut();
        // SAFETY: the stream is live and `raw` is writable.
        check(stream.index, unsafe { (api.mark)(stream.index.into(), stream.raw, &mut raw) }, api)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("no event came back"))?;
        Ok(Some(Event { index: stream.index, raw }))
    }

    /// What is put on the stream from now on runs behind `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |stream| event.precede(stream.raw as usize))
    }

    /// Waits until everything on the stream, and on it alone, is done.
    pub fn drain(&self) -> Result<()> {
        let Some(stream) = &self.0 else {
            return Ok(());
        };
        let api = api()?;
        // SAFETY: the stream is live.
        check(stream.index, unsafe { (api.drain)(stream.index.into(), stream.raw) }, api)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: the guard was made on this thread, or is null, and is given back once.
            unsafe { (api.leave)(self.guard) };
        }
    }
}

/// A moment on a stream.
pub struct Event {
    index: u16,
    raw: NonNull<c_void>,
}

// SAFETY: events of the CUDA runtime may be used from any thread, and from several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// What is put on the CUDA stream `stream`, of the same device, from now on runs behind this moment.
    pub fn precede(&self, stream: usize) -> Result<()> {
        let api = api()?;
        // SAFETY: the event is live; the caller names a stream of Torch, which lives as long as the process.
        let status = unsafe { (api.wait)(self.index.into(), stream as *mut c_void, self.raw.as_ptr()) };
        check(self.index, status, api)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: the event is owned and given back once.
            unsafe { (api.forget)(self.index.into(), self.raw.as_ptr()) };
        }
    }
}
