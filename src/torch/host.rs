//! Host memory of our own under tensors, counted for as long as anything uses it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Tensor;
use crate::{Dtype, Error, Result};

/// Alignment of LibTorch's own host memory.
const ALIGNMENT: usize = 64;

static LIVE: AtomicU64 = AtomicU64::new(0);

/// Bytes of all [`HostBuffer`]s of this process, those under tensors that Python holds included.
pub fn live_host_bytes() -> u64 {
    LIVE.load(Ordering::Relaxed)
}

/// A block of host memory.
pub struct HostBuffer {
    data: NonNull<u8>,
    layout: Layout,
    bytes: usize,
}

// SAFETY: the block is this value's alone.
unsafe impl Send for HostBuffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Room for `bytes` bytes of any content.
    ///
    /// # Errors
    /// `OutOfMemory` if the system has none.
    pub fn new(bytes: usize) -> Result<Self> {
        let refuse = || Error::out_of_memory(format!("no host memory for the {bytes} bytes of a result"));
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|_| refuse())?;
        // SAFETY: the layout has at least one byte.
        let data = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refuse)?;
        LIVE.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Self { data, layout, bytes })
    }

    /// The block.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block has this length, is borrowed uniquely, and any bits are valid.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) }
    }

    /// A contiguous tensor over the block, which lives until the last tensor over it dies.
    ///
    /// # Errors
    /// `Internal` if `shape` and `dtype` do not fill the block.
    pub fn into_tensor(self, shape: &[usize], dtype: Dtype) -> Result<Tensor> {
        let elements = shape.iter().try_fold(dtype.size(), |n, &size| n.checked_mul(size));
        if elements != Some(self.bytes) {
            return Err(Error::internal(format!("{} bytes do not fill the shape {shape:?}", self.bytes)));
        }
        let data = self.data.as_ptr().cast::<c_void>();
        let context = Box::into_raw(Box::new(self)).cast::<c_void>();
        // On failure LibTorch may or may not have called the deleter, so the block is given up rather than freed twice.
        // SAFETY: `data` lives until `release` frees the buffer that `context` owns.
        unsafe { Tensor::adopt(data, shape, dtype, release, context) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and freed once.
        unsafe { dealloc(self.data.as_ptr(), self.layout) };
        LIVE.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// LibTorch's call when the last tensor over a block dies, on any thread.
unsafe extern "C" fn release(_data: *mut c_void, context: *mut c_void) {
    // SAFETY: `context` is the box that `into_tensor` gave away, and comes back once.
    drop(unsafe { Box::from_raw(context.cast::<HostBuffer>()) });
}
