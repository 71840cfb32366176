//! One forward for one item or for several: packing, running, taking apart.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::item::{Encoded, Item, Work};
use super::stats::Counters;
use crate::family::{Grid, Outputs, Tower};
use crate::pixels::{PixelValues, Samples};
use crate::prepare::Preprocessor;
use crate::torch::{Device, Event, Stream, Tensor};
use crate::{Error, Result};

/// A tower and what is known of its outputs.
pub(super) struct Forward {
    pub tower: Box<dyn Tower>,
    pub preprocessor: Preprocessor,
    pub device: Device,
    /// On CUDA, the moment from which the weights may be read.
    pub loaded: Option<Event>,
}

impl Forward {
    /// Runs the items in one forward where there are several, and answers each.
    ///
    /// Where that forward fails the items run one by one, so that a failure stays with its item. `stream` is the calling
    /// thread's.
    pub fn run(&self, mut items: Vec<Item>, counters: &Counters, stream: &Stream) {
        let start = Instant::now();
        for item in &mut items {
            item.times.queue = start - item.since;
        }
        if items.len() > 1 {
            match guarded(|| self.together(&items, counters, stream)) {
                Ok(encoded) => {
                    for (item, encoded) in items.into_iter().zip(encoded) {
                        counters.completed(&encoded.times);
                        item.reply.send(Ok(encoded));
                    }
                    return;
                }
                Err(_) => (),
            }
        }
        for item in items {
            if item.reply.abandoned() {
                counters.abandoned(1);
                continue;
            }
            let answer = guarded(|| self.alone(&item, counters, stream));
            match &answer {
                _ if item.warmup => (),
                Ok(encoded) => counters.completed(&encoded.times),
                Err(_) => counters.failed(),
            }
            item.reply.send(answer);
        }
    }

    fn alone(&self, item: &Item, counters: &Counters, stream: &Stream) -> Result<Encoded> {
        let start = Instant::now();
        counters.forward();
        let outputs = self.outputs(pixels(item)?, &item.grids, item.tokens())?;
        let mut encoded = encoded(item, named(outputs), start.elapsed(), Duration::ZERO);
        encoded.ready = stream.mark()?.map(Arc::new);
        Ok(encoded)
    }

    fn together(&self, items: &[Item], counters: &Counters, stream: &Stream) -> Result<Vec<Encoded>> {
        let start = Instant::now();
        let parts = items.iter().map(|item| Ok(&**pixels(item)?)).collect::<Result<Vec<_>>>()?;
        let packed = pack(&parts)?;
        let grids: Vec<Grid> = items.iter().flat_map(|item| &item.grids).copied().collect();
        let tokens = items.iter().map(Item::tokens).sum();
        counters.forward();
        let tensors = named(self.outputs(&packed, &grids, tokens)?);
        drop(packed);
        let forward = start.elapsed();
        let mut row = 0;
        let mut apart = Vec::with_capacity(items.len());
        for item in items {
            let start = Instant::now();
            let end = row + item.tokens();
            // Copies, because a view would keep the memory of all its neighbours.
            let own = tensors.iter().map(|(name, tensor)| {
                let axis = tensor.shape()?.len().saturating_sub(2);
                Ok((*name, tensor.narrow(axis, row, end)?.copied(self.device)?))
            });
            let own = own.collect::<Result<Vec<_>>>()?;
            apart.push(encoded(item, own, forward, start.elapsed()));
            row = end;
        }
        let ready = stream.mark()?.map(Arc::new);
        for encoded in &mut apart {
            encoded.ready.clone_from(&ready);
        }
        Ok(apart)
    }

    /// The tower's outputs, with as many rows as were planned.
    fn outputs(&self, pixels: &PixelValues, grids: &[Grid], tokens: usize) -> Result<Outputs> {
        let shape = [pixels.rows, pixels.columns];
        let run = |x: &Tensor| self.tower.forward(x, grids);
        let outputs = match &pixels.samples {
            Samples::F32(samples) => Tensor::with_input(samples, &shape, self.device, run),
            Samples::Bf16(samples) => Tensor::with_input(samples, &shape, self.device, run),
            Samples::F16(samples) => Tensor::with_input(samples, &shape, self.device, run),
        }?;
        let rows = outputs.embeddings.shape()?;
        if rows != [tokens, self.preprocessor.family().embedding_columns()] {
            return Err(Error::internal(format!(
                "the tower gave embeddings of shape {rows:?} for {tokens} tokens"
            )));
        }
        Ok(outputs)
    }
}

fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("the tower panicked on this item; the encoder goes on")))
}

fn pixels(item: &Item) -> Result<&Arc<PixelValues>> {
    match &item.work {
        Work::Pixels(pixels) => Ok(pixels),
        Work::Source(_) => Err(Error::internal("an item reached the tower before it was prepared")),
    }
}

fn named(outputs: Outputs) -> Vec<(&'static str, Tensor)> {
    std::iter::once(("embeddings", outputs.embeddings)).chain(outputs.extra).collect()
}

fn encoded(
    item: &Item,
    tensors: Vec<(&'static str, Tensor)>,
    forward: Duration,
    transfer: Duration,
) -> Encoded {
    let mut times = item.times;
    (times.forward, times.transfer) = (forward, transfer);
    Encoded {
        tensors,
        ready: None,
        hash: item.hash.clone().unwrap_or_default(),
        grids: item.grids.clone(),
        offsets: item.offsets.clone(),
        times,
    }
}

/// The patch matrices one under the other.
fn pack(parts: &[&PixelValues]) -> Result<PixelValues> {
    let columns = parts.first().map_or(0, |part| part.columns);
    let rows = parts.iter().map(|part| part.rows).sum();
    if parts.iter().any(|part| part.columns != columns) {
        return Err(Error::internal("patch matrices of different width cannot be packed"));
    }
    macro_rules! join {
        ($kind:ident) => {
            Samples::$kind(join(
                parts.iter().map(|part| match &part.samples {
                    Samples::$kind(samples) => Ok(&samples[..]),
                    _ => Err(Error::internal("patch matrices of different dtype cannot be packed")),
                }),
                rows * columns,
            )?)
        };
    }
    let samples = match parts.first().map(|part| &part.samples) {
        Some(Samples::Bf16(_)) => join!(Bf16),
        Some(Samples::F16(_)) => join!(F16),
        _ => join!(F32),
    };
    Ok(PixelValues { rows, columns, samples })
}

fn join<'a, T: Copy + 'a>(parts: impl Iterator<Item = Result<&'a [T]>>, elements: usize) -> Result<Vec<T>> {
    let mut joined = Vec::new();
    joined
        .try_reserve_exact(elements)
        .map_err(|_| Error::out_of_memory("no memory for the patches of a batch: lower max_batch_tokens"))?;
    for part in parts {
        joined.extend_from_slice(part?);
    }
    Ok(joined)
}
