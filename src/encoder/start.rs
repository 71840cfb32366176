//! Opening an encoder: checkpoint, weights, worker.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::{Encoder, worker};
use crate::checkpoint::{Checkpoint, Selection};
use crate::family::{Loader, Options, WeightNames};
use crate::image::DecodePolicy;
use crate::prepare::Preprocessor;
use crate::torch::{self, Device};
use crate::{Dtype, Error, Result};

/// Items that wait for the tower at most; each holds its patch matrix.
const QUEUE_DEPTH: usize = 8;

/// How to open an encoder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The checkpoint folder.
    pub checkpoint: PathBuf,
    /// The model's name, carried by results.
    pub model: String,
    /// Where the tower runs.
    pub device: Device,
    /// The family; none: as config.json shows.
    pub family: Option<String>,
    /// The dtype of execution; none: the checkpoint's own.
    pub dtype: Option<Dtype>,
    /// Choices for the family.
    pub options: Options,
    /// What the decoder does where engines disagree; none: the family's reference.
    pub policy: Option<DecodePolicy>,
}

/// Called with bytes read and bytes in all while weights load.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

impl Encoder {
    /// Reads the configuration and weights and starts the worker.
    pub fn open(settings: Settings, progress: Progress<'_>) -> Result<Self> {
        if let Device::Cuda(_) = settings.device {
            return Err(Error::runtime(format!(
                "device {} needs the CUDA library libmm_cuda.so, which this wheel does not have: use device=\"cpu\"",
                settings.device
            )));
        }
        let (mut preprocessor, checkpoint) = Preprocessor::open(
            &settings.checkpoint,
            &settings.model,
            settings.family.as_deref(),
            settings.options,
        )?;
        if let Some(policy) = settings.policy {
            preprocessor = preprocessor.with_policy(policy)?;
        }
        let selection = select(&checkpoint, &preprocessor)?;
        let dtype = match settings.dtype {
            Some(dtype) => dtype,
            None => own_dtype(&checkpoint, &selection)?,
        };
        let total = selection.bytes();
        let read = AtomicU64::new(0);
        let count = |bytes: u64| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
        let (jobs, queue) = crossbeam_channel::bounded(QUEUE_DEPTH);
        // On a thread of its own: gradient mode belongs to a thread, and the caller's is not ours to change.
        let family = preprocessor.clone();
        let worker = thread::scope(|scope| {
            let loaded = scope.spawn(|| {
                torch::disable_gradients()?;
                preprocessor.family().load(&Loader::new(&selection, dtype, settings.device, &count))
            });
            loaded.join().unwrap_or_else(|_| Err(Error::internal("loading the tower panicked")))
        })
        .and_then(|tower| {
            let run = move || worker::run(&*tower, &queue, family.family());
            let name = "mm-encoder".to_owned();
            thread::Builder::new()
                .name(name)
                .spawn(run)
                .map_err(|_| Error::internal("the worker thread could not be started"))
        })?;
        Ok(Self {
            preprocessor,
            device: settings.device,
            dtype,
            jobs: Mutex::new(Some(jobs)),
            worker: Mutex::new(Some(worker)),
            process: std::process::id(),
        })
    }
}

/// The tower's tensors under the spelling that the checkpoint has, or has most of.
fn select(checkpoint: &Checkpoint, preprocessor: &Preprocessor) -> Result<Selection> {
    let weights = checkpoint.weights()?;
    let spellings = preprocessor.family().weight_names();
    let fit = |names: &&WeightNames| weights.present(names.prefixes, &names.specs);
    // Of equals the last counts, so that a reversed list prefers the first.
    let best = spellings.iter().rev().max_by_key(fit);
    let names = best.ok_or_else(|| Error::internal("the family names no tensors"))?;
    weights.select(names.prefixes, &names.specs, &names.ignored)
}

/// `dtype` (or the older `torch_dtype`) of config.json, else the dtype that most bytes of the tower have.
fn own_dtype(checkpoint: &Checkpoint, selection: &Selection) -> Result<Dtype> {
    let config = checkpoint.config();
    for key in ["dtype", "torch_dtype"] {
        if let Some(name) = config.opt_str(key)?
            && let Ok(dtype) = Dtype::parse(name)
        {
            return Ok(dtype);
        }
    }
    let bytes = |dtype: Dtype| -> usize {
        let elements = selection.tensors().filter(|info| info.dtype == dtype);
        elements.map(|info| info.shape.iter().product::<usize>() * dtype.size()).sum()
    };
    let all = [Dtype::Bf16, Dtype::F16, Dtype::F32];
    all.into_iter().max_by_key(|&dtype| bytes(dtype)).ok_or_else(|| Error::internal("no dtype"))
}
