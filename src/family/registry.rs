//! All families, by name. Adding one adds a line here.

use std::path::Path;

use super::{
    Choice, Family, Modality, Options, deepseek41, detect, glm53, inkling, kimi, muse, muse_audio,
    nemotron35, qwen,
};
use crate::checkpoint::Checkpoint;
use crate::{Error, Result};

/// How a family is recognised and opened.
pub struct Entry {
    /// The name in the public API.
    pub name: &'static str,
    /// What it reads.
    pub modality: Modality,
    /// `model_type` values of config.json that belong to it.
    pub model_types: &'static [&'static str],
    /// `architectures` values of config.json that belong to it.
    pub architectures: &'static [&'static str],
    /// Beginnings of model ids, lower case, that belong to it.
    pub model_ids: &'static [&'static str],
    /// Options beside the backend that it has.
    pub choices: &'static [Choice],
    /// Reads the configuration.
    pub open: fn(&Checkpoint, Options) -> Result<Box<dyn Family>>,
    /// Files of a small checkpoint in the published layout, for `make-checkpoint`.
    pub demo: fn() -> Demo,
}

/// A small checkpoint in the published layout: its JSON files and the spelling of its tensors.
pub struct Demo {
    /// File name and content.
    pub files: Vec<(&'static str, &'static str)>,
    /// What stands before every tensor's name.
    pub prefix: &'static str,
}

/// Every family of this build.
pub static REGISTRY: &[&Entry] = &[
    &deepseek41::ENTRY,
    &glm53::ENTRY,
    &inkling::ENTRY,
    &kimi::ENTRY,
    &muse_audio::ENTRY,
    &muse::VISION,
    &muse::GLIMMER,
    &nemotron35::ENTRY,
    &qwen::QWEN2_VL,
    &qwen::QWEN2_5_VL,
    &qwen::QWEN3_VL,
    &qwen::QWEN35,
];

/// A name, the family it belongs to, and its demonstration.
pub type Variant = (&'static str, &'static Entry, fn() -> Demo);

/// Demonstration checkpoints beside those that are called like their family: name, family, files.
pub static VARIANTS: &[Variant] = &[("kimi_k25", &kimi::ENTRY, kimi::k25_demo)];

/// The demonstration checkpoint called `name`, and its family.
pub fn demo(name: &str) -> Result<(&'static Entry, Demo)> {
    match VARIANTS.iter().find(|(variant, ..)| *variant == name) {
        Some((_, entry, demo)) => Ok((*entry, demo())),
        None => find(name).map(|entry| (entry, (entry.demo)())),
    }
}

/// The entry of the family called `name`.
pub fn find(name: &str) -> Result<&'static Entry> {
    REGISTRY.iter().copied().find(|entry| entry.name == name).ok_or_else(|| {
        let known: Vec<_> = REGISTRY.iter().map(|entry| entry.name).collect();
        Error::checkpoint(format!("family {name:?} is unknown; this build has {}", known.join(", ")))
    })
}

/// Opens the checkpoint folder `root` of the model `model` as `family`, or as the family that it shows to be.
pub fn open(
    root: &Path,
    model: &str,
    family: Option<&str>,
    options: Options,
) -> Result<(Checkpoint, Box<dyn Family>)> {
    let checkpoint = Checkpoint::open(root)?;
    let entry = detect::detect(checkpoint.config(), model, family)?;
    options.check(entry.name, entry.choices)?;
    let family = (entry.open)(&checkpoint, options)?;
    Ok((checkpoint, family))
}
