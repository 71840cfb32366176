//! A checkpoint folder and its configuration files.

use std::path::{Path, PathBuf};

use super::json::Document;
use super::{Node, Weights};
use crate::{Error, Result};

/// Longest configuration file. Quantised releases list every module they skip and reach a few hundred kilobytes.
const CONFIG_BYTES: u64 = 8 << 20;

const CONFIG: &str = "config.json";
const PROCESSOR: &str = "processor_config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";

/// A checkpoint folder whose `config.json` is a JSON object.
///
/// Opening reads `config.json` and the processor files and nothing else. A fault in a processor file is reported
/// when that file is asked for, because not every family uses one.
#[derive(Debug)]
pub struct Checkpoint {
    root: PathBuf,
    config: Document,
    processor: Result<Option<Document>>,
    preprocessor: Result<Option<Document>>,
}

impl Checkpoint {
    /// Opens the folder `root`, whose path need not be UTF-8.
    ///
    /// # Errors
    /// `Checkpoint` if `root` is not a folder, or `config.json` is missing, too long, not UTF-8, not JSON (NaN and
    /// infinities are not), not an object, or has a key twice.
    pub fn open(root: &Path) -> Result<Self> {
        if !root.is_dir() {
            return Err(Error::checkpoint(format!("checkpoint {root:?} is not a folder that can be read")));
        }
        let config = Document::read(root, CONFIG, CONFIG_BYTES)?.ok_or_else(|| {
            Error::checkpoint(format!("checkpoint {root:?} has no {CONFIG}: give the folder that holds it"))
        })?;
        Ok(Self {
            root: root.to_owned(),
            config,
            processor: Document::read(root, PROCESSOR, CONFIG_BYTES),
            preprocessor: Document::read(root, PREPROCESSOR, CONFIG_BYTES),
        })
    }

    /// A checkpoint of configuration texts (file name, content) alone, without a folder or weights.
    ///
    /// # Errors
    /// `Checkpoint` if there is no `config.json` or a text is malformed.
    pub fn from_texts(files: &[(&str, &str)]) -> Result<Self> {
        let find = |name: &'static str| {
            let text = files.iter().find(|(file, _)| *file == name).map(|(_, text)| text);
            text.map(|text| Document::parse(name, text.as_bytes())).transpose()
        };
        let config = find(CONFIG)?.ok_or_else(|| Error::checkpoint(format!("there is no {CONFIG}")))?;
        Ok(Self {
            root: PathBuf::new(),
            config,
            processor: find(PROCESSOR),
            preprocessor: find(PREPROCESSOR),
        })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The object in `config.json`.
    pub fn config(&self) -> Node<'_> {
        Node::of(&self.config)
    }

    /// The image processor's settings, looked up as transformers does: the key `image_processor` of
    /// `processor_config.json` unless it is absent or null, else the whole of `preprocessor_config.json`.
    ///
    /// # Errors
    /// `Checkpoint` if a file that the lookup passes is malformed, or the key holds no object.
    pub fn image_processor(&self) -> Result<Option<Node<'_>>> {
        if let Some(document) = self.processor.as_ref().map_err(Error::clone)?
            && Node::of(document).get("image_processor").is_some()
        {
            return Node::of(document).object("image_processor").map(Some);
        }
        Ok(self.preprocessor.as_ref().map_err(Error::clone)?.as_ref().map(Node::of))
    }

    /// [`Checkpoint::image_processor`] of a family that cannot do without.
    ///
    /// # Errors
    /// As there, and `Checkpoint` if there is none.
    pub fn need_image_processor(&self) -> Result<Node<'_>> {
        self.image_processor()?.ok_or_else(|| {
            Error::checkpoint(format!("neither {PROCESSOR} nor {PREPROCESSOR} says how images are prepared"))
        })
    }

    /// The audio feature extractor's settings: the key `feature_extractor` of `processor_config.json`.
    ///
    /// # Errors
    /// `Checkpoint` if the file is malformed, or the key holds no object.
    pub fn feature_extractor(&self) -> Result<Option<Node<'_>>> {
        match self.processor.as_ref().map_err(Error::clone)? {
            Some(document) if Node::of(document).get("feature_extractor").is_some() => {
                Node::of(document).object("feature_extractor").map(Some)
            }
            _ => Ok(None),
        }
    }

    /// BLAKE3 over what the configuration files hold; key order and white space do not matter.
    pub fn identity(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new_derive_key("mm-libtorch-encoder configuration 1");
        let optional =
            [&self.processor, &self.preprocessor].map(|file| file.as_ref().ok().and_then(Option::as_ref));
        for document in [Some(&self.config)].into_iter().chain(optional) {
            let text = document.map(|document| document.value.to_string()).unwrap_or_default();
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        *hash.finalize().as_bytes()
    }

    /// The names of all tensors, from `model.safetensors` or else `model.safetensors.index.json`.
    ///
    /// # Errors
    /// `Checkpoint` if neither exists or the one that does is malformed.
    pub fn weights(&self) -> Result<Weights> {
        Weights::open(&self.root)
    }
}
