//! The header of a safetensors file: eight bytes of length, then a JSON object that places every tensor.
//!
//! The `safetensors` crate's reader wants the whole file in memory, knows a closed list of element types and lets a
//! tensor named twice pass; so the header is read here, by itself, and only it.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::file::failure;
use super::json::{Complaint, parse, quoted};
use crate::{Dtype, Error, Result};

/// Longest header, as in the format's own definition.
const HEADER_BYTES: u64 = 100_000_000;

/// Most tensors in one checkpoint. The largest published mixtures of experts have about 500,000.
pub(super) const TENSORS: usize = 2_000_000;

/// Most dimensions of one tensor.
const RANK: usize = 16;

/// Bytes of the number that says how long the header is.
const PREFIX_BYTES: u64 = 8;

/// How the elements of a tensor are stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// As a type that a tower can load.
    Float(Dtype),
    /// As another type: the format's name of it, whatever it says.
    Other(Box<str>),
}

/// One tensor in a file.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) name: Box<str>,
    pub(super) storage: Storage,
    pub(super) shape: Box<[usize]>,
    /// First byte, counted from the beginning of the file.
    pub(super) start: u64,
    /// Bytes in the file, which lie wholly inside it.
    pub(super) len: u64,
}

impl Stored {
    /// The bytes that element type and shape ask for; `None` if their number overflows or the type is not known.
    pub(super) fn wanted_len(&self) -> Option<u64> {
        let Storage::Float(dtype) = &self.storage else { return None };
        self.shape
            .iter()
            .try_fold(dtype.size() as u64, |bytes, &dim| bytes.checked_mul(u64::try_from(dim).ok()?))
    }
}

/// Reads the header of the file `name`, which is `file_len` bytes long. The tensors come sorted by name; no two
/// have one name, and their data fills the rest of the file without overlap or hole.
pub(super) fn read(file: &File, file_len: u64, name: &str) -> Result<Vec<Stored>> {
    let refuse = |sentence: String| Error::checkpoint(format!("{name}: {sentence}"));
    if file_len < PREFIX_BYTES {
        return Err(refuse(format!("is {file_len} bytes long, too short for a safetensors file")));
    }
    let mut prefix = [0; PREFIX_BYTES as usize];
    file.read_exact_at(&mut prefix, 0).map_err(|error| failure(name, "read", &error))?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > HEADER_BYTES {
        return Err(refuse(format!(
            "announces a header of {header_len} bytes, above the limit of {HEADER_BYTES}: this is not a safetensors \
             file, or it is damaged"
        )));
    }
    let data_start = PREFIX_BYTES + header_len;
    if data_start > file_len {
        return Err(refuse(format!(
            "is {file_len} bytes long, but its header alone takes {data_start}: the file is cut short"
        )));
    }
    let len = usize::try_from(header_len).map_err(|_| refuse("has a header too long".to_owned()))?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, PREFIX_BYTES).map_err(|error| failure(name, "read", &error))?;
    let complaint = Complaint::default();
    let label = format!("{name}: header");
    let mut tensors = parse(&label, &bytes, Entries { complaint: &complaint }, &complaint)?;
    drop(bytes);
    place(&mut tensors, data_start, file_len).map_err(refuse)?;
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(twin) = tensors.windows(2).find_map(|pair| match pair {
        [a, b] if a.name == b.name => Some(&a.name),
        _ => None,
    }) {
        return Err(refuse(format!("holds the tensor {} twice", quoted(twin))));
    }
    Ok(tensors)
}

/// Checks that the tensors fill the file from `data_start` to `file_len`, and makes their places count from the
/// beginning of the file.
fn place(tensors: &mut [Stored], data_start: u64, file_len: u64) -> std::result::Result<(), String> {
    tensors.sort_unstable_by_key(|tensor| (tensor.start, tensor.len));
    let mut end = data_start;
    for tensor in tensors {
        let start =
            tensor.start.checked_add(data_start).filter(|start| start.checked_add(tensor.len).is_some());
        let start = start.ok_or_else(|| format!("places {} beyond any file", quoted(&tensor.name)))?;
        if start < end {
            return Err(format!("places {} over another tensor", quoted(&tensor.name)));
        }
        if start > end {
            return Err(format!("leaves {} bytes unused before {}", start - end, quoted(&tensor.name)));
        }
        tensor.start = start;
        end = start + tensor.len;
    }
    match end {
        end if end > file_len => Err(format!(
            "is {file_len} bytes long, but its tensors reach to {end}: the file is cut short, load it again"
        )),
        end if end < file_len => Err(format!("holds {} bytes after its last tensor", file_len - end)),
        _ => Ok(()),
    }
}

/// The header's object as a list, in the file's order.
struct Entries<'a> {
    complaint: &'a Complaint,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = Vec<Stored>;

    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Vec<Stored>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() >= TENSORS {
                return Err(self.complaint.stop(format!("holds more than {TENSORS} tensors, the limit")));
            }
            let entry = map.next_value::<Entry>().ok().and_then(|entry| entry.stored(&name));
            entries.push(entry.ok_or_else(|| {
                self.complaint.stop(format!(
                    "the entry of {} is not an element type, a shape of at most {RANK} dimensions and two offsets \
                     in order",
                    quoted(&name)
                ))
            })?);
        }
        Ok(entries)
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

impl Entry {
    fn stored(self, name: &str) -> Option<Stored> {
        let [start, end] = self.data_offsets;
        let storage = match self.dtype.as_str() {
            "F32" => Storage::Float(Dtype::F32),
            "BF16" => Storage::Float(Dtype::Bf16),
            "F16" => Storage::Float(Dtype::F16),
            other => Storage::Other(other.into()),
        };
        Some(Stored { name: name.into(), storage, shape: self.shape.0, start, len: end.checked_sub(start)? })
    }
}

/// Dimensions, of bounded number.
struct Shape(Box<[usize]>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = items.next_element()? {
                    if dims.len() >= RANK {
                        return Err(A::Error::custom(""));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims.into()))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}
