//! An owned LibTorch tensor.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use super::sys::{self, RawTensor};
use super::uploads;
use crate::{Dtype, Error, Result};

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// CUDA device of this index.
    Cuda(u16),
}

impl Device {
    /// Parses Torch's names "cpu" and "cuda:N".
    pub fn parse(name: &str) -> Result<Self> {
        if name == "cpu" {
            return Ok(Self::Cpu);
        }
        let numbered = || {
            let digits = name.strip_prefix("cuda:")?;
            // Rust's own parser takes a sign too.
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let index = if name == "cuda" { Some(0) } else { numbered() };
        index
            .map(Self::Cuda)
            .ok_or_else(|| Error::argument(format!("device {name:?} is not \"cpu\" or \"cuda:N\"")))
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// One reference to a LibTorch tensor; released on drop, from any thread.
pub struct Tensor(NonNull<c_void>);

// SAFETY: LibTorch's reference counts are atomic, and this crate never mutates a tensor that is shared.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Ok(api) = sys::api() {
            // SAFETY: the handle is owned and released once.
            unsafe { (api.release)(self.0.as_ptr()) };
        }
    }
}

/// Code of `dtype` in `bridge/api.h`.
fn code(dtype: Dtype) -> i32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::Bf16 => 1,
        Dtype::F16 => 2,
    }
}

const CODE_I64: i32 = 3;
const CODE_U8: i32 = 4;
const CODE_I32: i32 = 5;

/// The arguments `cuda` and `index` of the bridge.
fn place(device: Device) -> (i32, i32) {
    match device {
        Device::Cpu => (0, 0),
        Device::Cuda(index) => (1, i32::from(index)),
    }
}

/// LibTorch's call when the last tensor over an alias's storage dies, on any thread.
unsafe extern "C" fn release_owner(_data: *mut c_void, context: *mut c_void) {
    // SAFETY: `context` is the box that `alias` gave away, and comes back once.
    drop(unsafe { Box::from_raw(context.cast::<Tensor>()) });
}

/// Shape for LibTorch; sizes here are far below `i64::MAX`.
fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&n| n as i64).collect()
}

impl Tensor {
    /// Runs a bridge function that returns a new tensor through its last argument.
    pub(super) fn make(what: &str, call: impl FnOnce(&sys::Api, *mut RawTensor) -> i32) -> Result<Self> {
        let api = sys::api()?;
        let mut out = null_mut();
        sys::check(what, call(api, &mut out), api)?;
        Self::from_raw(what, out)
    }

    /// Takes over a handle that the bridge gave.
    pub(super) fn from_raw(what: &str, raw: RawTensor) -> Result<Self> {
        NonNull::new(raw).map(Self).ok_or_else(|| Error::internal(format!("{what}: no tensor came back")))
    }

    /// The handle, for calls into the bridge during this borrow.
    pub(super) fn raw(&self) -> RawTensor {
        self.0.as_ptr()
    }

    /// An uninitialised contiguous tensor.
    pub fn empty(shape: &[usize], dtype: Dtype, device: Device) -> Result<Self> {
        Self::empty_coded(shape, code(dtype), device)
    }

    /// The same by the bridge's code of an element type.
    fn empty_coded(shape: &[usize], code: i32, device: Device) -> Result<Self> {
        let shape = sizes(shape);
        let (cuda, index) = place(device);
        Self::make("empty", |api, out| {
            // SAFETY: `shape` outlives the call.
            unsafe { (api.empty)(shape.len() as i64, shape.as_ptr(), code, cuda, index, out) }
        })
    }

    /// A contiguous tensor on the host whose bytes `fill` writes, elements in native byte order.
    pub fn filled(shape: &[usize], dtype: Dtype, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let bytes = element_count(shape).and_then(|n| n.checked_mul(dtype.size()));
        let bytes = bytes
            .ok_or_else(|| Error::internal(format!("a tensor of shape {shape:?} has too many bytes")))?;
        let tensor = Self::empty(shape, dtype, Device::Cpu)?;
        if bytes > 0 {
            // SAFETY: the fresh tensor is contiguous, unshared and has exactly `bytes` bytes; any bits are valid.
            fill(unsafe { std::slice::from_raw_parts_mut(tensor.data()?.cast::<u8>(), bytes) })?;
        }
        Ok(tensor)
    }

    /// A tensor on the host with a copy of `elements`.
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Self> {
        Self::from_slice_on(elements, shape, Device::Cpu)
    }

    /// A tensor on `device` with a copy of `elements`, which the caller may change at once.
    ///
    /// The device copies from pinned memory, in the order of the calling thread's stream; nobody waits for it.
    pub fn from_slice_on<T: Element>(elements: &[T], shape: &[usize], device: Device) -> Result<Self> {
        if Some(elements.len()) != element_count(shape) {
            return Err(Error::internal(format!(
                "{} elements do not fill the shape {shape:?}",
                elements.len()
            )));
        }
        match device {
            Device::Cpu => Self::placed(&[elements], shape, device),
            Device::Cuda(_) => uploads::pass(elements, shape, || Self::placed(&[elements], shape, device)),
        }
    }

    /// A tensor on `device` with copies of several slices, one behind the other; no part of a graph.
    pub fn from_parts_on<T: Element>(parts: &[&[T]], shape: &[usize], device: Device) -> Result<Self> {
        let count = parts.iter().map(|part| part.len()).sum();
        if Some(count) != element_count(shape) {
            return Err(Error::internal(format!("{count} elements do not fill the shape {shape:?}")));
        }
        Self::placed(parts, shape, device)
    }

    /// `from_parts_on`, of as many elements as the shape has.
    fn placed<T: Element>(parts: &[&[T]], shape: &[usize], device: Device) -> Result<Self> {
        let mut tensor = Self::empty_coded(shape, T::CODE, device)?;
        let staging = match device {
            Device::Cpu => None,
            Device::Cuda(_) => {
                let sizes = sizes(shape);
                Some(Self::make("staging", |api, out| {
                    // SAFETY: `sizes` outlives the call.
                    unsafe { (api.empty_staging)(sizes.len() as i64, sizes.as_ptr(), T::CODE, out) }
                })?)
            }
        };
        let host = staging.as_ref().unwrap_or(&tensor);
        if parts.iter().any(|part| !part.is_empty()) {
            let mut to = host.data()?.cast::<T>();
            for part in parts {
                // SAFETY: the fresh tensor is contiguous, on the host, unshared and holds exactly the elements of all
                // parts.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                    to = to.add(part.len());
                }
            }
        }
        if let Some(staging) = &staging {
            tensor.copy(staging, true)?;
        }
        Ok(tensor)
    }

    /// Runs `body` with `elements` as a tensor on `device`: on the host a borrowed one without a copy, which must not
    /// outlive the call.
    pub fn with_input<T: Element, R>(
        elements: &[T],
        shape: &[usize],
        device: Device,
        body: impl FnOnce(&Tensor) -> Result<R>,
    ) -> Result<R> {
        if device != Device::Cpu {
            return body(&Self::from_slice_on(elements, shape, device)?);
        }
        if Some(elements.len()) != element_count(shape) {
            return Err(Error::internal(format!(
                "{} elements do not fill the shape {shape:?}",
                elements.len()
            )));
        }
        let sizes = sizes(shape);
        let tensor = Self::make("borrow_host", |api, out| {
            // SAFETY: `elements` outlives `tensor`, which is dropped before this function returns.
            unsafe {
                (api.borrow_host)(elements.as_ptr().cast(), sizes.len() as i64, sizes.as_ptr(), T::CODE, out)
            }
        })?;
        body(&tensor)
    }

    /// A contiguous tensor over `data`, which `deleter(data, context)` frees when its storage dies.
    ///
    /// # Safety
    /// `data` holds elements for `shape` and stays valid until `deleter` runs, on whatever thread.
    pub(super) unsafe fn adopt(
        data: *mut c_void,
        shape: &[usize],
        dtype: Dtype,
        deleter: unsafe extern "C" fn(*mut c_void, *mut c_void),
        context: *mut c_void,
    ) -> Result<Self> {
        let sizes = sizes(shape);
        Self::make("adopt_host", |api, out| {
            // SAFETY: `sizes` outlives the call; the caller vouches for the rest.
            unsafe {
                let dtype = code(dtype);
                (api.adopt_host)(data, sizes.len() as i64, sizes.as_ptr(), dtype, deleter, context, out)
            }
        })
    }

    /// A tensor and a storage of its own over the memory of this contiguous one in host memory, which it keeps alive.
    ///
    /// What its owner does to shape, attributes or storage stays with it. A view shares the storage, whose memory
    /// `share_memory_` replaces and frees, while others read it.
    pub fn alias(&self) -> Result<Self> {
        let mut on_host = 0;
        let api = sys::api()?;
        // SAFETY: the handle is live and `on_host` is writable.
        sys::check("on_host", unsafe { (api.on_host)(self.raw(), &mut on_host) }, api)?;
        if on_host == 0 {
            return Err(Error::internal("only a tensor in host memory has aliases"));
        }
        // An error unless this tensor is contiguous.
        self.host_bytes()?;
        let (shape, dtype, data) = (self.shape()?, self.dtype()?, self.data()?);
        let context = Box::into_raw(Box::new(self.share()?)).cast::<c_void>();
        // SAFETY: `data` has elements for the shape, and lives until `release_owner` drops the reference to its tensor.
        unsafe { Self::adopt(data, &shape, dtype, release_owner, context) }
    }

    /// The bytes of a contiguous tensor on the host.
    pub fn host_bytes(&self) -> Result<&[u8]> {
        let (shape, strides) = self.geometry()?;
        let bytes = element_count(&shape).and_then(|n| n.checked_mul(self.dtype().ok()?.size()));
        let bytes = bytes.filter(|_| strides == contiguous_strides(&shape));
        let bytes = bytes.ok_or_else(|| Error::internal("only a contiguous floating tensor has bytes"))?;
        let data = self.data()?.cast::<u8>().cast_const();
        if bytes == 0 || data.is_null() {
            return Ok(&[]);
        }
        // SAFETY: a contiguous tensor of this shape and type has this many bytes, alive as long as its storage.
        Ok(unsafe { std::slice::from_raw_parts(data, bytes) })
    }

    /// A second reference to the same tensor.
    pub fn share(&self) -> Result<Self> {
        // SAFETY: the handle is live during the call.
        Self::make("share", |api, out| unsafe { (api.share)(self.raw(), out) })
    }

    fn data(&self) -> Result<*mut c_void> {
        let api = sys::api()?;
        let mut data = null_mut();
        // SAFETY: the handle is live during the call.
        sys::check("data", unsafe { (api.data)(self.raw(), &mut data) }, api)?;
        Ok(data)
    }

    /// The elements in float32, on the host, row by row; waits for the calling thread's stream.
    pub fn values(&self) -> Result<Vec<f32>> {
        let wide = self.cast(Dtype::F32)?.contiguous()?;
        let shape = wide.shape()?;
        let mut here = Self::empty(&shape, Dtype::F32, Device::Cpu)?;
        here.copy_from(&wide)?;
        let count = element_count(&shape).unwrap_or(0);
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: `here` is fresh, contiguous, on the host, and has `count` elements.
        Ok(unsafe { std::slice::from_raw_parts(here.data()?.cast::<f32>(), count) }.to_vec())
    }

    /// Sizes, then strides in elements.
    fn geometry(&self) -> Result<(Vec<usize>, Vec<usize>)> {
        let api = sys::api()?;
        let (mut ndim, mut sizes, mut strides) = (0, std::ptr::null(), std::ptr::null());
        // SAFETY: the handle is live; the bridge returns `ndim` borrowed entries in each array.
        let (sizes, strides) = unsafe {
            sys::check("shape", (api.shape)(self.raw(), &mut ndim, &mut sizes, &mut strides), api)?;
            let ndim = ndim as usize;
            match ndim {
                0 => (&[][..], &[][..]),
                _ => (std::slice::from_raw_parts(sizes, ndim), std::slice::from_raw_parts(strides, ndim)),
            }
        };
        let unsigned = |values: &[i64]| values.iter().map(|&n| n as usize).collect();
        Ok((unsigned(sizes), unsigned(strides)))
    }

    /// Sizes of all axes.
    pub fn shape(&self) -> Result<Vec<usize>> {
        Ok(self.geometry()?.0)
    }

    /// Strides of all axes, in elements.
    pub fn strides(&self) -> Result<Vec<usize>> {
        Ok(self.geometry()?.1)
    }

    /// Element type; an error for index tensors.
    pub fn dtype(&self) -> Result<Dtype> {
        let dtype = self.dtype_code()?;
        [Dtype::F32, Dtype::Bf16, Dtype::F16]
            .into_iter()
            .find(|&d| code(d) == dtype)
            .ok_or_else(|| Error::internal("not a floating tensor"))
    }

    /// The bridge's code of the element type.
    fn dtype_code(&self) -> Result<i32> {
        let api = sys::api()?;
        let mut dtype = 0;
        // SAFETY: the handle is live during the call.
        sys::check("dtype", unsafe { (api.dtype)(self.raw(), &mut dtype) }, api)?;
        Ok(dtype)
    }

    /// Where the tensor lives.
    pub fn device(&self) -> Result<Device> {
        let api = sys::api()?;
        let mut index = 0;
        // SAFETY: the handle is live during the call.
        sys::check("device", unsafe { (api.device)(self.raw(), &mut index) }, api)?;
        Ok(u16::try_from(index).map_or(Device::Cpu, Device::Cuda))
    }

    /// Bytes of its elements.
    pub fn byte_count(&self) -> Result<usize> {
        let size = match self.dtype_code()? {
            CODE_I64 => 8,
            CODE_I32 => 4,
            CODE_U8 => 1,
            _ => self.dtype()?.size(),
        };
        let bytes = element_count(&self.shape()?).and_then(|count| count.checked_mul(size));
        bytes.ok_or_else(|| Error::internal("a tensor of more bytes than can be counted"))
    }

    /// The same elements under another shape; the tensor must be contiguous.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let (old, strides) = self.geometry()?;
        if element_count(&old) != element_count(shape) || strides != contiguous_strides(&old) {
            return Err(Error::internal(format!("a tensor of shape {old:?} cannot be viewed as {shape:?}")));
        }
        self.view(shape, &contiguous_strides(shape), 0)
    }

    /// Rows `begin..end` of the first axis, sharing memory.
    pub fn rows(&self, begin: usize, end: usize) -> Result<Self> {
        self.narrow(0, begin, end)
    }

    /// Places `begin..end` of `axis`, sharing memory.
    pub fn narrow(&self, axis: usize, begin: usize, end: usize) -> Result<Self> {
        let (mut shape, strides) = self.geometry()?;
        match (shape.get_mut(axis), strides.get(axis)) {
            (Some(size), Some(&stride)) if begin <= end && end <= *size => {
                *size = end - begin;
                self.view(&shape, &strides, begin * stride)
            }
            _ => Err(Error::internal(format!(
                "places {begin}..{end} of axis {axis} of a tensor of shape {shape:?}"
            ))),
        }
    }

    /// A contiguous copy with memory of its own, on the same `device`.
    pub fn copied(&self, device: Device) -> Result<Self> {
        let mut copy = Self::empty(&self.shape()?, self.dtype()?, device)?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// A view with explicit strides, `offset` elements from this tensor's first. The caller keeps it within bounds.
    fn view(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        let (shape, strides) = (sizes(shape), sizes(strides));
        Self::make("view", |api, out| {
            // SAFETY: both arrays outlive the call; all callers derive the extents from a checked geometry.
            unsafe {
                (api.view)(
                    self.raw(),
                    shape.len() as i64,
                    shape.as_ptr(),
                    strides.as_ptr(),
                    offset as i64,
                    out,
                )
            }
        })
    }

    /// The same elements in an order given by `axes`, made contiguous.
    pub fn permute(&self, axes: &[usize]) -> Result<Self> {
        let (shape, strides) = self.geometry()?;
        let mut seen = vec![false; shape.len()];
        for &axis in axes {
            *seen.get_mut(axis).ok_or_else(|| Error::internal("permute: no such axis"))? = true;
        }
        if axes.len() != shape.len() || seen.contains(&false) {
            return Err(Error::internal("permute: every axis once"));
        }
        let pick = |values: &[usize]| axes.iter().map(|&axis| values[axis]).collect::<Vec<_>>();
        self.view(&pick(&shape), &pick(&strides), 0)?.contiguous()
    }

    /// This tensor laid out row by row; shares memory when it is already.
    pub fn contiguous(&self) -> Result<Self> {
        // SAFETY: the handle is live during the call.
        Self::make("contiguous", |api, out| unsafe { (api.contiguous)(self.raw(), out) })
    }

    /// This tensor with elements of `dtype`; shares memory when it has them already.
    pub fn cast(&self, dtype: Dtype) -> Result<Self> {
        // SAFETY: the handle is live during the call.
        Self::make("cast", |api, out| unsafe { (api.cast)(self.raw(), code(dtype), out) })
    }

    /// Copies the elements of `source`, converting and moving between devices as needed.
    pub fn copy_from(&mut self, source: &Self) -> Result<()> {
        self.copy(source, false)
    }

    fn copy(&mut self, source: &Self, background: bool) -> Result<()> {
        let api = sys::api()?;
        // SAFETY: both handles are live during the call; memory that is read in the background is pinned memory of
        // LibTorch's allocator, which keeps it until then.
        sys::check("copy", unsafe { (api.copy_into)(self.raw(), source.raw(), background.into()) }, api)
    }

    /// This tensor on `device`; shares memory when it is there already (`from` says where it is).
    pub fn to_device(self, from: Device, device: Device) -> Result<Self> {
        if from == device {
            return Ok(self);
        }
        let mut moved = Self::empty_coded(&self.shape()?, self.dtype_code()?, device)?;
        moved.copy_from(&self)?;
        Ok(moved)
    }
}

/// A host element type of the bridge.
pub trait Element: Copy + sealed::Sealed {
    #[doc(hidden)]
    const CODE: i32;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
    impl Sealed for i64 {}
    impl Sealed for i32 {}
    impl Sealed for u8 {}
}

impl Element for f32 {
    const CODE: i32 = 0;
}
impl Element for half::bf16 {
    const CODE: i32 = 1;
}
impl Element for half::f16 {
    const CODE: i32 = 2;
}
impl Element for u8 {
    const CODE: i32 = CODE_U8;
}
impl Element for i64 {
    const CODE: i32 = CODE_I64;
}
impl Element for i32 {
    const CODE: i32 = CODE_I32;
}

fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size))
}

fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Hands `tensors` to the table that `torch.ops.mm_libtorch_encoder.take(id)` empties, and returns the id.
pub fn publish(tensors: Vec<Tensor>) -> Result<i64> {
    let api = sys::api()?;
    let raw: Vec<RawTensor> = tensors.iter().map(Tensor::raw).collect();
    let mut id = 0;
    // SAFETY: `raw` holds live handles; on success their references belong to the bridge.
    sys::check("publish", unsafe { (api.publish)(raw.as_ptr(), raw.len() as i64, &mut id) }, api)?;
    tensors.into_iter().for_each(std::mem::forget);
    Ok(id)
}

/// Frees a published result that nobody took; an unknown id is ignored.
pub fn discard(id: i64) {
    if let Ok(api) = sys::api() {
        // SAFETY: plain call into the table.
        unsafe { (api.discard)(id) };
    }
}
