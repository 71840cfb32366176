//! A checkpoint folder for one test, with whatever it is told to hold.

use std::path::Path;

use mm_libtorch_encoder::checkpoint::{Checkpoint, Selection, TensorSpec};
use mm_libtorch_encoder::{ErrorKind, Result};
use serde_json::{Map, Value, json};

pub struct Folder(tempfile::TempDir);

impl Folder {
    /// A folder with an empty configuration.
    pub fn new() -> Self {
        let folder = Self::empty();
        folder.write("config.json", b"{}");
        folder
    }

    pub fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a new file. An old one is removed and not cut short, which some file systems answer with a slow flush.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(path, bytes).unwrap();
    }

    pub fn open(&self) -> Checkpoint {
        Checkpoint::open(self.path()).unwrap()
    }

    /// Selects `specs` under `model.visual.` or `visual.`, ignoring nothing.
    pub fn select(&self, specs: &[TensorSpec]) -> Result<Selection> {
        self.open().weights()?.select(&["model.visual.", "visual."], specs, &|_| false)
    }

    /// The sentence with which the weights, or the tensors `specs` in them, are refused.
    pub fn refusal(&self, specs: &[TensorSpec]) -> String {
        sentence(self.select(specs))
    }

    /// Writes an index of `(tensor, shard)`.
    pub fn index(&self, places: &[(&str, &str)]) {
        let map: Map<_, _> = places.iter().map(|(name, shard)| (name.to_string(), json!(shard))).collect();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        self.write("model.safetensors.index.json", index.to_string().as_bytes());
    }
}

/// A safetensors file with `header` and `data` as they are.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A header of `(name, dtype, shape, bytes)`, placed one after another.
pub fn header(tensors: &[(&str, &str, &[u64], u64)]) -> String {
    let mut end = 0;
    let entries: Map<String, Value> = tensors
        .iter()
        .map(|(name, dtype, shape, len)| {
            let start = end;
            end += len;
            (name.to_string(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}))
        })
        .collect();
    Value::Object(entries).to_string()
}

/// A whole file of such tensors, filled with zeros.
pub fn zeros(tensors: &[(&str, &str, &[u64], u64)]) -> Vec<u8> {
    let len: u64 = tensors.iter().map(|tensor| tensor.3).sum();
    file(&header(tensors), &vec![0; len as usize])
}

pub fn spec(name: &str, shape: &[usize]) -> TensorSpec {
    TensorSpec::new(name, shape)
}

/// The sentence of an error about the checkpoint, free of a library's own words.
pub fn sentence<T>(result: Result<T>) -> String {
    let error = result.err().expect("this must be refused");
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{text}");
    for foreign in ["invalid type", "expected value", "recursion", "missing field", "os error", "trailing"] {
        assert!(!text.contains(foreign), "a library's words in: {text}");
    }
    text
}
