//! The bridge's C table (`bridge/api.h`), opened once a process.
#![allow(unsafe_code, missing_docs)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Must equal `MM_API_VERSION` in `bridge/api.h`.
const API_VERSION: u32 = 7;

pub type RawTensor = *mut c_void;
type Status = i32;

/// One row of the bridge's table of ATen operators.
#[repr(C)]
struct RawSchema {
    name: *const c_char,
    overload: *const c_char,
    schema: *const c_char,
}

/// Field for field the `MmApi` of `bridge/api.h`.
#[repr(C)]
pub struct Api {
    pub version: u32,
    pub size: u32,
    last_error: unsafe extern "C" fn() -> *const c_char,
    torch_version: unsafe extern "C" fn() -> u64,
    register_operators: unsafe extern "C" fn() -> Status,
    disable_gradients: unsafe extern "C" fn(),
    share_threads: unsafe extern "C" fn(i32),
    set_plain: unsafe extern "C" fn(i32),
    live_tensors: unsafe extern "C" fn() -> i64,
    schemas: unsafe extern "C" fn(*mut u64) -> *const RawSchema,
    kernel_level: unsafe extern "C" fn() -> *const c_char,
    pub set_cuda: unsafe extern "C" fn(*const c_void),
    pub set_cuda_kernels: unsafe extern "C" fn(u32),
    pub set_thread_kernels: unsafe extern "C" fn(i64),

    pub empty: unsafe extern "C" fn(i64, *const i64, i32, i32, i32, *mut RawTensor) -> Status,
    pub borrow_host: unsafe extern "C" fn(*const c_void, i64, *const i64, i32, *mut RawTensor) -> Status,
    pub adopt_host: unsafe extern "C" fn(
        *mut c_void,
        i64,
        *const i64,
        i32,
        unsafe extern "C" fn(*mut c_void, *mut c_void),
        *mut c_void,
        *mut RawTensor,
    ) -> Status,
    pub empty_staging: unsafe extern "C" fn(i64, *const i64, i32, *mut RawTensor) -> Status,
    pub release: unsafe extern "C" fn(RawTensor),
    pub share: unsafe extern "C" fn(RawTensor, *mut RawTensor) -> Status,
    pub data: unsafe extern "C" fn(RawTensor, *mut *mut c_void) -> Status,
    pub shape: unsafe extern "C" fn(RawTensor, *mut i64, *mut *const i64, *mut *const i64) -> Status,
    pub dtype: unsafe extern "C" fn(RawTensor, *mut i32) -> Status,
    pub device: unsafe extern "C" fn(RawTensor, *mut i32) -> Status,
    pub on_host: unsafe extern "C" fn(RawTensor, *mut i32) -> Status,
    pub view: unsafe extern "C" fn(RawTensor, i64, *const i64, *const i64, i64, *mut RawTensor) -> Status,
    pub contiguous: unsafe extern "C" fn(RawTensor, *mut RawTensor) -> Status,
    pub cast: unsafe extern "C" fn(RawTensor, i32, *mut RawTensor) -> Status,
    pub copy_into: unsafe extern "C" fn(RawTensor, RawTensor, i32) -> Status,
    pub cat: unsafe extern "C" fn(*const RawTensor, i64, i64, *mut RawTensor) -> Status,
    pub index_rows: unsafe extern "C" fn(RawTensor, RawTensor, *mut RawTensor) -> Status,

    pub pack_linear: unsafe extern "C" fn(RawTensor, *mut RawTensor) -> Status,
    pub linear:
        unsafe extern "C" fn(RawTensor, RawTensor, RawTensor, RawTensor, i32, i32, *mut RawTensor) -> Status,
    pub activation: unsafe extern "C" fn(RawTensor, i32, *mut RawTensor) -> Status,
    pub add: unsafe extern "C" fn(RawTensor, RawTensor, *mut RawTensor) -> Status,
    pub layer_norm: unsafe extern "C" fn(RawTensor, RawTensor, RawTensor, f64, *mut RawTensor) -> Status,
    pub rms_norm: unsafe extern "C" fn(RawTensor, RawTensor, f64, *mut RawTensor) -> Status,
    pub depthwise: unsafe extern "C" fn(RawTensor, RawTensor, RawTensor, *mut RawTensor) -> Status,
    pub add_norm: unsafe extern "C" fn(
        RawTensor,
        RawTensor,
        RawTensor,
        RawTensor,
        f64,
        *mut RawTensor,
        *mut RawTensor,
    ) -> Status,
    pub gated: unsafe extern "C" fn(RawTensor, i32, f64, *mut RawTensor) -> Status,
    pub rotary:
        unsafe extern "C" fn(RawTensor, RawTensor, RawTensor, RawTensor, RawTensor, f64, i32) -> Status,
    pub attention:
        unsafe extern "C" fn(RawTensor, *const i64, i64, RawTensor, f64, i32, *mut RawTensor) -> Status,
    pub add_interpolated:
        unsafe extern "C" fn(RawTensor, RawTensor, RawTensor, RawTensor, *mut RawTensor) -> Status,
    pub expand_patches:
        unsafe extern "C" fn(RawTensor, RawTensor, i64, i32, i32, i32, *mut RawTensor) -> Status,
    pub resample_table: unsafe extern "C" fn(RawTensor, i64, i64, i32, *mut RawTensor) -> Status,

    pub publish: unsafe extern "C" fn(*const RawTensor, i64, *mut i64) -> Status,
    pub discard: unsafe extern "C" fn(i64),
}

// The library is never unloaded, so the table and its functions live as long as the process.
static API: OnceLock<&'static Api> = OnceLock::new();
static FILE: OnceLock<PathBuf> = OnceLock::new();
static PLAIN: AtomicBool = AtomicBool::new(false);

/// The bridge's file; empty before [`open`].
pub fn bridge_file() -> &'static Path {
    FILE.get().map_or(Path::new(""), PathBuf::as_path)
}

/// Opens the bridge at `path`, whose LibTorch must be in the process already (Python's `import torch` put it there).
///
/// A second call is a no-op. Errors say what the host lacks.
pub fn open(path: &OsStr) -> Result<()> {
    if API.get().is_some() {
        return Ok(());
    }
    // SAFETY: the library's initialisers only construct C++ statics; it is opened after the manifest check.
    let library = unsafe { libloading::Library::new(path) }.map_err(|_| {
        Error::runtime(
            "the LibTorch bridge libmm_torch.so could not be opened: `import torch` must have run, and Torch must \
             be 2.11 or newer; `mm-encoder doctor` shows what differs",
        )
    })?;
    type Entry = unsafe extern "C" fn(u32) -> *const Api;
    // SAFETY: the symbol, where it exists, has this signature (bridge/api.h).
    let table = unsafe { library.get::<Entry>(b"mm_torch_api\0").map(|entry| entry(API_VERSION)) };
    let table = match table {
        // SAFETY: a non-null table is static in the library, which is leaked below.
        Ok(table) => unsafe { table.as_ref() },
        Err(_) => None,
    };
    let fits = |api: &&Api| api.version == API_VERSION && api.size as usize == size_of::<Api>();
    let table = table.filter(fits).ok_or_else(|| {
        Error::runtime("libmm_torch.so is of another version than this extension: install the wheel again")
    })?;
    std::mem::forget(library);
    // SAFETY: plain call into the table.
    check("register_operators", unsafe { (table.register_operators)() }, table)?;
    let _ = FILE.set(path.into());
    let _ = API.set(table);
    Ok(())
}

/// The table; an error before [`open`].
pub fn api() -> Result<&'static Api> {
    API.get().copied().ok_or_else(|| Error::internal("LibTorch was used before the bridge was opened"))
}

/// Turns a status into a result that names `what` ran, with LibTorch's own first line where it gives one.
pub fn check(what: &str, status: Status, api: &Api) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: last_error returns a NUL-terminated string that lives until the thread's next failure.
    let text = unsafe { CStr::from_ptr((api.last_error)()) }.to_string_lossy();
    let line = text.lines().next().unwrap_or_default();
    let message = format!("{what}: {line}");
    Err(if status == 2 { Error::out_of_memory(message) } else { Error::internal(message) })
}

/// Turns gradients off and fixes the number of compute threads for the calling thread.
pub fn disable_gradients() -> Result<()> {
    let api = api()?;
    // SAFETY: plain call into the table.
    unsafe { (api.disable_gradients)() };
    Ok(())
}

/// Gives the calling thread one of `sharers` equal parts of the compute threads, after [`disable_gradients`].
pub fn share_threads(sharers: usize) -> Result<()> {
    let api = api()?;
    // SAFETY: plain call into the table.
    unsafe { (api.share_threads)(i32::try_from(sharers).unwrap_or(i32::MAX)) };
    Ok(())
}

/// Composes every operator of plain ATen calls instead of the fused forms, for comparison.
pub fn set_plain(plain: bool) -> Result<()> {
    let api = api()?;
    PLAIN.store(plain, Ordering::Relaxed);
    // SAFETY: plain call into the table.
    unsafe { (api.set_plain)(plain.into()) };
    Ok(())
}

/// Whether [`set_plain`] is on.
pub fn is_plain() -> bool {
    PLAIN.load(Ordering::Relaxed)
}

/// Tensors that this library owns at this moment; results taken by Python do not count.
pub fn live_tensors() -> Result<i64> {
    let api = api()?;
    // SAFETY: plain call into the table.
    Ok(unsafe { (api.live_tensors)() })
}

/// Version of the running LibTorch: (major, minor, patch).
pub fn torch_version() -> Result<(u8, u8, u8)> {
    let api = api()?;
    // SAFETY: plain call into the table.
    let [major, minor, patch, ..] = unsafe { (api.torch_version)() }.to_be_bytes();
    Ok((major, minor, patch))
}

/// Instruction set of the bridge's fused CPU kernels: "base", "avx2" or "avx512".
pub fn kernel_level() -> Result<String> {
    let api = api()?;
    // SAFETY: the bridge returns a NUL-terminated static string.
    Ok(unsafe { CStr::from_ptr((api.kernel_level)()) }.to_string_lossy().into_owned())
}

/// An ATen operator that the bridge calls, and the schema it was written for.
pub struct Schema {
    pub name: String,
    pub overload: String,
    pub schema: String,
}

/// All operators that the bridge calls through the dispatcher.
pub fn schemas() -> Result<Vec<Schema>> {
    let api = api()?;
    let mut count = 0;
    // SAFETY: the bridge returns a static array of `count` rows of NUL-terminated static strings.
    let rows = unsafe {
        let first = (api.schemas)(&mut count);
        std::slice::from_raw_parts(first, count as usize)
    };
    // SAFETY: as above.
    let text = |raw: *const c_char| unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned();
    Ok(rows
        .iter()
        .map(|row| Schema { name: text(row.name), overload: text(row.overload), schema: text(row.schema) })
        .collect())
}
