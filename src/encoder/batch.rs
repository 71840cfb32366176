//! One forward for one item or for several: packing, running, taking apart.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::graphs::{Graphs, Job};
use super::input::Inputs;
use super::item::{Encoded, Item, Work};
use super::queue::Queue;
use super::stats::Counters;
use crate::family::{Grid, Outputs, Tower};
use crate::pixels::Patches;
use crate::prepare::Preprocessor;
use crate::torch::{Device, Event, Stream, Tensor};
use crate::{Error, Result};

/// A tower and what is known of its outputs.
pub(super) struct Forward {
    pub tower: Arc<dyn Tower>,
    pub preprocessor: Preprocessor,
    pub inputs: Arc<Inputs>,
    pub device: Device,
    /// On CUDA, the moment from which the weights may be read.
    pub loaded: Option<Event>,
}

impl Forward {
    /// Runs the items in one forward where there are several, and answers each.
    ///
    /// Where that forward fails the items run one by one, so that a failure stays with its item. `stream` is the calling
    /// thread's, and so are `graphs`.
    pub fn run(&self, mut items: Vec<Item>, queue: &Queue, stream: &Stream, graphs: &mut Graphs) {
        let mut running = Running { queue, items: items.len() };
        let counters = queue.counters();
        let start = Instant::now();
        for item in &mut items {
            item.times.queue = start - item.since;
        }
        if items.len() > 1
            && let Ok(encoded) =
                guarded(|| graphs.relieve(counters, |graphs| self.together(&items, counters, stream, graphs)))
        {
            for (item, encoded) in items.into_iter().zip(encoded) {
                running.answer(item, Ok(encoded));
            }
            return;
        }
        for item in items {
            if item.reply.abandoned() {
                counters.abandoned(1);
                continue;
            }
            let alone = |graphs: &mut Graphs| self.alone(&item, counters, stream, graphs);
            // Graphs may hold the memory that is missing for what goes into the tower, or comes out of it, too.
            let answer = guarded(|| graphs.relieve(counters, alone));
            running.answer(item, answer);
        }
    }

    fn alone(
        &self,
        item: &Item,
        counters: &Counters,
        stream: &Stream,
        graphs: &mut Graphs,
    ) -> Result<Encoded> {
        let start = Instant::now();
        counters.forward();
        let outputs = self.outputs(&[pixels(item)?], item.tokens(), |pixels| {
            let (tower, tokens, warmup) = (&self.tower, item.tokens(), item.warmup);
            graphs.run(&Job { tower, pixels, grids: &item.grids, tokens, warmup }, stream, counters)
        })?;
        let mut encoded = self.encoded(item, named(outputs), start.elapsed(), Duration::ZERO);
        encoded.ready = stream.mark()?.map(Arc::new);
        Ok(encoded)
    }

    fn together(
        &self,
        items: &[Item],
        counters: &Counters,
        stream: &Stream,
        graphs: &mut Graphs,
    ) -> Result<Vec<Encoded>> {
        let start = Instant::now();
        let parts = items.iter().map(pixels).collect::<Result<Vec<_>>>()?;
        let grids: Vec<Grid> = items.iter().flat_map(|item| &item.grids).copied().collect();
        let tokens = items.iter().map(Item::tokens).sum();
        counters.forward();
        let tensors = named(self.outputs(&parts, tokens, |pixels| {
            let job = Job { tower: &self.tower, pixels, grids: &grids, tokens, warmup: false };
            graphs.run(&job, stream, counters)
        })?);
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
            apart.push(self.encoded(item, own, forward, start.elapsed()));
            row = end;
        }
        let ready = stream.mark()?.map(Arc::new);
        for encoded in &mut apart {
            encoded.ready.clone_from(&ready);
        }
        Ok(apart)
    }

    /// The outputs of `run`, a forward of `parts`, with as many rows as were planned.
    fn outputs(
        &self,
        parts: &[&Patches],
        tokens: usize,
        run: impl FnOnce(&Tensor) -> Result<Outputs>,
    ) -> Result<Outputs> {
        let outputs = self.inputs.with(parts, run)?;
        let rows = outputs.embeddings.shape()?;
        if rows != [tokens, self.preprocessor.family().embedding_columns()] {
            return Err(Error::internal(format!(
                "the tower gave embeddings of shape {rows:?} for {tokens} tokens"
            )));
        }
        Ok(outputs)
    }

    fn encoded(
        &self,
        item: &Item,
        tensors: Vec<(&'static str, Tensor)>,
        forward: Duration,
        transfer: Duration,
    ) -> Encoded {
        let mut times = item.times;
        (times.forward, times.transfer) = (forward, transfer);
        let modality = self.preprocessor.family().input().modality();
        Encoded {
            tensors,
            ready: None,
            hash: item.hash.clone().unwrap_or_default(),
            grids: item.named_grids(modality).to_vec(),
            offsets: item.offsets.clone(),
            times,
        }
    }
}

/// Items that count as in the tower until they are answered, or at the latest until this is dropped.
struct Running<'a> {
    queue: &'a Queue,
    items: usize,
}

impl Running<'_> {
    /// Counts, then answers, so that who has an answer finds it in the statistics.
    fn answer(&mut self, item: Item, answer: Result<Encoded>) {
        let counters = self.queue.counters();
        match &answer {
            _ if item.warmup => (),
            Ok(encoded) => counters.completed(&encoded.times),
            Err(_) => counters.failed(),
        }
        self.items -= 1;
        self.queue.ran(1);
        item.reply.send(answer);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.queue.ran(self.items);
    }
}

fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("the tower panicked on this item; the encoder goes on")))
}

fn pixels(item: &Item) -> Result<&Patches> {
    match &item.work {
        Work::Pixels(pixels) => Ok(pixels),
        Work::Source(..) => Err(Error::internal("an item reached the tower before it was prepared")),
    }
}

fn named(outputs: Outputs) -> Vec<(&'static str, Tensor)> {
    std::iter::once(("embeddings", outputs.embeddings)).chain(outputs.extra).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::sync::Mutex;

    use super::super::admission::Cost;
    use super::super::item::Times;
    use super::super::settings::Load;
    use super::super::ticket::Ticket;
    use super::*;
    use crate::Dtype;
    use crate::family::{Options, make_checkpoint};
    use crate::pixels::{PixelValues, Samples};
    use crate::torch;

    /// Gives each token its place; fails on more than `most` grids, and panics on a matrix of 36 rows.
    struct Echo {
        most: usize,
        runs: Mutex<Vec<usize>>,
        columns: usize,
    }

    impl Tower for Arc<Echo> {
        fn forward(&self, pixels: &Tensor, grids: &[Grid]) -> Result<Outputs> {
            self.runs.lock().unwrap().push(grids.len());
            if grids.len() > self.most {
                return Err(Error::internal("too many"));
            }
            let rows = pixels.shape()?[0];
            assert_ne!(rows, 36, "this item panics");
            let tokens = rows / 4;
            let values: Vec<f32> =
                (0..tokens * self.columns).map(|place| (place / self.columns) as f32).collect();
            let embeddings = Tensor::from_slice(&values, &[tokens, self.columns])?;
            let levels = Tensor::from_slice(&[values.clone(), values].concat(), &[2, tokens, self.columns])?;
            Ok(Outputs { embeddings, extra: vec![("deepstack", levels)] })
        }
    }

    /// Runs items of these grids in one batch: their outcomes, and the grids of each forward.
    fn run(most: usize, grids: &[Grid]) -> (Vec<Result<Encoded>>, Vec<usize>) {
        torch::open(OsStr::new(env!("MM_TORCH_BRIDGE"))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("checkpoint");
        make_checkpoint("qwen35", &root, 0, &[]).unwrap();
        let (preprocessor, _) = Preprocessor::open(&root, "", None, Options::default()).unwrap();
        let (columns, patch_columns) =
            (preprocessor.family().embedding_columns(), preprocessor.family().input_columns());
        let echo = Arc::new(Echo { most, runs: Mutex::default(), columns });
        let device = Device::Cpu;
        let inputs = Arc::new(Inputs::open(&preprocessor, Dtype::F32, device).unwrap());
        let forward = Forward { tower: Arc::new(echo.clone()), preprocessor, inputs, device, loaded: None };
        let queue = Arc::new(Queue::new(Load { batch_images: 16, ..Load::default() }, Counters::default()));
        let mut tickets = Vec::new();
        for &grid in grids {
            let rows = grid.patches();
            let samples = Samples::F32(vec![0.0; rows * patch_columns]);
            let pixels = Arc::new(PixelValues { rows, columns: patch_columns, samples }.into());
            let (ticket, reply) = Ticket::new(queue.clone(), None);
            queue.push(Item {
                work: Work::Pixels(pixels),
                grids: vec![grid],
                offsets: vec![0, rows / 4],
                hash: None,
                cost: Cost::default(),
                times: Times::default(),
                since: Instant::now(),
                reply,
                warmup: false,
            });
            tickets.push(ticket);
        }
        let items = queue.next_batch(0).unwrap();
        assert_eq!(items.len(), grids.len());
        forward.run(items, &queue, &Stream::enter(Device::Cpu, 0).unwrap(), &mut Graphs::new(None));
        assert_eq!(queue.lengths().running, 0);
        let outcomes = tickets.iter().map(|ticket| ticket.take().expect("an answer")).collect();
        let runs = echo.runs.lock().unwrap().clone();
        (outcomes, runs)
    }

    const GRIDS: [Grid; 3] = [
        Grid { frames: 1, height: 2, width: 4 },
        Grid { frames: 1, height: 2, width: 2 },
        Grid { frames: 1, height: 4, width: 4 },
    ];

    fn shapes(encoded: &Encoded) -> Vec<Vec<usize>> {
        encoded.tensors.iter().map(|(_, tensor)| tensor.shape().unwrap()).collect()
    }

    #[test]
    fn one_forward_for_all_and_each_its_own_rows() {
        let (outcomes, runs) = run(8, &GRIDS);
        assert_eq!(runs, [3]);
        for (outcome, grid) in outcomes.into_iter().zip(GRIDS) {
            let encoded = outcome.unwrap();
            let tokens = grid.patches() / 4;
            let columns = shapes(&encoded)[0][1];
            assert_eq!(shapes(&encoded), [vec![tokens, columns], vec![2, tokens, columns]]);
            assert_eq!((encoded.grids, encoded.offsets), (vec![grid], vec![0, tokens]));
        }
    }

    #[test]
    fn where_the_batch_fails_each_runs_alone() {
        let (outcomes, runs) = run(1, &GRIDS);
        assert_eq!(runs, [3, 1, 1, 1]);
        assert!(outcomes.iter().all(Result::is_ok));
    }

    #[test]
    fn a_panic_stays_with_its_item() {
        let panics = Grid { frames: 1, height: 6, width: 6 };
        let (outcomes, runs) = run(1, &[GRIDS[0], panics, GRIDS[2]]);
        assert_eq!(runs, [3, 1, 1, 1]);
        let failed: Vec<bool> = outcomes.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false]);
    }
}
