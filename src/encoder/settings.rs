//! How to open an encoder, and the bounds on every number in it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use super::graphs::GraphMemory;
use crate::cache::CacheConfig;
use crate::family::Options;
use crate::image::DecodePolicy;
use crate::torch::Device;
use crate::{Dtype, Error, Result};

/// Worker threads on one device.
pub const REPLICAS: RangeInclusive<usize> = 1..=32;
/// Images that wait.
pub const QUEUE_DEPTH: RangeInclusive<usize> = 1..=65_536;
/// Tokens of the images that wait.
pub const QUEUE_TOKENS: RangeInclusive<usize> = 1..=1 << 30;
/// Bytes of the images that wait: sources and patch matrices.
pub const QUEUE_BYTES: RangeInclusive<usize> = 1..=1 << 46;
/// Images in one forward.
pub const BATCH_IMAGES: RangeInclusive<usize> = 1..=1024;
/// Tokens in one forward of several images.
pub const BATCH_TOKENS: RangeInclusive<usize> = 1..=1 << 30;
/// Forwards of the same grids before they are captured.
pub const GRAPH_HITS: RangeInclusive<usize> = 1..=1 << 30;
/// Graphs of one replica.
pub const GRAPHS: RangeInclusive<usize> = 1..=256;
/// Tokens of a forward that is captured.
pub const GRAPH_TOKENS: RangeInclusive<usize> = 1..=1 << 20;
/// Bytes that the graphs of one replica hold.
pub const GRAPH_BYTES: RangeInclusive<usize> = 1..=1 << 46;

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
    /// Wish for the priority of the workers' streams: below 0 high, else normal. The host has none.
    pub stream_priority: i32,
    /// How much runs and waits at once.
    pub load: Load,
    /// Where finished results are kept; none: nowhere.
    pub cache: Option<CacheConfig>,
    /// What else of the host decides results: its Torch and how it is set. Part of the keys on disk.
    pub runtime: String,
    /// Which forwards become CUDA graphs; none: no one. The host has no graphs.
    pub graphs: Option<GraphSettings>,
}

/// Which forwards become CUDA graphs, and whose memory they take.
#[derive(Clone, Debug)]
pub struct GraphSettings {
    /// The bounds.
    pub limits: GraphLimits,
    /// The allocator's private pools.
    pub memory: Arc<dyn GraphMemory>,
}

/// Bounds of the graphs of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLimits {
    /// The forward of the same grids that is the one to be captured behind: 1 for the first.
    pub min_hits: usize,
    /// Graphs at once; the one whose last use is longest ago goes first.
    pub max_graphs: usize,
    /// Tokens of a forward that is captured.
    pub max_tokens: usize,
    /// Device memory of all graphs.
    pub max_bytes: usize,
}

impl GraphLimits {
    /// Refuses a number out of its range, by its name in the Python API.
    pub fn check(&self) -> Result<()> {
        check([
            ("min_hits", self.min_hits, GRAPH_HITS),
            ("max_graphs", self.max_graphs, GRAPHS),
            ("max_tokens", self.max_tokens, GRAPH_TOKENS),
            ("max_bytes", self.max_bytes, GRAPH_BYTES),
        ])
    }
}

/// How much runs and waits at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Worker threads, which share one copy of the weights.
    pub replicas: usize,
    /// Images that wait for preprocessing, in it, or for the tower; further ones wait outside.
    pub queue_depth: usize,
    /// Tokens of those images.
    pub queue_tokens: usize,
    /// Bytes of their sources and patch matrices.
    pub queue_bytes: usize,
    /// Images in one forward; with 1, a result cannot depend on its neighbours.
    pub batch_images: usize,
    /// Tokens in one forward of several images.
    pub batch_tokens: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            replicas: 1,
            queue_depth: 64,
            queue_tokens: 1 << 18,
            queue_bytes: 1 << 30,
            batch_images: 1,
            batch_tokens: 1 << 14,
        }
    }
}

impl Load {
    /// Refuses a number out of its range, by its name in the Python API.
    pub(super) fn check(&self) -> Result<()> {
        check([
            ("replicas_per_gpu", self.replicas, REPLICAS),
            ("queue_depth", self.queue_depth, QUEUE_DEPTH),
            ("queue_tokens", self.queue_tokens, QUEUE_TOKENS),
            ("queue_bytes", self.queue_bytes, QUEUE_BYTES),
            ("max_batch_images", self.batch_images, BATCH_IMAGES),
            ("max_batch_tokens", self.batch_tokens, BATCH_TOKENS),
        ])
    }
}

fn check<const N: usize>(numbers: [(&str, usize, RangeInclusive<usize>); N]) -> Result<()> {
    for (name, value, range) in numbers {
        if !range.contains(&value) {
            let (least, most) = range.into_inner();
            return Err(Error::argument(format!("{name} is {value}: it must be from {least} to {most}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        assert!(Load::default().check().is_ok());
        let error = Load { replicas: 33, ..Load::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "replicas_per_gpu is 33: it must be from 1 to 32");
        assert!(Load { queue_depth: 0, ..Load::default() }.check().is_err());
    }
}
