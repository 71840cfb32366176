//! Small checkpoints with seeded random weights in a family's published layout.

use std::path::Path;

use super::{Options, registry};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::demo::{default_scale, write_demo};
use crate::{Dtype, Error, Result};

/// Writes a checkpoint of the family or variant `name` into the empty or new folder `root`: bfloat16 weights from
/// `seed`. `replaced` files (name, text) stand in for those of the same names.
///
/// The weights are random: the embeddings mean nothing, they show that everything runs.
pub fn make_checkpoint(name: &str, root: &Path, seed: u64, replaced: &[(String, String)]) -> Result<()> {
    let (entry, demo) = registry::demo(name)?;
    let mut files: Vec<_> = demo.files.iter().map(|(file, text)| (*file, (*text).to_owned())).collect();
    for (name, text) in replaced {
        let Some((_, own)) = files.iter_mut().find(|(file, _)| file == name) else {
            return Err(Error::argument(format!("the demonstration of {} has no file {name:?}", entry.name)));
        };
        own.clone_from(text);
    }
    let texts: Vec<_> = files.iter().map(|(file, text)| (*file, &**text)).collect();
    let family = (entry.open)(&Checkpoint::from_texts(&texts)?, Options::default())?;
    let spellings = family.weight_names();
    let usual = spellings.first().ok_or_else(|| Error::internal("the family names no tensors"))?;
    write_demo(root, &texts, demo.prefix, &usual.specs, seed, Dtype::Bf16, &default_scale)
}
