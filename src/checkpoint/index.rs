//! The names of a checkpoint's tensors and the shards that hold them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use super::header::{self, Stored, TENSORS};
use super::json::{Complaint, parse, quoted};
use super::{Selection, TensorSpec, file, select};
use crate::{Error, Result};

/// Longest index. The largest published mixtures of experts need about 60 MB.
const INDEX_BYTES: u64 = 256 << 20;

/// Most shards of one checkpoint.
const SHARDS: usize = 10_000;

/// Longest name of a shard, as file systems have it.
const SHARD_NAME_BYTES: usize = 255;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint by name. Shards are opened when tensors in them are selected, and no others.
#[derive(Debug)]
pub struct Weights {
    root: PathBuf,
    /// Sorted by name, no name twice; the number is an index into `shards`.
    names: Vec<(Box<str>, u32)>,
    shards: Vec<String>,
    /// The only shard, where its header had to be read for the names.
    single: Option<Shard>,
}

/// An open shard with its header.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) file: File,
    /// Sorted by name.
    pub(super) tensors: Vec<Stored>,
}

impl Shard {
    /// Opens the shard `name`, a plain file name, in `root`.
    pub(super) fn open(root: &Path, name: &str) -> Result<Self> {
        let (file, len) = file::open(root, name)?.ok_or_else(|| {
            Error::checkpoint(format!(
                "{name}: does not exist, though the index places tensors of the tower in it"
            ))
        })?;
        let tensors = header::read(&file, len, name)?;
        Ok(Self { file, tensors })
    }

    /// The entry of the tensor `name`.
    pub(super) fn find(&self, name: &str) -> Option<&Stored> {
        self.tensors.binary_search_by(|entry| (*entry.name).cmp(name)).ok().and_then(|i| self.tensors.get(i))
    }
}

impl Weights {
    pub(super) fn open(root: &Path) -> Result<Self> {
        if let Some((file, len)) = file::open(root, SINGLE)? {
            let tensors = header::read(&file, len, SINGLE)?;
            let names = tensors.iter().map(|entry| (entry.name.clone(), 0)).collect();
            let single = Some(Shard { file, tensors });
            return Ok(Self { root: root.to_owned(), names, shards: vec![SINGLE.to_owned()], single });
        }
        let Some(bytes) = file::read(root, INDEX, INDEX_BYTES)? else {
            return Err(Error::checkpoint(format!(
                "checkpoint {root:?} has neither {SINGLE} nor {INDEX}: weights in another format are not read"
            )));
        };
        let complaint = Complaint::default();
        let Map { mut names, shards } = parse(INDEX, &bytes, IndexSeed(&complaint), &complaint)?;
        names.sort_unstable();
        if let Some(twin) = names.windows(2).find_map(|pair| match pair {
            [a, b] if a.0 == b.0 => Some(&a.0),
            _ => None,
        }) {
            return Err(Error::checkpoint(format!("{INDEX}: holds the tensor {} twice", quoted(twin))));
        }
        Ok(Self { root: root.to_owned(), names, shards, single: None })
    }

    /// All names, in the order of their bytes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(name, _)| &**name)
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Finds the tensors `specs` and opens the shards that hold them, and no others.
    ///
    /// `prefixes` are the accepted spellings of what stands before a tensor's name; for each tensor the first that
    /// is found counts. `ignore` gets a name without its prefix and says that it is known and not used. All other
    /// tensors under the prefixes must be wanted.
    ///
    /// # Errors
    /// One `Checkpoint` error lists all that is missing, unexpected, of another shape, quantised (an element type
    /// other than float32, bfloat16 and float16, or a scale beside a wanted weight), and damaged shards.
    pub fn select(
        &self,
        prefixes: &[&str],
        specs: &[TensorSpec],
        ignore: &dyn Fn(&str) -> bool,
    ) -> Result<Selection> {
        select::select(self, prefixes, specs, ignore)
    }

    /// How many of `specs` are there with all their parts, by their names alone. Opens nothing.
    pub fn present(&self, prefixes: &[&str], specs: &[TensorSpec]) -> usize {
        select::present(self, prefixes, specs)
    }

    /// The place of `name` among the names.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.names.binary_search_by(|(other, _)| (**other).cmp(name)).ok()
    }

    /// Names under `prefix` with their places.
    pub(super) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let first = self.names.partition_point(|(name, _)| &**name < prefix);
        let rest = self.names.iter().enumerate().skip(first);
        rest.map(|(i, (name, _))| (i, &**name)).take_while(move |(_, name)| name.starts_with(prefix))
    }

    /// The number of the shard that holds the name at `position`.
    pub(super) fn shard_of(&self, position: usize) -> Option<u32> {
        self.names.get(position).map(|(_, shard)| *shard)
    }

    /// File name of a shard.
    pub(super) fn shard_name(&self, shard: u32) -> &str {
        self.shards.get(shard as usize).map_or("", String::as_str)
    }

    /// Opens a shard, a second time if it is the only one.
    pub(super) fn shard(&self, shard: u32) -> Result<Shard> {
        Shard::open(&self.root, self.shard_name(shard))
    }

    /// The only shard, if there is but one file and no index.
    pub(super) fn single(&self) -> Option<&Shard> {
        self.single.as_ref()
    }
}

/// What the index says.
#[derive(Default)]
struct Map {
    names: Vec<(Box<str>, u32)>,
    shards: Vec<String>,
}

/// The whole index: an object whose key `weight_map` matters.
struct IndexSeed<'a>(&'a Complaint);

impl<'de> DeserializeSeed<'de> for IndexSeed<'_> {
    type Value = Map;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Map, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed<'_> {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Map, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if found.is_some() {
                return Err(self.0.stop("holds the key \"weight_map\" twice".to_owned()));
            }
            found = Some(map.next_value_seed(MapSeed(self.0))?);
        }
        found.ok_or_else(|| self.0.stop("has no \"weight_map\"".to_owned()))
    }
}

/// The map from tensor to shard.
struct MapSeed<'a>(&'a Complaint);

impl<'de> DeserializeSeed<'de> for MapSeed<'_> {
    type Value = Map;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Map, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MapSeed<'_> {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Map, A::Error> {
        let mut map = Map::default();
        let mut numbers = HashMap::new();
        while let Some(name) = entries.next_key::<Box<str>>()? {
            if map.names.len() >= TENSORS {
                return Err(self.0.stop(format!("holds more than {TENSORS} tensors, the limit")));
            }
            let file = entries.next_value::<String>().map_err(|_| {
                self.0.stop::<A::Error>(format!("weight_map.{} must be a file name", quoted(&name)))
            })?;
            let number = match numbers.get(&file) {
                Some(&number) => number,
                None => {
                    check_shard_name(&file).map_err(|sentence| self.0.stop::<A::Error>(sentence))?;
                    let number = map.shards.len() as u32;
                    if map.shards.len() >= SHARDS {
                        return Err(self.0.stop(format!("names more than {SHARDS} shards, the limit")));
                    }
                    map.shards.push(file.clone());
                    numbers.insert(file, number);
                    number
                }
            };
            map.names.push((name, number));
        }
        Ok(map)
    }
}

/// A shard is a file in the checkpoint's own folder; the Hugging Face cache makes it a link, which is followed.
fn check_shard_name(name: &str) -> std::result::Result<(), String> {
    let plain = !name.contains(['/', '\\', '\0']) && name.len() <= SHARD_NAME_BYTES && !name.starts_with('.');
    if plain && name.ends_with(".safetensors") {
        return Ok(());
    }
    Err(format!("names the shard {}, which is not the plain name of a .safetensors file", quoted(name)))
}
