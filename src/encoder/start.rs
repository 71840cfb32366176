//! Opening an encoder: checkpoint, weights, threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::batch::Forward;
use super::input::Inputs;
use super::queue::Queue;
use super::settings::Settings;
use super::shared::Shared;
use super::stats::Counters;
use super::threads::Threads;
use super::{Encoder, pool, worker};
use crate::cache::{Cache, CacheConfig, Identity, binary_identity};
use crate::checkpoint::{Checkpoint, Selection};
use crate::family::{Loader, WeightNames};
use crate::prepare::Preprocessor;
use crate::torch::{self, Device, Stream};
use crate::{Dtype, Error, Result};

/// Called with bytes read and bytes in all while weights load.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

impl Encoder {
    /// Reads the configuration and weights and starts the threads. Where one does not start, all have ended when the
    /// error comes back.
    pub fn open(settings: Settings, progress: Progress<'_>) -> Result<Self> {
        settings.load.check()?;
        settings.cache.as_ref().map_or(Ok(()), CacheConfig::check)?;
        settings.graphs.as_ref().map_or(Ok(()), |graphs| graphs.limits.check())?;
        if let Device::Cuda(index) = settings.device {
            torch::cuda::device(index)?;
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
        let shared = shared(&settings, &checkpoint, &preprocessor, &selection, dtype)?;
        let total = selection.bytes();
        let read = AtomicU64::new(0);
        let count = |bytes: u64| progress(read.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
        // On a thread of its own: gradient mode belongs to a thread, and the caller's is not ours to change.
        let (tower, inputs, loaded) = thread::scope(|scope| {
            let loaded = scope.spawn(|| {
                torch::disable_gradients()?;
                let stream = Stream::enter(settings.device, settings.stream_priority)?;
                torch::self_check::run(settings.device)?;
                let loader = Loader::new(&selection, dtype, settings.device, &count);
                let tower = preprocessor.family().load(&loader)?;
                let inputs = Inputs::open(&preprocessor, dtype, settings.device)?;
                Ok((tower, Arc::new(inputs), stream.mark()?))
            });
            loaded.join().unwrap_or_else(|_| Err(Error::internal("loading the tower panicked")))
        })?;
        let device = settings.device;
        let (preparer, held) = (preprocessor.clone(), inputs.clone());
        let forward = Forward { tower: tower.into(), preprocessor: preparer, inputs: held, device, loaded };
        let mut encoder = Self {
            preprocessor,
            inputs,
            device,
            dtype,
            shared,
            queue: Arc::new(Queue::new(settings.load, Counters::default())),
            threads: Threads::default(),
            stream_priority: 0,
            process: std::process::id(),
        };
        // An error drops the encoder, which closes it.
        let (replicas, priority) = (settings.load.replicas, settings.stream_priority);
        encoder.stream_priority =
            worker::start(&encoder.threads, &encoder.queue, forward, replicas, priority, settings.graphs)?;
        pool::start(&encoder.threads, &encoder.queue, &encoder.preprocessor, &encoder.inputs, dtype)?;
        Ok(encoder)
    }
}

/// The cache, if one is wanted. Opened before the weights are loaded: a directory that is in use shows early.
fn shared(
    settings: &Settings,
    checkpoint: &Checkpoint,
    preprocessor: &Preprocessor,
    selection: &Selection,
    dtype: Dtype,
) -> Result<Option<Arc<Shared>>> {
    let Some(config) = &settings.cache else { return Ok(None) };
    let mut namespace = [0; 32];
    if config.disk_path.is_some() {
        let device = if settings.device == Device::Cpu { "cpu" } else { "cuda" };
        let alone = if settings.load.batch_images > 1 { "batched" } else { "alone" };
        let texts = [
            ("family", preprocessor.family().name()),
            ("options", &settings.options.identity()),
            ("policy", &preprocessor.policy_identity()),
            ("dtype", dtype.name()),
            ("device", device),
            ("forward", alone),
            ("runtime", &settings.runtime),
            ("kernels", &torch::kernel_level()?),
        ];
        let identity = Identity::default()
            .with("weights", &selection.contents()?)
            .with("configuration", &checkpoint.identity())
            .with("software", &binary_identity(torch::bridge_file()));
        let all = texts.iter().fold(identity, |all, (name, text)| all.with(name, text.as_bytes()));
        namespace = all.finish();
    }
    Ok(Some(Arc::new(Shared::new(Cache::open(config, namespace)?, settings.device))))
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
