//! Bindings of `crate::pixels` on NumPy arrays.

use half::vec::HalfFloatVecExt;
use numpy::{
    PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyReadonlyArrayDyn, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;

use super::pool;
use crate::image;
use crate::pixels::{
    self, Arithmetic, Canvas, Execution, Filter, Level, Normalize, PatchLayout, PatchOrder, PixelValues,
    Recipe, SampleOrder, Samples, SmartRule, View, prepare_view, resize_view, resize_view_f32,
};
use crate::{Dtype, Error, Result};

/// Most images of one batch call.
const MAX_BATCH: usize = 4096;

type Pixels<'py> = PyReadonlyArrayDyn<'py, u8>;
/// (height, width, content height, content width, top, left)
pub type CanvasTuple = (u32, u32, u32, u32, u32, u32);

fn view<'a>(array: &'a Pixels<'_>) -> Result<View<'a>> {
    let side = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let (height, width, channels) = match *array.shape() {
        [height, width] => (height, width, 1),
        [height, width, channels] => (height, width, channels),
        _ => {
            return Err(Error::argument(format!(
                "an image array has the shape [height, width] or [height, width, channels], not {} axes",
                array.shape().len()
            )));
        }
    };
    // A slice is given for Fortran's order too.
    let samples = array.as_slice().ok().filter(|_| array.is_c_contiguous());
    let samples = samples.ok_or_else(|| Error::argument("an image array must be C-contiguous"))?;
    View::new(samples, side(width), side(height), u8::try_from(channels).unwrap_or(u8::MAX))
}

fn execution(level: Option<&str>, bands: usize) -> Result<Execution> {
    let execution = Execution::default().with_bands(bands);
    Ok(level.map(Level::parse).transpose()?.map_or(execution, |level| execution.with_level(level)))
}

/// Runs `job` on the pool if it can use more than one thread, else here.
fn on_pool<T: Send>(parallel: bool, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if parallel { pool::pool()?.install(job) } else { job() }
}

enum Resized {
    Levels(Vec<u8>),
    Values(Vec<f32>),
}

fn resized(
    view: &View,
    size: (u32, u32),
    filter: Filter,
    arithmetic: Arithmetic,
    how: Execution,
) -> Result<Resized> {
    let (width, height) = size;
    Ok(match arithmetic {
        Arithmetic::AtenF32 => Resized::Values(resize_view_f32(view, width, height, filter, how)?),
        _ => Resized::Levels(resize_view(view, width, height, filter, arithmetic, how)?),
    })
}

impl Resized {
    fn into_array<'py>(
        self,
        py: Python<'py>,
        source: &Pixels<'py>,
        size: (u32, u32),
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut shape = source.shape().to_vec();
        (shape[0], shape[1]) = (size.1 as usize, size.0 as usize);
        Ok(match self {
            Self::Levels(samples) => PyArray1::from_vec(py, samples).reshape(shape)?.into_any(),
            Self::Values(samples) => PyArray1::from_vec(py, samples).reshape(shape)?.into_any(),
        })
    }
}

/// Resizes a uint8 array [height, width] or [height, width, channels]; see `preprocess.resize`.
#[pyfunction]
#[pyo3(signature = (image, width, height, filter="bicubic", arithmetic="pillow", *, bands=1, level=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of a Python function")]
fn resize<'py>(
    py: Python<'py>,
    image: Pixels<'py>,
    width: u32,
    height: u32,
    filter: &str,
    arithmetic: &str,
    bands: usize,
    level: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let (filter, arithmetic) = (Filter::parse(filter)?, Arithmetic::parse(arithmetic)?);
    let (source, how) = (view(&image)?, execution(level, bands)?);
    let out =
        py.detach(|| on_pool(bands > 1, || resized(&source, (width, height), filter, arithmetic, how)))?;
    out.into_array(py, &image, (width, height))
}

/// Resizes images on the pool, each to its (width, height); see `preprocess.resize_batch`.
#[pyfunction]
#[pyo3(signature = (images, sizes, filter="bicubic", arithmetic="pillow"))]
fn resize_batch<'py>(
    py: Python<'py>,
    images: Vec<Pixels<'py>>,
    sizes: Vec<(u32, u32)>,
    filter: &str,
    arithmetic: &str,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let (filter, arithmetic) = (Filter::parse(filter)?, Arithmetic::parse(arithmetic)?);
    let jobs = batch(&images, &sizes)?;
    let outs = py.detach(|| {
        on_pool(true, || {
            each(&jobs, |(view, size)| resized(view, **size, filter, arithmetic, Execution::default()))
        })
    })?;
    outs.into_iter()
        .zip(images.iter().zip(sizes))
        .map(|(out, (image, size))| out.into_array(py, image, size))
        .collect()
}

/// Decodes files on the pool; see `preprocess.decode_batch`.
#[pyfunction]
#[pyo3(signature = (datas, policy=None, max_pixels=None))]
fn decode_batch<'py>(
    py: Python<'py>,
    datas: Vec<Bound<'py, PyBytes>>,
    policy: Option<&Bound<'py, PyAny>>,
    max_pixels: Option<u64>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let policy = super::image::policy(policy)?;
    let limits = super::image::limits(max_pixels);
    check_batch(datas.len())?;
    let datas: Vec<&[u8]> = datas.iter().map(|data| data.as_bytes()).collect();
    let images =
        py.detach(|| on_pool(true, || each(&datas, |data| image::decode(data, &policy, &limits))))?;
    let array = |image: image::Image| {
        let shape = [image.height as usize, image.width as usize, usize::from(image.channels)];
        Ok(PyArray1::from_vec(py, image.samples).reshape(shape)?.into_any())
    };
    images.into_iter().map(array).collect()
}

fn check_batch(images: usize) -> Result<()> {
    if images > MAX_BATCH {
        return Err(Error::argument(format!("a batch of {images} images: at most {MAX_BATCH} are allowed")));
    }
    Ok(())
}

fn batch<'a, P>(images: &'a [Pixels<'_>], parameters: &'a [P]) -> Result<Vec<(View<'a>, &'a P)>> {
    check_batch(images.len())?;
    if images.len() != parameters.len() {
        return Err(Error::argument(format!(
            "{} images with {} sizes: a batch has one size an image",
            images.len(),
            parameters.len()
        )));
    }
    let item = |(i, image)| view(image).map_err(|error| error.at(format!("image {i}")));
    images
        .iter()
        .enumerate()
        .map(item)
        .zip(parameters)
        .map(|(view, parameter)| Ok((view?, parameter)))
        .collect()
}

/// Runs all items on the current pool. The first fault in their order names its item.
fn each<J: Sync, T: Send>(jobs: &[J], run: impl Fn(&J) -> Result<T> + Sync + Send) -> Result<Vec<T>> {
    let results: Vec<Result<T>> = jobs.par_iter().with_max_len(1).map(run).collect();
    let named = |(i, result): (usize, Result<T>)| result.map_err(|error| error.at(format!("image {i}")));
    results.into_iter().enumerate().map(named).collect()
}

/// Tables from 8-bit levels to a tower's values; see `preprocess.Normalization`.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct Normalization(Normalize);

#[pymethods]
impl Normalization {
    /// From a float32 table [3, 256] and three values for padded samples.
    #[staticmethod]
    fn from_table(table: PyReadonlyArray2<'_, f32>, fill: [f32; 3]) -> PyResult<Self> {
        let values = table.as_slice().ok().and_then(|values| values.as_chunks::<256>().0.first_chunk::<3>());
        match values {
            Some(values) if table.shape() == [3, 256] && table.is_c_contiguous() => {
                let lookup = |channel: usize, level: u8| values[channel][usize::from(level)];
                Ok(Self(Normalize::from_fn(lookup).with_fill(fill)))
            }
            _ => Err(Error::argument("a normalisation table is C-contiguous with the shape [3, 256]").into()),
        }
    }

    /// By the name of an arithmetic: "pil", "torchvision", "divided", "multiplied" or "double".
    #[staticmethod]
    fn named(arithmetic: &str, rescale_factor: f64, mean: [f64; 3], std: [f64; 3]) -> PyResult<Self> {
        if std.contains(&0.0) || rescale_factor == 0.0 {
            return Err(Error::argument("std and the rescale factor must not be 0").into());
        }
        Ok(Self(match arithmetic {
            "pil" => Normalize::pil(rescale_factor, mean, std),
            "torchvision" => Normalize::torchvision(rescale_factor, mean, std),
            "divided" => Normalize::divided(mean, std),
            "multiplied" => Normalize::multiplied(mean, std),
            "double" => Normalize::double(mean, std),
            other => {
                return Err(Error::argument(format!(
                    "normalisation {other:?} is not known: use pil, torchvision, divided, multiplied or double"
                ))
                .into());
            }
        }))
    }

    /// The same with padded samples of `level`.
    fn with_fill_level(&self, level: u8) -> Self {
        Self(self.0.clone().with_fill_level(level))
    }

    /// The same with padded samples of these values.
    fn with_fill(&self, fill: [f32; 3]) -> Self {
        Self(self.0.clone().with_fill(fill))
    }

    /// float32 [3, 256].
    fn table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        PyArray1::from_slice(py, self.0.table.as_flattened()).reshape([3, 256])
    }
}

/// All of a recipe but the canvas; see `preprocess.Recipe`.
#[pyclass(frozen, module = "mm_libtorch_encoder._native")]
struct PixelRecipe(Recipe);

#[pymethods]
impl PixelRecipe {
    #[new]
    #[pyo3(signature = (
        normalization, patch, *, frames=1, merge=1, samples="channel-frame", dtype="float32", filter="bicubic",
        arithmetic="pillow"
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python class")]
    fn new(
        normalization: &Normalization,
        patch: u32,
        frames: u32,
        merge: u32,
        samples: &str,
        dtype: &str,
        filter: &str,
        arithmetic: &str,
    ) -> PyResult<Self> {
        let order = if merge == 1 { PatchOrder::Raster } else { PatchOrder::Blocks(merge) };
        let layout = PatchLayout { patch, frames, order, samples: SampleOrder::parse(samples)? };
        layout.check()?;
        Ok(Self(Recipe {
            canvas: Canvas::EMPTY,
            filter: Filter::parse(filter)?,
            arithmetic: Arithmetic::parse(arithmetic)?,
            normalize: normalization.0.clone(),
            layout,
            dtype: Dtype::parse(dtype)?,
        }))
    }
}

impl PixelRecipe {
    fn at(&self, &(height, width, content_height, content_width, top, left): &CanvasTuple) -> Recipe {
        Recipe {
            canvas: Canvas { height, width, content_height, content_width, top, left },
            ..self.0.clone()
        }
    }
}

fn matrix(py: Python<'_>, values: PixelValues) -> PyResult<Bound<'_, PyAny>> {
    let shape = [values.rows, values.columns];
    Ok(match values.samples {
        Samples::F32(samples) => PyArray1::from_vec(py, samples).reshape(shape)?.into_any(),
        Samples::Bf16(samples) => {
            PyArray1::from_vec(py, samples.reinterpret_into()).reshape(shape)?.into_any()
        }
        Samples::F16(samples) => {
            let bits = PyArray1::from_vec(py, samples.reinterpret_into()).reshape(shape)?;
            bits.call_method1("view", ("float16",))?
        }
    })
}

/// Resizes, pads, normalises and lays out patches of one RGB image; see `preprocess.prepare`.
#[pyfunction]
#[pyo3(signature = (image, recipe, canvas, *, bands=1, level=None))]
fn prepare<'py>(
    py: Python<'py>,
    image: Pixels<'py>,
    recipe: &PixelRecipe,
    canvas: CanvasTuple,
    bands: usize,
    level: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let (view, how, recipe) = (view(&image)?, execution(level, bands)?, recipe.at(&canvas));
    matrix(py, py.detach(|| on_pool(bands > 1, || prepare_view(&view, &recipe, how)))?)
}

/// `prepare` of several images on the pool, each with its canvas; see `preprocess.prepare_batch`.
#[pyfunction]
fn prepare_batch<'py>(
    py: Python<'py>,
    images: Vec<Pixels<'py>>,
    recipe: &PixelRecipe,
    canvases: Vec<CanvasTuple>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let jobs = batch(&images, &canvases)?;
    let outs = py.detach(|| {
        on_pool(true, || {
            each(&jobs, |(view, canvas)| prepare_view(view, &recipe.at(canvas), Execution::default()))
        })
    })?;
    outs.into_iter().map(|values| matrix(py, values)).collect()
}

/// Qwen-VL's target size (height, width); see `preprocess.smart_resize`.
#[pyfunction]
fn smart_resize(
    height: u32,
    width: u32,
    factor: u32,
    min_pixels: u64,
    max_pixels: u64,
    at_least_one: bool,
) -> PyResult<(u32, u32)> {
    let rule = if at_least_one { SmartRule::AtLeastOne } else { SmartRule::Transformers };
    Ok(pixels::smart_resize(height, width, factor, min_pixels, max_pixels, rule)?)
}

/// The (width, height) after scaling; see `preprocess.scaled_dimensions`.
#[pyfunction]
#[pyo3(signature = (width, height, factor=None, cap=None))]
fn scaled_dimensions(width: u32, height: u32, factor: Option<f64>, cap: Option<u32>) -> PyResult<(u32, u32)> {
    Ok(pixels::scaled_dimensions(width, height, factor, cap)?)
}

/// Threads on which bands and batches run.
#[pyfunction]
fn threads() -> usize {
    pool::threads()
}

/// Sets the number of threads on which bands and batches run.
#[pyfunction]
fn set_threads(threads: usize) -> PyResult<()> {
    Ok(pool::set_threads(threads)?)
}

/// Names of the instruction levels this machine can run, narrowest first.
#[pyfunction]
fn instruction_levels() -> Vec<&'static str> {
    Level::available().map(Level::name).collect()
}

/// Adds the functions and classes of this file.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Normalization>()?;
    module.add_class::<PixelRecipe>()?;
    module.add_function(wrap_pyfunction!(resize, module)?)?;
    module.add_function(wrap_pyfunction!(resize_batch, module)?)?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(prepare_batch, module)?)?;
    module.add_function(wrap_pyfunction!(decode_batch, module)?)?;
    module.add_function(wrap_pyfunction!(smart_resize, module)?)?;
    module.add_function(wrap_pyfunction!(scaled_dimensions, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(instruction_levels, module)?)
}
