//! Requests through the cache: stored results at once, and of the same picture at the same time one computation.

use std::sync::Arc;

use super::item::{Encoded, Item, Times};
use super::ticket::Reply;
use crate::cache::{Cache, Entry, FlightId, Flights, Waiting};
use crate::family::Family;
use crate::torch::Device;
use crate::{Dtype, Error, Result};

/// A cache and the computations under way for it.
pub(super) struct Shared {
    cache: Cache,
    flights: Flights<Reply>,
    device: Device,
}

/// Where a computation's answer goes that several may wait for.
pub(super) struct Landing {
    shared: Arc<Shared>,
    id: FlightId,
    hash: String,
    /// Whether the result was on disk at the start. If not, the request counts as a miss already.
    stored: bool,
}

impl Shared {
    pub fn new(cache: Cache, device: Device) -> Self {
        Self { cache, flights: Flights::default(), device }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The result in memory for the item of identity `hash`.
    pub fn get(&self, hash: &str) -> Option<Arc<Entry>> {
        self.cache.get(&self.cache.key(hash))
    }

    /// Lets `reply` wait for the result under way, or gives the reply of a new computation.
    pub fn board(self: &Arc<Self>, hash: &str, reply: Reply) -> Option<Reply> {
        let key = self.cache.key(hash);
        let Some(id) = self.flights.board(key, reply) else {
            self.cache.joined();
            return None;
        };
        let stored = self.cache.on_disk(&key);
        let landing = Landing { shared: self.clone(), id, hash: hash.to_owned(), stored };
        // A computation may have ended since the look into memory.
        if let Some(entry) = self.cache.get(&key) {
            landing.give(&entry);
            return None;
        }
        if !stored {
            self.cache.missed();
        }
        Some(Reply::of_flight(landing))
    }
}

/// A stored result as an answer.
pub(super) fn answer(entry: &Entry, hash: &str) -> Result<Encoded> {
    Ok(Encoded {
        tensors: entry.tensors()?,
        ready: None,
        hash: hash.to_owned(),
        grids: entry.grids().to_vec(),
        offsets: entry.offsets().to_vec(),
        times: Times::default(),
    })
}

impl Landing {
    /// Whether nobody waits any more.
    pub fn deserted(&self) -> bool {
        self.shared.flights.deserted(&self.id)
    }

    /// Takes one out for whom `is` holds, and says whether others still wait.
    pub fn leave(&self, is: &dyn Fn(&Reply) -> bool) -> (Option<Reply>, bool) {
        self.shared.flights.leave(&self.id, is)
    }

    /// Answers all from disk, if the entry there can be `item`'s result.
    pub fn load(&self, item: &Item, family: &dyn Family, dtype: Dtype) -> bool {
        if !self.stored {
            return false;
        }
        let cache = &self.shared.cache;
        let Some(entry) = cache.load(&self.id.key, |entry| fits(entry, item, family, dtype)) else {
            cache.missed();
            return false;
        };
        self.give(&entry);
        true
    }

    fn give(&self, entry: &Entry) {
        for reply in self.shared.flights.land(&self.id) {
            reply.send(answer(entry, &self.hash));
        }
    }

    /// Keeps a result and gives it to all, or gives all the error.
    pub fn land(self, outcome: Result<Encoded>) {
        let Self { shared, id, .. } = &self;
        let encoded = match outcome {
            Ok(encoded) => encoded,
            Err(error) => {
                shared.flights.land(id).into_iter().for_each(|reply| reply.send(Err(error.clone())));
                return;
            }
        };
        let Encoded { tensors, grids, offsets, times, .. } = &encoded;
        // Kept before the landing: who comes between the two finds it in memory.
        let kept = shared.cache.insert(&id.key, tensors, shared.device, grids, offsets);
        if kept.is_err() {
            // No memory for the copy: the result itself is there.
            shared.cache.bypassed();
        }
        let times = *times;
        // With a cache results are in the host's memory, those that are too large for it as well.
        let other = match &kept {
            Ok(Some(_)) => None,
            _ if shared.device == Device::Cpu => Some(Ok(encoded)),
            _ => Some(encoded.on_host()),
        };
        for reply in shared.flights.land(id) {
            reply.send(match (&kept, &other) {
                (Ok(Some(entry)), _) => answer(entry, &self.hash).map(|answer| Encoded { times, ..answer }),
                (_, Some(Ok(encoded))) => encoded.shared(),
                (_, Some(Err(error))) => Err(error.clone()),
                (_, None) => Err(Error::internal("a result is neither kept nor there")),
            });
        }
    }
}

/// Whether `entry` can be what `item` gives.
fn fits(entry: &Entry, item: &Item, family: &dyn Family, dtype: Dtype) -> bool {
    let shape = entry.embeddings().and_then(|embeddings| embeddings.shape());
    entry.grids() == item.named_grids(family.input().modality())
        && entry.offsets() == item.offsets
        && shape.is_ok_and(|shape| shape == [item.tokens(), family.embedding_columns()])
        && entry.has_dtype(dtype)
}

impl Waiting for Reply {
    fn gave_up(&self) -> bool {
        self.abandoned()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;
    use std::time::Instant;

    use super::super::admission::Cost;
    use super::super::item::Work;
    use super::super::queue::Queue;
    use super::super::settings::Load;
    use super::super::stats::Counters;
    use super::super::ticket::Ticket;
    use super::*;
    use crate::ErrorKind;
    use crate::cache::CacheConfig;
    use crate::family::{Grid, Options, make_checkpoint};
    use crate::pixels::{PixelValues, Samples};
    use crate::prepare::Preprocessor;
    use crate::torch::{self, Tensor};

    fn shared(disk: Option<&Path>) -> Arc<Shared> {
        let config = CacheConfig {
            memory_bytes: 1 << 16,
            disk_path: disk.map(Path::to_owned),
            disk_bytes: if disk.is_some() { 1 << 20 } else { 0 },
            max_entry_bytes: 1 << 15,
        };
        Arc::new(Shared::new(Cache::open(&config, [0; 32]).unwrap(), Device::Cpu))
    }

    fn queue(depth: usize) -> Arc<Queue> {
        Arc::new(Queue::new(Load { queue_depth: depth, ..Load::default() }, Counters::default()))
    }

    fn item(reply: Reply) -> Item {
        let pixels = PixelValues { rows: 0, columns: 0, samples: Samples::F32(Vec::new()) };
        Item {
            work: Work::Pixels(Arc::new(pixels.into())),
            grids: vec![Grid::still(2, 2)],
            offsets: vec![0, 1],
            hash: None,
            cost: Cost { tokens: 1, bytes: 1 },
            times: Times::default(),
            since: Instant::now(),
            reply,
            warmup: false,
        }
    }

    fn kind(ticket: &Ticket) -> Option<ErrorKind> {
        ticket.take().map(|answer| answer.err().unwrap().kind())
    }

    #[test]
    fn who_joined_may_expire_before_the_item_is_in_the_queue() {
        let (shared, queue) = (shared(None), queue(1));
        let (_inside, reply) = Ticket::new(queue.clone(), None);
        queue.push(item(reply));
        let (first, reply) = Ticket::new(queue.clone(), None);
        let flight = shared.board("picture", reply).expect("the first");
        let [impatient, patient] = [(); 2].map(|()| {
            let (ticket, reply) = Ticket::new(queue.clone(), None);
            assert!(shared.board("picture", reply).is_none());
            ticket
        });
        impatient.expire();
        queue.push(item(flight));
        assert_eq!(kind(&impatient), Some(ErrorKind::QueueFull));
        assert!(first.take().is_none() && patient.take().is_none());
        assert_eq!((queue.lengths().outside, queue.counters().read(queue.lengths()).refused), (1, 1));
        // Nobody is left but those who expire: the item goes with the last.
        drop(first);
        patient.expire();
        assert_eq!((kind(&patient), queue.lengths().outside), (Some(ErrorKind::QueueFull), 0));
    }

    #[test]
    fn an_item_that_all_left_before_it_came_does_not_stay() {
        let (shared, queue) = (shared(None), queue(1));
        let (_inside, reply) = Ticket::new(queue.clone(), None);
        queue.push(item(reply));
        let (first, reply) = Ticket::new(queue.clone(), None);
        let flight = shared.board("picture", reply).expect("the first");
        first.expire();
        queue.push(item(flight));
        assert_eq!((kind(&first), queue.lengths().outside), (Some(ErrorKind::QueueFull), 0));
    }

    #[test]
    fn who_expired_and_found_room_goes_on() {
        let (shared, queue) = (shared(None), queue(1));
        let (first, reply) = Ticket::new(queue.clone(), None);
        let flight = shared.board("picture", reply).expect("the first");
        first.expire();
        queue.push(item(flight));
        assert!(first.take().is_none());
        assert_eq!(queue.next_batch(0).unwrap().len(), 1);
    }

    /// Whatever happens to the entry on disk between the look and the reading, a request counts once.
    #[test]
    fn a_request_counts_once_though_its_entry_comes_and_goes() {
        torch::open(OsStr::new(env!("MM_TORCH_BRIDGE"))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("checkpoint");
        make_checkpoint("qwen35", &root, 0, &[]).unwrap();
        let (preprocessor, _) = Preprocessor::open(&root, "", None, Options::default()).unwrap();
        let family = preprocessor.family();
        let columns = family.embedding_columns();
        let keep = |shared: &Shared| {
            let tensor = Tensor::from_slice(&vec![0.0f32; columns], &[1, columns]).unwrap();
            let (key, named) = (shared.cache.key("picture"), [("embeddings", tensor)]);
            shared.cache.insert(&key, &named, Device::Cpu, &[Grid::still(2, 2)], &[0, 1]).unwrap().unwrap();
            shared.cache.flush();
        };
        let disk = folder.path().join("cache");
        keep(&shared(Some(&disk)));
        let (queue, counted) = (queue(1), |shared: &Shared| {
            let stats = shared.cache.stats();
            (stats.disk_hits, stats.misses)
        });
        let boarded = |shared: &Arc<Shared>| {
            let (ticket, reply) = Ticket::new(queue.clone(), None);
            (ticket, item(shared.board("picture", reply).expect("the first")))
        };
        let loaded = |item: &Item| item.reply.landing().unwrap().load(item, family, Dtype::F32);

        let there = shared(Some(&disk));
        let (_ticket, item) = boarded(&there);
        assert!(loaded(&item));
        assert_eq!(counted(&there), (1, 0));
        drop((item, there));

        let gone = shared(Some(&disk));
        let (_ticket, item) = boarded(&gone);
        assert!(gone.cache.load(&gone.cache.key("picture"), |_| false).is_none());
        assert!(!loaded(&item));
        assert_eq!(counted(&gone), (0, 1));
        drop((item, gone));

        let come = shared(Some(&disk));
        let (_ticket, item) = boarded(&come);
        keep(&come);
        assert!(!loaded(&item));
        assert_eq!(counted(&come), (0, 1));
    }
}
