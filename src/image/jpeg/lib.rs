//! Safe calls of the libjpeg shim.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::super::limits::Gate;
use crate::{Error, Result};

#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Source {
    data: *const u8,
    size: usize,
    tables: *const u8,
    tables_size: usize,
    memory: u64,
    scans: u32,
    fill: i32,
}

#[repr(C)]
#[derive(Default)]
struct Shape {
    width: u32,
    height: u32,
    components: u32,
    memory: u64,
}

unsafe extern "C" {
    fn mm_jpeg_open(source: *const Source, handle: *mut *mut Handle, shape: *mut Shape) -> c_int;
    fn mm_jpeg_start(handle: *mut Handle, output: c_int) -> c_int;
    fn mm_jpeg_rows(handle: *mut Handle, out: *mut u8, stride: usize, rows: u32) -> c_int;
    fn mm_jpeg_finish(handle: *mut Handle) -> c_int;
    fn mm_jpeg_close(handle: *mut Handle);
}

/// Samples that [`Decoder::rows`] writes; the values are those of `shim.h`.
#[derive(Clone, Copy)]
pub(in crate::image) enum Output {
    /// Three a pixel.
    Rgb = 0,
    /// Four a pixel, as stored.
    Cmyk = 1,
    /// One for each component of the stream, colour not converted.
    Raw = 2,
    /// Three a pixel, the stream being YCbCr whatever its markers say.
    RgbFromYCbCr = 3,
}

/// How a stream is read.
pub(in crate::image) struct Options<'a> {
    /// A stream of tables that comes before the picture's own; may be empty.
    pub(in crate::image) tables: &'a [u8],
    /// Bytes that libjpeg may allocate.
    pub(in crate::image) memory: u64,
    /// Scans that are read at most.
    pub(in crate::image) scans: u32,
    /// A stream that ends early is treated as if it had its end marker.
    pub(in crate::image) fill: bool,
}

/// One picture being decoded.
pub(in crate::image) struct Decoder<'a> {
    handle: NonNull<Handle>,
    gate: &'a Gate<'a>,
    /// Pixels a row.
    pub(in crate::image) width: u32,
    /// Rows.
    pub(in crate::image) height: u32,
    /// Components of the stream, 1 to 4.
    pub(in crate::image) components: u32,
    /// Bytes that libjpeg allocates for whole-picture coefficients.
    pub(in crate::image) memory: u64,
    left: u32,
    samples: usize,
    _data: PhantomData<&'a [u8]>,
}

impl<'a> Decoder<'a> {
    /// Reads the header.
    pub(in crate::image) fn open(data: &'a [u8], options: &Options<'a>, gate: &'a Gate<'a>) -> Result<Self> {
        let source = Source {
            data: data.as_ptr(),
            size: data.len(),
            tables: options.tables.as_ptr(),
            tables_size: options.tables.len(),
            memory: options.memory,
            scans: options.scans,
            fill: i32::from(options.fill),
        };
        let mut handle = ptr::null_mut();
        let mut shape = Shape::default();
        // SAFETY: both streams outlive the handle by 'a; the other two pointers are valid for the call.
        let status = unsafe { mm_jpeg_open(&source, &mut handle, &mut shape) };
        check(status, options.scans, gate)?;
        let handle = NonNull::new(handle).ok_or_else(|| Error::internal("libjpeg gave no handle"))?;
        let Shape { width, height, components, memory } = shape;
        let left = height;
        let _data = PhantomData;
        Ok(Self { handle, gate, width, height, components, memory, left, samples: 0, _data })
    }

    /// Chooses the output; reads the whole stream if it has several scans.
    pub(in crate::image) fn start(&mut self, output: Output) -> Result<()> {
        // SAFETY: the handle is open; a failed call is followed by nothing but the close in `drop`, because
        // `samples` stays 0.
        let status = unsafe { mm_jpeg_start(self.handle.as_ptr(), output as c_int) };
        check(status, super::scans(self.width, self.height), self.gate)?;
        let samples = match output {
            Output::Rgb | Output::RgbFromYCbCr => 3,
            Output::Cmyk => 4,
            Output::Raw => self.components as usize,
        };
        self.samples = samples * self.width as usize;
        Ok(())
    }

    /// Decodes the next `count` rows into `out`, `stride` bytes apart.
    pub(in crate::image) fn rows(&mut self, out: &mut [u8], stride: usize, count: u32) -> Result<()> {
        // SAFETY: nothing but samples is written.
        self.rows_into(unsafe { &mut *(ptr::from_mut(out) as *mut [MaybeUninit<u8>]) }, stride, count)
    }

    /// [`Self::rows`] into memory that may be uninitialised. On success each row's samples are initialised.
    pub(in crate::image) fn rows_into(
        &mut self,
        out: &mut [MaybeUninit<u8>],
        stride: usize,
        count: u32,
    ) -> Result<()> {
        let fits = (count as usize).checked_mul(stride).is_some_and(|bytes| bytes <= out.len());
        if self.samples == 0 || count > self.left || stride < self.samples || !fits {
            return Err(Error::internal("rows of a JPEG were asked for out of range"));
        }
        // SAFETY: `count` rows of at most `stride` bytes fit `out`, and as many are left in the picture.
        let status = unsafe { mm_jpeg_rows(self.handle.as_ptr(), out.as_mut_ptr().cast(), stride, count) };
        self.left -= count;
        if let Err(error) = check(status, super::scans(self.width, self.height), self.gate) {
            self.left = 0;
            return Err(error);
        }
        Ok(())
    }

    /// Reads to the end marker, after the last row.
    pub(in crate::image) fn finish(self) -> Result<()> {
        if self.samples == 0 || self.left > 0 {
            return Err(Error::internal("a JPEG was finished before its last row"));
        }
        // SAFETY: all rows were read.
        let status = unsafe { mm_jpeg_finish(self.handle.as_ptr()) };
        check(status, super::scans(self.width, self.height), self.gate)
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from `mm_jpeg_open` and is closed once.
        unsafe { mm_jpeg_close(self.handle.as_ptr()) };
    }
}

// SAFETY: the handle has no ties to a thread, and the data it reads is shared immutably.
unsafe impl Send for Decoder<'_> {}

fn check(status: c_int, scans: u32, gate: &Gate) -> Result<()> {
    match status {
        0 => Ok(()),
        1 => Err(gate.damaged("compressed data")),
        2 => Err(gate.truncated()),
        3 => {
            Err(gate
                .error("needs more working memory than the limit allows: send a smaller or a baseline image"))
        }
        4 => Err(gate
            .error(format_args!("has more than the {scans} scans allowed at its size: save it as baseline"))),
        _ => Err(gate.error(
            "is of a kind that is not decoded (12-bit, lossless or hierarchical): save it as baseline",
        )),
    }
}
