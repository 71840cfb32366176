//! The encoder as `encoder.py` drives it.

use std::path::PathBuf;
use std::time::Duration;

use half::vec::HalfBitsVecExt;
use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::processor::options;
use crate::encoder::{self, Encoded, Settings, Ticket, Times};
use crate::family::{Grid, Modality};
use crate::image::DecodePolicy;
use crate::pixels::{PixelValues, Samples};
use crate::torch::Device;
use crate::{Dtype, Result};

/// How often a waiting call looks for Ctrl-C.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The native side of `mm_libtorch_encoder.Encoder`.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct Encoder {
    encoder: encoder::Encoder,
}

/// One item's result; `id` is for `torch.ops.mm_libtorch_encoder.take`.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct Encoding {
    encoded: Encoded,
    modality: Modality,
}

#[pymethods]
impl Encoding {
    #[getter]
    fn id(&self) -> i64 {
        self.encoded.id
    }

    #[getter]
    fn names(&self) -> Vec<&'static str> {
        self.encoded.names.clone()
    }

    #[getter]
    fn mm_hash(&self) -> &str {
        &self.encoded.hash
    }

    #[getter]
    fn embedding_offsets(&self) -> Vec<usize> {
        self.encoded.offsets.clone()
    }

    /// Empty for sound, which has no grid.
    #[getter]
    fn grid_thws(&self) -> Vec<(u32, u32, u32)> {
        if self.modality == Modality::Audio {
            return Vec::new();
        }
        self.encoded.grids.iter().map(|grid| (grid.frames, grid.height, grid.width)).collect()
    }

    /// Milliseconds spent in each stage.
    #[getter]
    fn milliseconds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Times { decode, resize, queue, forward } = self.encoded.times;
        let out = PyDict::new(py);
        for (stage, time) in [("decode", decode), ("resize", resize), ("queue", queue), ("forward", forward)]
        {
            out.set_item(stage, time.as_secs_f64() * 1e3)?;
        }
        Ok(out)
    }
}

#[pymethods]
impl Encoder {
    #[new]
    #[pyo3(signature = (
        checkpoint, model, device, family=None, *, dtype=None, backend=None, deepstack=None, decode_policy=None,
        attention=None, rescale=None, progress=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        checkpoint: PathBuf,
        model: String,
        device: &str,
        family: Option<String>,
        dtype: Option<&str>,
        backend: Option<&str>,
        deepstack: Option<&str>,
        decode_policy: Option<&str>,
        attention: Option<&str>,
        rescale: Option<f64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let settings = Settings {
            checkpoint,
            model,
            device: Device::parse(device)?,
            family,
            dtype: dtype.map(Dtype::parse).transpose()?,
            options: options(backend, deepstack, attention, rescale)?,
            policy: decode_policy.map(DecodePolicy::preset).transpose()?,
        };
        let report = |done: u64, total: u64| {
            if let Some(progress) = &progress {
                // A display must not break loading: its errors are dropped.
                Python::attach(|py| drop(progress.call1(py, (done, total))));
            }
        };
        let encoder = py.detach(|| encoder::Encoder::open(settings, &report))?;
        Ok(Self { encoder })
    }

    #[getter]
    fn family(&self) -> &'static str {
        self.encoder.preprocessor().family().name()
    }

    /// What the family reads: "image" or "audio".
    #[getter]
    fn modality(&self) -> &'static str {
        self.kind().name()
    }

    #[getter]
    fn device(&self) -> String {
        self.encoder.device().to_string()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.encoder.dtype().name()
    }

    /// Encodes every item; each place of the list holds an Encoding or the exception of that item alone.
    ///
    /// While the tower runs one item, this thread prepares the next ones.
    fn generate(
        &self,
        py: Python<'_>,
        items: Vec<Bound<'_, PyBytes>>,
        expected: Option<Vec<usize>>,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let sources: Vec<&[u8]> = items.iter().map(|item| item.as_bytes()).collect();
        let expected = |index: usize| expected.as_ref().and_then(|counts| counts.get(index)).copied();
        let mut tickets = Vec::with_capacity(sources.len());
        for (index, source) in sources.into_iter().enumerate() {
            py.check_signals()?;
            let expected = expected(index);
            tickets.push(py.detach(|| self.encoder.submit(source, expected)));
        }
        tickets.into_iter().map(|ticket| self.answer(py, ticket)).collect()
    }

    /// Encodes a patch matrix that the caller prepared; bfloat16 and float16 come as uint16 bits.
    fn encode_pixels(
        &self,
        py: Python<'_>,
        pixels: Bound<'_, PyAny>,
        grid_thws: Vec<(u32, u32, u32)>,
    ) -> PyResult<Py<PyAny>> {
        let pixels = pixel_values(&pixels, self.encoder.dtype())?;
        let grids =
            grid_thws.into_iter().map(|(frames, height, width)| Grid { frames, height, width }).collect();
        let ticket = py.detach(|| self.encoder.submit_pixels(pixels, grids));
        self.answer(py, ticket)
    }

    /// Lets accepted requests finish and frees the weights. A second call is a no-op.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.encoder.close())?)
    }
}

impl Encoder {
    fn kind(&self) -> Modality {
        self.encoder.preprocessor().family().input().modality()
    }

    /// Waits for `ticket` off the GIL, looking for signals now and then.
    fn answer(&self, py: Python<'_>, ticket: Result<Ticket>) -> PyResult<Py<PyAny>> {
        let outcome = match ticket {
            Err(error) => Err(error),
            Ok(ticket) => loop {
                if let Some(outcome) = py.detach(|| ticket.wait(SIGNAL_CHECK)) {
                    break outcome;
                }
                py.check_signals()?;
            },
        };
        match outcome {
            Ok(encoded) => Ok(Py::new(py, Encoding { encoded, modality: self.kind() })?.into_any()),
            Err(error) => Ok(PyErr::from(error).into_value(py).into_any()),
        }
    }
}

fn pixel_values(array: &Bound<'_, PyAny>, dtype: Dtype) -> PyResult<PixelValues> {
    let wrong = || {
        PyValueError::new_err(
            "pixel_values must be a two-dimensional C-contiguous array of the tower's dtype",
        )
    };
    if dtype == Dtype::F32 {
        let array: PyReadonlyArray2<'_, f32> = array.extract().map_err(|_| wrong())?;
        let shape = array.shape();
        let samples = Samples::F32(array.as_slice().map_err(|_| wrong())?.to_vec());
        return Ok(PixelValues { rows: shape[0], columns: shape[1], samples });
    }
    let array: PyReadonlyArray2<'_, u16> = array.extract().map_err(|_| wrong())?;
    let shape = array.shape();
    let bits = array.as_slice().map_err(|_| wrong())?.to_vec();
    let samples = match dtype {
        Dtype::Bf16 => Samples::Bf16(bits.reinterpret_into()),
        _ => Samples::F16(bits.reinterpret_into()),
    };
    Ok(PixelValues { rows: shape[0], columns: shape[1], samples })
}

/// Adds the classes of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Encoder>()?;
    module.add_class::<Encoding>()
}
