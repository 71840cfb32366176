//! The CUDA library (`cuda/api.h`): opened once a process, its devices, and which of its parts are in use.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;
use crate::{Error, Result};

/// Must equal `MM_CUDA_API_VERSION` in `cuda/api.h`.
const API_VERSION: u32 = 2;

/// A part of the library that can be switched off. Discriminants are those of `MmCudaKernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kernel {
    /// RMS norm.
    Norm = 0,
    /// A sum and its norm.
    AddNorm = 1,
    /// Norm and turn of q and k.
    Rotary = 2,
    /// Gated activations.
    Gated = 3,
    /// Activations that LibTorch composes.
    Activation = 4,
    /// tanh GELU in the product before it.
    LinearGelu = 5,
    /// Interpolated positions.
    Positions = 6,
    /// Attention over all segments at once.
    Attention = 7,
    /// 8-bit levels to a tower's input.
    Patches = 8,
}

impl Kernel {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::Norm,
        Self::AddNorm,
        Self::Rotary,
        Self::Gated,
        Self::Activation,
        Self::LinearGelu,
        Self::Positions,
        Self::Attention,
        Self::Patches,
    ];
    /// The bits of all of them.
    const MASK: u32 = (1 << Self::ALL.len()) - 1;

    /// Its name in `set_cuda_kernels` and `mm-encoder doctor`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm",
            Self::AddNorm => "add_norm",
            Self::Rotary => "rotary",
            Self::Gated => "gated",
            Self::Activation => "activation",
            Self::LinearGelu => "linear_gelu",
            Self::Positions => "positions",
            Self::Attention => "attention",
            Self::Patches => "patches",
        }
    }

    /// Its bit in a mask.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Field for field the `MmCudaDevice` of `cuda/api.h`.
#[repr(C)]
struct RawFacts {
    name: [c_char; 256],
    capability: i32,
    driver: i32,
    runtime: i32,
    memory: i64,
}

/// The start of `MmCudaOps`; the rest is the bridge's.
#[repr(C)]
struct Ops {
    last_error: unsafe extern "C" fn() -> *const c_char,
}

/// Field for field the `MmCudaApi` of `cuda/api.h`.
#[repr(C)]
pub(super) struct Api {
    version: u32,
    size: u32,
    ops: *const Ops,
    check_device: unsafe extern "C" fn(i32, *mut RawFacts) -> i32,
    pub enter: unsafe extern "C" fn(i32, i32, *mut *mut c_void, *mut *mut c_void, *mut i32) -> i32,
    pub leave: unsafe extern "C" fn(*mut c_void),
    pub drain: unsafe extern "C" fn(i32, *mut c_void) -> i32,
    pub mark: unsafe extern "C" fn(i32, *mut c_void, *mut *mut c_void) -> i32,
    pub wait: unsafe extern "C" fn(i32, *mut c_void, *mut c_void) -> i32,
    pub forget: unsafe extern "C" fn(i32, *mut c_void),
    pub capture: unsafe extern "C" fn(i32, *mut c_void, Body, *mut c_void, *mut *mut c_void) -> i32,
    pub replay: unsafe extern "C" fn(i32, *mut c_void, *mut c_void) -> i32,
    pub forget_graph: unsafe extern "C" fn(i32, *mut c_void),
}

/// What a capture runs, with its context; 0, or else the capture fails.
pub(super) type Body = unsafe extern "C" fn(*mut c_void) -> i32;

// SAFETY: the table and what it points to are constant.
unsafe impl Sync for Api {}

// The library is never unloaded, so the table and its functions live as long as the process.
static API: OnceLock<&'static Api> = OnceLock::new();
static ENABLED: AtomicU32 = AtomicU32::new(0);

/// Opens the CUDA library at `path` and hands its operators to the bridge, which must be open. Again: a no-op.
pub fn open(path: &OsStr) -> Result<()> {
    if API.get().is_some() {
        return Ok(());
    }
    let bridge = sys::api()?;
    // SAFETY: the library's initialisers register GPU code with the CUDA runtime and touch no device.
    let library = unsafe { libloading::Library::new(path) }.map_err(|_| {
        Error::runtime(
            "the CUDA library libmm_cuda.so does not load beside this Torch: it needs Torch 2.11 or newer, built for \
             the CUDA major version that the library was built with; `mm-encoder doctor` shows both",
        )
    })?;
    type Entry = unsafe extern "C" fn(u32) -> *const Api;
    // SAFETY: the symbol, where it exists, has this signature (cuda/api.h).
    let table = unsafe { library.get::<Entry>(b"mm_cuda_api\0").map(|entry| entry(API_VERSION)) };
    let table = match table {
        // SAFETY: a non-null table is static in the library, which is leaked below.
        Ok(table) => unsafe { table.as_ref() },
        Err(_) => None,
    };
    let fits = |api: &&Api| api.version == API_VERSION && api.size as usize == size_of::<Api>();
    let table = table.filter(fits).ok_or_else(|| {
        Error::runtime("libmm_cuda.so is of another version than this extension: install the wheel again")
    })?;
    std::mem::forget(library);
    if API.set(table).is_ok() {
        // SAFETY: the operators are static in the leaked library.
        unsafe { (bridge.set_cuda)(table.ops.cast()) };
        enable(Kernel::MASK)?;
    }
    Ok(())
}

pub(super) fn api() -> Result<&'static Api> {
    API.get().copied().ok_or_else(|| {
        Error::runtime(
            "CUDA was asked for before the CUDA library libmm_cuda.so was opened: use device=\"cpu\"",
        )
    })
}

/// The sentence that the library left for this thread.
fn said(api: &Api) -> String {
    // SAFETY: `ops` is static; last_error returns a NUL-terminated string that lives until the thread's next failure.
    unsafe { CStr::from_ptr(((*api.ops).last_error)()) }.to_string_lossy().into_owned()
}

/// An error with the library's words unless `status` is 0.
pub(super) fn check(index: u16, status: i32, api: &Api) -> Result<()> {
    match status {
        0 => Ok(()),
        2 => Err(Error::out_of_memory(format!("cuda:{index}: {}", said(api)))),
        _ => Err(Error::internal(format!("cuda:{index}: {}", said(api)))),
    }
}

/// What a CUDA device is.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The GPU's name.
    pub name: String,
    /// Compute capability, (9, 0) for an H100.
    pub capability: (i32, i32),
    /// Newest CUDA version that the driver knows, (13, 0).
    pub driver: (i32, i32),
    /// Bytes of memory.
    pub memory: u64,
}

/// Asks whether device `index` can be used at all; the error says what is missing.
pub fn device(index: u16) -> Result<Facts> {
    let api = api()?;
    let mut facts = RawFacts { name: [0; 256], capability: 0, driver: 0, runtime: 0, memory: 0 };
    // SAFETY: `facts` is writable and of the layout that the library fills.
    let status = unsafe { (api.check_device)(index.into(), &mut facts) };
    if status != 0 {
        return Err(Error::runtime(format!(
            "device \"cuda:{index}\" cannot be used: {}; device=\"cpu\" can",
            said(api)
        )));
    }
    // SAFETY: the library ends the name with a NUL inside the array.
    let name = unsafe { CStr::from_ptr(facts.name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Facts {
        name,
        capability: (facts.capability / 10, facts.capability % 10),
        driver: (facts.driver / 1000, facts.driver % 1000 / 10),
        memory: u64::try_from(facts.memory).unwrap_or(0),
    })
}

/// Is `kernel` in use? Not before the library is open.
pub fn is_enabled(kernel: Kernel) -> bool {
    ENABLED.load(Ordering::Relaxed) & kernel.bit() != 0
}

/// The bits of the parts that towers use now, in all threads.
pub fn in_use() -> u32 {
    if sys::is_plain() { 0 } else { ENABLED.load(Ordering::Relaxed) }
}

/// Uses the parts of `mask` from now on, in all threads; the others are composed of plain operators.
pub fn enable(mask: u32) -> Result<()> {
    let bridge = sys::api()?;
    let mask = mask & Kernel::MASK;
    ENABLED.store(mask, Ordering::Relaxed);
    // SAFETY: plain call into the table.
    unsafe { (bridge.set_cuda_kernels)(mask) };
    Ok(())
}

/// Runs `body` with the parts of `mask` in the calling thread alone.
pub fn with_kernels<R>(mask: u32, body: impl FnOnce() -> Result<R>) -> Result<R> {
    struct Restore(&'static sys::Api);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: plain call into the table.
            unsafe { (self.0.set_thread_kernels)(-1) };
        }
    }
    let restore = Restore(sys::api()?);
    // SAFETY: plain call into the table.
    unsafe { (restore.0.set_thread_kernels)(mask.into()) };
    body()
}
