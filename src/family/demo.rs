//! Small checkpoints with seeded random weights in a family's published layout.

use std::path::Path;

use super::{Options, find};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::demo::{default_scale, write_demo};
use crate::{Dtype, Error, Result};

/// Writes a checkpoint of the family `name` into the empty or new folder `root`: bfloat16 weights from `seed`.
///
/// The weights are random: the embeddings mean nothing, they show that everything runs.
pub fn make_checkpoint(name: &str, root: &Path, seed: u64) -> Result<()> {
    let entry = find(name)?;
    let demo = (entry.demo)();
    let checkpoint = Checkpoint::from_texts(&demo.files)?;
    let family = (entry.open)(&checkpoint, Options::default())?;
    let files: Vec<_> = demo.files.iter().map(|(file, text)| (*file, (*text).to_owned())).collect();
    let spellings = family.weight_names();
    let usual = spellings.first().ok_or_else(|| Error::internal("the family names no tensors"))?;
    write_demo(root, &files, demo.prefix, &usual.specs, seed, Dtype::Bf16, &default_scale)
}
