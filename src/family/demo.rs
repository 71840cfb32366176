//! Small checkpoints with seeded random weights in a family's published layout.

use std::path::Path;

use super::{Options, find};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::demo::{default_scale, write_demo};
use crate::{Dtype, Error, Result};

/// Writes a checkpoint of the family `name` into the empty or new folder `root`: bfloat16 weights from `seed`.
///
/// `files` (name, JSON text) stand in for the family's own of the same names: a `config.json` of other sizes gives
/// another tower. The weights are random: the embeddings mean nothing, they show that everything runs.
pub fn make_checkpoint(name: &str, root: &Path, seed: u64, files: &[(String, String)]) -> Result<()> {
    let entry = find(name)?;
    let demo = (entry.demo)();
    let known = |file: &str| demo.files.iter().any(|(own, _)| *own == file);
    if let Some((stranger, _)) = files.iter().find(|(file, _)| !known(file)) {
        return Err(Error::argument(format!("a checkpoint of {name} has no file {stranger:?}")));
    }
    let given = |file: &str| files.iter().find(|(name, _)| name == file).map(|(_, text)| text.as_str());
    let texts: Vec<_> = demo.files.iter().map(|(file, own)| (*file, given(file).unwrap_or(own))).collect();
    let family = (entry.open)(&Checkpoint::from_texts(&texts)?, Options::default())?;
    let spellings = family.weight_names();
    let usual = spellings.first().ok_or_else(|| Error::internal("the family names no tensors"))?;
    write_demo(root, &texts, demo.prefix, &usual.specs, seed, Dtype::Bf16, &default_scale)
}
