//! Safe calls of libwebp.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libwebp_sys as sys;

use super::super::limits::Gate;
use crate::{Error, Result};

/// A parsed file: all its chunks are whole and in order.
pub(super) struct Container<'a> {
    demuxer: NonNull<sys::WebPDemuxer>,
    /// Size of the canvas.
    pub(super) width: u32,
    pub(super) height: u32,
    /// The header announces transparency.
    pub(super) has_alpha: bool,
    _bytes: PhantomData<&'a [u8]>,
}

/// One frame and its place on the canvas, which contains it.
pub(super) struct Frame<'a> {
    data: &'a [u8],
    x: u32,
    y: u32,
    canvas: (u32, u32),
    pub(super) width: u32,
    pub(super) height: u32,
}

impl<'a> Container<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Option<Self> {
        let data = sys::WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
        let version = sys::WebPGetDemuxABIVersion();
        // SAFETY: `data` is valid for the call; the demuxer refers to `bytes`, which live for 'a. A partial file
        // is not asked for, so no state is written.
        let demuxer = unsafe { sys::WebPDemuxInternal(&data, 0, std::ptr::null_mut(), version) };
        let demuxer = NonNull::new(demuxer)?;
        let get = |what| {
            // SAFETY: the demuxer is alive.
            unsafe { sys::WebPDemuxGetI(demuxer.as_ptr(), what) }
        };
        let width = get(sys::WebPFormatFeature::WEBP_FF_CANVAS_WIDTH);
        let height = get(sys::WebPFormatFeature::WEBP_FF_CANVAS_HEIGHT);
        Some(Self { demuxer, width, height, has_alpha: has_alpha(bytes), _bytes: PhantomData })
    }

    /// The first chunk called `name` that the file's header announces.
    pub(super) fn chunk(&self, name: &CStr) -> Option<&'a [u8]> {
        let mut iterator = MaybeUninit::<sys::WebPChunkIterator>::zeroed();
        // SAFETY: the demuxer is alive, the name has four bytes, and the iterator is plain data to be filled. The
        // chunk lies within the bytes of 'a; releasing the iterator frees nothing of them.
        unsafe {
            let found =
                sys::WebPDemuxGetChunk(self.demuxer.as_ptr(), name.as_ptr(), 1, iterator.as_mut_ptr());
            if found == 0 {
                return None;
            }
            let mut iterator = iterator.assume_init();
            let chunk = iterator.chunk;
            sys::WebPDemuxReleaseChunkIterator(&mut iterator);
            slice(chunk)
        }
    }

    /// The first frame.
    pub(super) fn first(&self) -> Option<Frame<'a>> {
        let mut iterator = MaybeUninit::<sys::WebPIterator>::zeroed();
        // SAFETY: as in `chunk`.
        let (data, iterator) = unsafe {
            if sys::WebPDemuxGetFrame(self.demuxer.as_ptr(), 1, iterator.as_mut_ptr()) == 0 {
                return None;
            }
            let mut iterator = iterator.assume_init();
            let data = slice(iterator.fragment)?;
            sys::WebPDemuxReleaseIterator(&mut iterator);
            (data, iterator)
        };
        let place = |value: c_int| u32::try_from(value).ok();
        let frame = Frame {
            data,
            x: place(iterator.x_offset)?,
            y: place(iterator.y_offset)?,
            canvas: (self.width, self.height),
            width: place(iterator.width)?,
            height: place(iterator.height)?,
        };
        let inside = |start: u32, len: u32, end: u32| start.checked_add(len).is_some_and(|last| last <= end);
        (inside(frame.x, frame.width, self.width) && inside(frame.y, frame.height, self.height))
            .then_some(frame)
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // SAFETY: the demuxer is alive and deleted once.
        unsafe { sys::WebPDemuxDelete(self.demuxer.as_ptr()) };
    }
}

/// # Safety
/// `data` must describe bytes that live for 'a.
unsafe fn slice<'a>(data: sys::WebPData) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!data.bytes.is_null()).then(|| unsafe { std::slice::from_raw_parts(data.bytes, data.size) })
}

fn has_alpha(bytes: &[u8]) -> bool {
    let mut features = MaybeUninit::<sys::WebPBitstreamFeatures>::zeroed();
    // SAFETY: the bytes are valid for the call; the features are plain data, all zero or filled.
    unsafe {
        let status = sys::WebPGetFeatures(bytes.as_ptr(), bytes.len(), features.as_mut_ptr());
        status != sys::VP8StatusCode::VP8_STATUS_OK || features.assume_init().has_alpha != 0
    }
}

impl Frame<'_> {
    /// Decodes onto `canvas`, whose rows of `stride` bytes hold 3 or 4 samples a pixel.
    pub(super) fn decode(&self, canvas: &mut [u8], stride: usize, gate: &Gate) -> Result<()> {
        let (width, height) = (self.canvas.0 as usize, self.canvas.1 as usize);
        let samples = stride / width.max(1);
        if !matches!(samples, 3 | 4) || stride != samples * width || canvas.len() != stride * height {
            return Err(Error::internal("the canvas of a WebP frame has the wrong size"));
        }
        let start = self.y as usize * stride + self.x as usize * samples;
        let target = canvas.get_mut(start..).unwrap_or_default();
        let mut config =
            sys::WebPDecoderConfig::new().map_err(|()| Error::internal("libwebp has another version"))?;
        config.output.colorspace =
            if samples == 4 { sys::WEBP_CSP_MODE::MODE_RGBA } else { sys::WEBP_CSP_MODE::MODE_RGB };
        config.output.is_external_memory = 1;
        config.output.u.RGBA = sys::WebPRGBABuffer {
            rgba: target.as_mut_ptr(),
            stride: c_int::try_from(stride).map_err(|_| Error::internal("a WebP row is too long"))?,
            size: target.len(),
        };
        // SAFETY: the frame's data are valid for the call; the output lies within `target`, whose length libwebp
        // checks against stride and frame size.
        let status = unsafe { sys::WebPDecode(self.data.as_ptr(), self.data.len(), &mut config) };
        match status {
            sys::VP8StatusCode::VP8_STATUS_OK => Ok(()),
            sys::VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | sys::VP8StatusCode::VP8_STATUS_SUSPENDED => {
                Err(gate.truncated())
            }
            // Damaged data are also reported as a lack of memory.
            _ => Err(gate.damaged("compressed data")),
        }
    }
}
