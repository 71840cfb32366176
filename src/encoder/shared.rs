//! Requests through the cache: stored results at once, and of the same picture at the same time one computation.

use std::sync::Arc;

use super::item::{Encoded, Item, Times};
use super::ticket::{Reply, Ticket};
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
        let landing = Landing { shared: self.clone(), id, hash: hash.to_owned() };
        // A computation may have ended since the look into memory.
        if let Some(entry) = self.cache.get(&key) {
            landing.give(&entry);
            return None;
        }
        if !self.cache.on_disk(&key) {
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

    /// Takes the one out that waits at `ticket`, and says whether others still wait.
    pub fn leave(&self, ticket: &Ticket) -> (Option<Reply>, bool) {
        self.shared.flights.leave(&self.id, |reply| reply.belongs_to(ticket))
    }

    /// Answers all from disk, if the entry there can be `item`'s result.
    pub fn load(&self, item: &Item, family: &dyn Family, dtype: Dtype) -> bool {
        let cache = &self.shared.cache;
        if !cache.on_disk(&self.id.key) {
            return false;
        }
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
