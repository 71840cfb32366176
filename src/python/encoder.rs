//! The encoder as `encoder.py` drives it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use half::vec::HalfBitsVecExt;
use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use super::mailbox::Mailbox;
use super::processor::options;
use super::requests::{self, Requests, SIGNAL_CHECK};
use crate::encoder::{self, Histogram, Lengths, Load, Request, Settings, Ticket};
use crate::family::Grid;
use crate::image::DecodePolicy;
use crate::pixels::{PixelValues, Samples};
use crate::torch::Device;
use crate::{Dtype, Error};

/// Sources of up to this many bytes are hashed and queued without letting go of the GIL: getting it back from another
/// thread takes longer than a look-up in the cache.
const ATTACHED_BYTES: usize = 32 << 10;

/// The native side of `mm_libtorch_encoder.Encoder`.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct Encoder {
    encoder: encoder::Encoder,
    /// Calls that are in native code and may let go of the GIL.
    calls: AtomicUsize,
}

/// One call in native code.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Encoder {
    /// Counts a call until the guard is dropped.
    fn call(&self) -> Call<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Call(&self.calls)
    }

    fn submit_all(
        &self,
        py: Python<'_>,
        items: Vec<PyBackedBytes>,
        expected: Option<Vec<usize>>,
    ) -> Vec<Ticket> {
        let small = items.iter().map(|item| item.len()).sum::<usize>() <= ATTACHED_BYTES;
        let submit = || {
            let request = |(index, source): (usize, PyBackedBytes)| Request {
                source: Arc::new(source),
                expected: expected.as_ref().and_then(|counts| counts.get(index)).copied(),
            };
            items.into_iter().enumerate().map(request).map(|request| self.encoder.submit(request)).collect()
        };
        // Where all are refused anyway, a thread that goes on calling while the interpreter ends keeps the GIL.
        if small || self.encoder.check_open().is_err() { submit() } else { py.detach(submit) }
    }
}

#[pymethods]
impl Encoder {
    #[new]
    #[pyo3(signature = (
        checkpoint, model, device, family=None, *, dtype=None, backend=None, deepstack=None, decode_policy=None,
        attention=None, rescale=None, stream_priority=None, replicas_per_gpu=None, queue_depth=None,
        queue_tokens=None, queue_bytes=None, max_batch_images=None, max_batch_tokens=None, cache=None, runtime="",
        graphs=None, progress=None
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
        stream_priority: Option<i32>,
        replicas_per_gpu: Option<usize>,
        queue_depth: Option<usize>,
        queue_tokens: Option<usize>,
        queue_bytes: Option<usize>,
        max_batch_images: Option<usize>,
        max_batch_tokens: Option<usize>,
        cache: Option<super::cache::Fields<'_>>,
        runtime: &str,
        graphs: Option<(super::graphs::Fields<'_>, Py<PyAny>)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let usual = Load::default();
        let load = Load {
            replicas: replicas_per_gpu.unwrap_or(usual.replicas),
            queue_depth: queue_depth.unwrap_or(usual.queue_depth),
            queue_tokens: queue_tokens.unwrap_or(usual.queue_tokens),
            queue_bytes: queue_bytes.unwrap_or(usual.queue_bytes),
            batch_images: max_batch_images.unwrap_or(usual.batch_images),
            batch_tokens: max_batch_tokens.unwrap_or(usual.batch_tokens),
        };
        let settings = Settings {
            checkpoint,
            model,
            device: Device::parse(device)?,
            family,
            dtype: dtype.map(Dtype::parse).transpose()?,
            options: options(backend, deepstack, attention, rescale)?,
            policy: decode_policy.map(DecodePolicy::preset).transpose()?,
            stream_priority: stream_priority.unwrap_or(0),
            load,
            cache: cache.map(super::cache::config).transpose()?,
            runtime: runtime.to_owned(),
            graphs: graphs.map(|(fields, pool)| super::graphs::settings(fields, pool)).transpose()?,
        };
        let report = |done: u64, total: u64| {
            if let Some(progress) = &progress {
                // A display must not break loading: its errors are dropped.
                Python::attach(|py| drop(progress.call1(py, (done, total))));
            }
        };
        let encoder = py.detach(|| encoder::Encoder::open(settings, &report))?;
        Ok(Self { encoder, calls: AtomicUsize::new(0) })
    }

    #[getter]
    fn family(&self) -> &'static str {
        self.encoder.preprocessor().family().name()
    }

    /// What the family reads: "image" or "audio".
    #[getter]
    fn modality(&self) -> &'static str {
        self.encoder.preprocessor().family().input().modality().name()
    }

    #[getter]
    fn device(&self) -> String {
        self.encoder.device().to_string()
    }

    #[getter]
    fn stream_priority(&self) -> i32 {
        self.encoder.stream_priority()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.encoder.dtype().name()
    }

    /// Counts of the cache by name.
    fn cache_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        super::cache::counts(py, self.encoder.cache_stats()?)
    }

    #[getter]
    fn replicas(&self) -> usize {
        self.encoder.load().replicas
    }

    /// Calls that are in native code now.
    #[getter]
    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Encodes every item; each place of the list holds an Encoding or the exception of that item alone.
    ///
    /// An item that finds no room in the queue for `timeout` seconds fails with QueueFull; None: it waits.
    #[pyo3(signature = (items, expected, timeout=None))]
    fn generate(
        &self,
        py: Python<'_>,
        items: Vec<PyBackedBytes>,
        expected: Option<Vec<usize>>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Py<PyAny>>> {
        let (_call, end) = (self.call(), end(timeout)?);
        let tickets = self.submit_all(py, items, expected);
        requests::wait(py, tickets, end)
    }

    /// Queues every item and returns at once; `mailbox` receives `token` when all are answered.
    fn submit(
        &self,
        py: Python<'_>,
        items: Vec<PyBackedBytes>,
        expected: Option<Vec<usize>>,
        mailbox: &Mailbox,
        token: u64,
    ) -> Requests {
        let _call = self.call();
        Requests::new(self.submit_all(py, items, expected), mailbox.sender(token))
    }

    /// Encodes a patch matrix that the caller prepared; bfloat16 and float16 come as uint16 bits.
    #[pyo3(signature = (pixels, grid_thws, timeout=None))]
    fn encode_pixels(
        &self,
        py: Python<'_>,
        pixels: Bound<'_, PyAny>,
        grid_thws: Vec<(u32, u32, u32)>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (_call, end) = (self.call(), end(timeout)?);
        let pixels = pixel_values(&pixels, self.encoder.dtype())?;
        let grids =
            grid_thws.into_iter().map(|(frames, height, width)| Grid { frames, height, width }).collect();
        let ticket = py.detach(|| self.encoder.submit_pixels(pixels, grids));
        let mut outcomes = requests::wait(py, vec![ticket], end)?;
        outcomes.pop().ok_or_else(|| Error::internal("no outcome came back").into())
    }

    /// Runs a blank image of each (width, height) on every replica.
    fn warmup(&self, py: Python<'_>, sizes: Vec<(u32, u32)>) -> PyResult<()> {
        let _call = self.call();
        let mut raised = None;
        let done = py.detach(|| {
            self.encoder.warm_up(&sizes, SIGNAL_CHECK, || {
                Python::attach(|py| py.check_signals()).map_err(|error| {
                    raised = Some(error);
                    Error::internal("interrupted")
                })
            })
        });
        match raised {
            Some(error) => Err(error),
            None => Ok(done?),
        }
    }

    /// Counts and lengths by name, and under "stages" (seconds in all, items in each bucket) of each stage.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.encoder.stats())?;
        let Lengths { outside, queued, preparing, running, tokens, bytes } = stats.now;
        let out = PyDict::new(py);
        for (name, value) in [
            ("waiting_for_room", outside as u64),
            ("queued", queued as u64),
            ("preparing", preparing as u64),
            ("running", running as u64),
            ("queued_tokens", tokens as u64),
            ("queued_bytes", bytes as u64),
            ("completed", stats.completed),
            ("failed", stats.failed),
            ("refused", stats.refused),
            ("abandoned", stats.abandoned),
            ("forwards", stats.forwards),
            ("graph_captures", stats.graph_captures),
            ("graph_replays", stats.graph_replays),
            ("graph_failures", stats.graph_failures),
            ("graph_drops", stats.graph_drops),
            ("graph_bytes", stats.graph_bytes),
        ] {
            out.set_item(name, value)?;
        }
        out.set_item("graph_failure", stats.graph_failure)?;
        let stages = PyDict::new(py);
        for (name, histogram) in stats.stages {
            stages.set_item(name, (histogram.total.as_secs_f64(), histogram.buckets))?;
        }
        out.set_item("stages", stages)?;
        Ok(out)
    }

    /// Upper bounds of the buckets of `stats`, in seconds; the last bucket has none.
    #[staticmethod]
    fn bucket_bounds() -> Vec<f64> {
        Histogram::bounds().map(|bound| bound.as_secs_f64()).collect()
    }

    /// Finishes what the queue let in and frees the weights. A second call is a no-op.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.encoder.close())?)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // The threads are joined off the GIL, so that others go on meanwhile. At the interpreter's end there is none.
        let _ = Python::try_attach(|py| py.detach(|| self.encoder.close()));
    }
}

/// The moment `timeout` seconds from now.
fn end(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let end = Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time));
    let wrong = || PyValueError::new_err(format!("a timeout of {seconds} seconds does not exist"));
    end.map(Some).ok_or_else(wrong)
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
    module.add_class::<Encoder>()
}
