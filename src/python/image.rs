//! Bindings of `crate::image` on NumPy arrays.

use std::borrow::Cow;

use numpy::{PyArray1, PyArray3, PyArrayMethods};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::image::{self, Alpha, DecodePolicy, Icc, Limits, Sixteen, Truncated};
use crate::{Error, Result};

/// What a decoder does where engines disagree; part of a result's identity.
///
/// Keyword arguments, all optional:
///   orient (bool): apply the EXIF orientation, as `PIL.ImageOps.exif_transpose` does. Default: False.
///   alpha (str): "drop" as `convert("RGB")` does; "over": composite any transparency over `background`;
///     "over-rgba": composite only images that Pillow opens in mode RGBA; "keep": four channels where the
///     source has transparency. Default: "drop".
///   background (tuple of 3 ints): colour for "over" and "over-rgba". Default: white.
///   sixteen (str): 16-bit samples as "pillow" reads them (grey clipped at 255, colour by its high byte) or
///     "scale"d to 8 bits. Default: "pillow".
///   truncated (str): a file that ends early is "refuse"d, or its missing part "fill"ed. Default: "refuse".
///   icc (str): "ignore" embedded colour profiles, or convert the pixels to "srgb". Default: "ignore".
///
/// Raises ValueError for a value outside these.
#[pyclass(name = "DecodePolicy", module = "mm_libtorch_encoder._native", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PyDecodePolicy(DecodePolicy);

fn choose<T>(argument: &str, value: &str, choices: &[(&str, T)]) -> Result<T>
where
    T: Copy,
{
    choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        Error::argument(format!("{argument}={value:?} is unknown: use {}", names.join(" or ")))
    })
}

#[pymethods]
impl PyDecodePolicy {
    #[new]
    #[pyo3(signature = (*, orient = false, alpha = "drop", background = [255, 255, 255], sixteen = "pillow",
        truncated = "refuse", icc = "ignore"))]
    fn new(
        orient: bool,
        alpha: &str,
        background: [u8; 3],
        sixteen: &str,
        truncated: &str,
        icc: &str,
    ) -> Result<Self> {
        let alphas = [
            ("drop", Alpha::Drop),
            ("over", Alpha::Over(background)),
            ("over-rgba", Alpha::OverRgba(background)),
            ("keep", Alpha::Keep),
        ];
        Ok(Self(DecodePolicy {
            orient,
            alpha: choose("alpha", alpha, &alphas)?,
            sixteen: choose("sixteen", sixteen, &[("pillow", Sixteen::Pillow), ("scale", Sixteen::Scale)])?,
            truncated: choose(
                "truncated",
                truncated,
                &[("refuse", Truncated::Refuse), ("fill", Truncated::Fill)],
            )?,
            icc: choose("icc", icc, &[("ignore", Icc::Ignore), ("srgb", Icc::Srgb)])?,
        }))
    }

    /// The policy of that name: "pillow" (the default), "hf", "vllm" or "sglang".
    ///
    /// Raises ValueError for another name.
    #[staticmethod]
    fn preset(name: &str) -> Result<Self> {
        Ok(Self(DecodePolicy::preset(name)?))
    }

    /// A text that is equal for equal policies and stable between releases, for cache keys.
    fn identity(&self) -> String {
        self.0.identity()
    }

    fn __repr__(&self) -> String {
        format!("DecodePolicy({})", self.0.identity())
    }
}

/// A policy as functions take it: none, a preset's name, or a `DecodePolicy`.
pub fn policy(value: Option<&Bound<'_, PyAny>>) -> PyResult<DecodePolicy> {
    let Some(value) = value else { return Ok(DecodePolicy::default()) };
    if let Ok(policy) = value.cast::<PyDecodePolicy>() {
        return Ok(policy.get().0);
    }
    let name: String = value
        .extract()
        .map_err(|_| PyTypeError::new_err("policy must be None, the name of a preset, or a DecodePolicy"))?;
    Ok(DecodePolicy::preset(&name)?)
}

/// The content of a bytes-like object. `bytes` cannot change and are borrowed; anything else is copied, because
/// another thread may write to it while the GIL is released.
pub fn content<'a>(data: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(data)
        .map_err(|_| PyTypeError::new_err("data must be bytes, a bytearray or another buffer of bytes"))?;
    Ok(Cow::Owned(buffer.to_vec(data.py())?))
}

/// The usual limits, with the caller's on pixels.
pub fn limits(max_pixels: Option<u64>) -> Limits {
    let limits = Limits::default();
    Limits { pixels: max_pixels.unwrap_or(limits.pixels), ..limits }
}

/// decode_image(data, policy=None, max_pixels=None)
/// --
///
/// Decode one encoded image.
///
/// Args:
///   data: bytes-like, the encoded file. The format is found from the bytes.
///   policy: None for Pillow's `convert("RGB")`, a preset's name, or a `DecodePolicy`.
///   max_pixels (int): refuse larger images, from the header. Default: 134217728.
///
/// Returns a uint8 array of shape [height, width, 3]; 4 channels where the policy keeps alpha and the image has
/// transparency. The GIL is released while decoding, and the pixels are not copied.
///
/// Raises MediaError if the bytes are damaged, cut short, unsupported or over a limit.
#[pyfunction]
#[pyo3(signature = (data, policy = None, max_pixels = None))]
fn decode_image<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    policy: Option<&Bound<'py, PyAny>>,
    max_pixels: Option<u64>,
) -> PyResult<Bound<'py, PyArray3<u8>>> {
    let policy = self::policy(policy)?;
    let content = content(data)?;
    let bytes = content.as_ref();
    let image = py.detach(|| image::decode(bytes, &policy, &limits(max_pixels)))?;
    let shape = [image.height as usize, image.width as usize, usize::from(image.channels)];
    PyArray1::from_vec(py, image.samples).reshape(shape)
}

/// image_header(data, policy=None, max_pixels=None)
/// --
///
/// Read an image's format and size without decoding pixels.
///
/// Args: as `decode_image`.
///
/// Returns (format, width, height): a lower-case name such as "jpeg", and the size that `decode_image` would
/// give, the policy's orientation included.
///
/// Raises MediaError as `decode_image` does for faults that the header shows.
#[pyfunction]
#[pyo3(signature = (data, policy = None, max_pixels = None))]
fn image_header(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    policy: Option<&Bound<'_, PyAny>>,
    max_pixels: Option<u64>,
) -> PyResult<(&'static str, u32, u32)> {
    let policy = self::policy(policy)?;
    let content = content(data)?;
    let bytes = content.as_ref();
    let header = py.detach(|| image::header(bytes, &policy, &limits(max_pixels)))?;
    Ok((header.format, header.width, header.height))
}

/// Adds the functions of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyDecodePolicy>()?;
    module.add_function(wrap_pyfunction!(decode_image, module)?)?;
    module.add_function(wrap_pyfunction!(image_header, module)?)
}
