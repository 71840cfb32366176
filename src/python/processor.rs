//! A family's preprocessing on its own: bytes to pixel values, sizes to grids. Needs no Torch.

use std::collections::HashMap;
use std::path::PathBuf;

use half::vec::HalfFloatVecExt;
use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::pixels::CanvasTuple;
use crate::audio;
use crate::family::{self, Attention, Backend, Deepstack, Grid, Options};
use crate::image::{self, DecodePolicy};
use crate::pixels::{Canvas, PixelValues, Samples};
use crate::prepare::{Extent, Preprocessor};
use crate::{Dtype, Error};

/// (frames, rows, columns) of a patch grid.
type GridThw = (u32, u32, u32);
/// ((width, height), canvas, grid, tokens) of one image.
type Outline = ((u32, u32), CanvasTuple, GridThw, usize);
/// (side, lines, tokens of a line, first row, rows from line to line) of a raster of tokens.
type TokenPlaces = (u32, usize, usize, usize, usize);

/// The preprocessing of one checkpoint's family.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct Processor {
    preprocessor: Preprocessor,
}

/// The options by their Python names.
pub fn options(
    backend: Option<&str>,
    deepstack: Option<&str>,
    attention: Option<&str>,
    rescale: Option<f64>,
) -> crate::Result<Options> {
    Ok(Options {
        backend: backend.map(Backend::parse).transpose()?,
        deepstack: deepstack.map(Deepstack::parse).transpose()?,
        attention: attention.map(Attention::parse).transpose()?,
        rescale,
    })
}

fn thw(grid: Grid) -> GridThw {
    (grid.frames, grid.height, grid.width)
}

#[pymethods]
impl Processor {
    #[new]
    #[pyo3(signature = (checkpoint, model="", family=None, *, backend=None, decode_policy=None, rescale=None))]
    fn new(
        checkpoint: PathBuf,
        model: &str,
        family: Option<&str>,
        backend: Option<&str>,
        decode_policy: Option<&str>,
        rescale: Option<f64>,
    ) -> PyResult<Self> {
        let policy = decode_policy.map(DecodePolicy::preset).transpose()?;
        let options = options(backend, None, None, rescale)?;
        let (preprocessor, _) = Preprocessor::open(&checkpoint, model, family, options)?;
        Ok(Self {
            preprocessor: match policy {
                Some(policy) => preprocessor.with_policy(policy)?,
                None => preprocessor,
            },
        })
    }

    /// Name of the family.
    #[getter]
    fn family(&self) -> &'static str {
        self.preprocessor.family().name()
    }

    /// What the family reads: "image" or "audio".
    #[getter]
    fn modality(&self) -> &'static str {
        self.preprocessor.family().input().modality().name()
    }

    /// ((frames, rows, columns) in patches, tokens) of an image of `width` x `height` pixels.
    fn plan(&self, width: u32, height: u32) -> PyResult<(GridThw, usize)> {
        if width == 0 || height == 0 {
            return Err(Error::argument(format!("an image of {width}x{height} pixels is empty")).into());
        }
        let plan = self.preprocessor.image_processor()?.plan(width, height)?;
        Ok((thw(plan.grid), plan.tokens))
    }

    /// Tokens of a sound of `samples` at `rate` hertz.
    fn plan_sound(&self, samples: u64, rate: u32) -> PyResult<usize> {
        let processor = self.preprocessor.audio_processor()?;
        if rate == 0 || rate > audio::MAX_RATE {
            return Err(
                Error::argument(format!("a rate is from 1 to {} Hz, not {rate}", audio::MAX_RATE)).into()
            );
        }
        let most = audio::MAX_SECONDS * u64::from(rate);
        let grid = processor.plan(match samples > most {
            // Refused with a number that cannot overflow.
            true => u64::MAX,
            false => audio::resampled_length(samples, rate, processor.sample_rate()),
        })?;
        Ok(self.preprocessor.family().tokens(grid)?)
    }

    /// Grid and tokens of encoded bytes, read from their header alone; a sound has (tokens, 1, 1).
    fn plan_bytes(&self, data: &Bound<'_, PyBytes>) -> PyResult<(GridThw, usize)> {
        let Extent { grid, tokens } = self.preprocessor.plan(data.as_bytes())?;
        Ok((thw(grid), tokens))
    }

    /// ((width, height), (canvas height, width, content height, width, top, left), (frames, rows, columns), tokens)
    /// of encoded bytes, read from their header alone. The size is that after orientation.
    fn outline(&self, data: &Bound<'_, PyBytes>) -> PyResult<Outline> {
        let processor = self.preprocessor.image_processor()?;
        let (policy, limits) = (self.preprocessor.policy(processor), self.preprocessor.limits());
        let header = image::header(data.as_bytes(), &policy, limits)?;
        let plan = processor.plan(header.width, header.height)?;
        let Canvas { height, width, content_height, content_width, top, left } = plan.canvas;
        Ok((
            (header.width, header.height),
            (height, width, content_height, content_width, top, left),
            thw(plan.grid),
            plan.tokens,
        ))
    }

    /// (patches of a token's side, lines, tokens of a line, first row, rows from line to line) of the embeddings of
    /// a grid; None where they are no raster.
    fn token_grid(&self, grid: GridThw) -> PyResult<Option<TokenPlaces>> {
        let (frames, height, width) = grid;
        let found = self.preprocessor.family().token_grid(Grid { frames, height, width })?;
        Ok(found.map(|tokens| (tokens.side, tokens.rows, tokens.columns, tokens.first, tokens.stride)))
    }

    /// uint8 [height, width, 3] of encoded bytes, decoded by the family's policy.
    fn decode<'py>(&self, py: Python<'py>, data: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyArray3<u8>>> {
        let policy = self.preprocessor.policy(self.preprocessor.image_processor()?);
        let (bytes, limits) = (data.as_bytes(), self.preprocessor.limits());
        let image = py.detach(|| image::decode(bytes, &policy, limits))?;
        // A family that composites for itself decodes into other modes.
        let image = if image.channels == 3 { image } else { image.to_rgb() };
        let shape = [image.height as usize, image.width as usize, usize::from(image.channels)];
        PyArray1::from_vec(py, image.samples).reshape(shape)
    }

    /// (pixel values [patches, columns], (frames, rows, columns)) of encoded bytes.
    ///
    /// float32 comes as float32; bfloat16 and float16 as uint16 with the element's bits.
    #[pyo3(signature = (data, dtype="float32"))]
    fn pixel_values<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        dtype: &str,
    ) -> PyResult<(Bound<'py, PyAny>, GridThw)> {
        let (bytes, dtype) = (data.as_bytes(), Dtype::parse(dtype)?);
        let (extent, prepared) = py.detach(|| -> crate::Result<_> {
            Ok((self.preprocessor.plan(bytes)?, self.preprocessor.prepare(bytes, dtype)?))
        })?;
        Ok((to_numpy(py, prepared.pixels)?, thw(extent.grid)))
    }
}

/// Hands the matrix over without a copy.
fn to_numpy(py: Python<'_>, pixels: PixelValues) -> PyResult<Bound<'_, PyAny>> {
    let shape = [pixels.rows, pixels.columns];
    Ok(match pixels.samples {
        Samples::F32(samples) => PyArray1::from_vec(py, samples).reshape(shape)?.into_any(),
        Samples::Bf16(samples) => bits(py, samples.reinterpret_into(), shape)?.into_any(),
        Samples::F16(samples) => bits(py, samples.reinterpret_into(), shape)?.into_any(),
    })
}

fn bits(py: Python<'_>, bits: Vec<u16>, shape: [usize; 2]) -> PyResult<Bound<'_, PyArray2<u16>>> {
    PyArray1::from_vec(py, bits).reshape(shape)
}

/// (name, model_type values, architectures, modality) of the families of this build.
#[pyfunction]
fn families() -> Vec<(&'static str, Vec<&'static str>, Vec<&'static str>, &'static str)> {
    let row = |entry: &&family::Entry| {
        (entry.name, entry.model_types.to_vec(), entry.architectures.to_vec(), entry.modality.name())
    };
    family::REGISTRY.iter().map(row).collect()
}

/// Writes a small checkpoint with seeded random weights in the published layout of `family` into a new folder.
///
/// `files`: texts by name that replace the demonstration's own configuration files, for towers of another size.
#[pyfunction]
#[pyo3(signature = (family, directory, seed=0, files=None))]
fn make_checkpoint(
    py: Python<'_>,
    family: &str,
    directory: PathBuf,
    seed: u64,
    files: Option<HashMap<String, String>>,
) -> PyResult<()> {
    let files: Vec<_> = files.unwrap_or_default().into_iter().collect();
    Ok(py.detach(|| family::make_checkpoint(family, &directory, seed, &files))?)
}

/// Adds the items of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Processor>()?;
    module.add_function(wrap_pyfunction!(families, module)?)?;
    module.add_function(wrap_pyfunction!(make_checkpoint, module)?)
}
