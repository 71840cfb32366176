//! Finished embeddings by content: in host memory, and in a directory of this process's own.
//!
//! [Foyer](https://docs.rs/foyer) keeps both tiers: its memory cache weighs entries by their bytes and evicts the least
//! recently used, its hybrid cache writes what is inserted to a [`disk`] engine. A hit in memory is a look-up under one
//! short lock: no channel, no thread, no copy. Everything read from disk is checked before it is used.

mod config;
mod disk;
mod entry;
mod flights;
mod format;
mod identity;
mod index;
mod key;
mod lock;
mod stats;
mod tiers;

pub use config::CacheConfig;
pub use entry::Entry;
pub use flights::{FlightId, Flights, Waiting};
pub use identity::{Identity, binary_identity};
pub use key::Key;
pub use stats::CacheStats;
pub use tiers::Cache;
