//! Finding one tower's tensors among a checkpoint's, and all reasons why they do not fit.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::fault::{Fault, Faults};
use super::header::{Storage, Stored};
use super::index::{Shard, Weights};
use super::json::quoted;
use super::selection::{Piece, Selection, Slot, Source};
use crate::{Dtype, Error, Result};

/// A tensor that a tower wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name without the checkpoint's prefix.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where the checkpoint has it under other names: its parts, equal shares of the first axis, in order. Empty:
    /// it is whole, under its own name.
    stored: Vec<String>,
    /// Whether the tower does without it.
    optional: bool,
}

impl TensorSpec {
    /// The tensor `name` of dimensions `shape`.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), stored: Vec::new(), optional: false }
    }

    /// The same, and no fault if the checkpoint has none.
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same, stored as the tensors `names` (without prefix), which stand one below the other: q, k and v of
    /// one layer, say. The number of rows must be a multiple of theirs.
    pub fn stored_as(self, names: Vec<String>) -> Self {
        Self { stored: names, ..self }
    }

    /// The tensors that the checkpoint stores for this one.
    pub fn parts(&self) -> Vec<Self> {
        match &*self.stored {
            [] => vec![self.clone()],
            names => {
                let mut shape = self.shape.clone();
                if let Some(rows) = shape.first_mut() {
                    *rows /= names.len();
                }
                let part = |name: &String| Self { optional: self.optional, ..Self::new(name, shape.clone()) };
                names.iter().map(part).collect()
            }
        }
    }
}

/// Last parts of names that quantised formats put beside a weight.
const COMPANIONS: [&str; 14] = [
    "scale",
    "scales",
    "scale_inv",
    "scale_2",
    "zero_point",
    "packed",
    "qweight",
    "qzeros",
    "g_idx",
    "absmax",
    "quant_map",
    "quant_state",
    "SCB",
    "weight_shape",
];

pub(super) fn select(
    weights: &Weights,
    prefixes: &[&str],
    specs: &[TensorSpec],
    ignore: &dyn Fn(&str) -> bool,
) -> Result<Selection> {
    let parts: Vec<TensorSpec> = specs.iter().flat_map(TensorSpec::parts).collect();
    let wanted: HashSet<&str> = parts.iter().map(|part| &*part.name).collect();
    if wanted.len() != parts.len() {
        return Err(Error::internal("a tower asks for one tensor twice"));
    }
    let mut faults = Faults::default();
    let mut used = HashSet::new();
    let mut by_shard: BTreeMap<u32, Vec<(String, &TensorSpec)>> = BTreeMap::new();
    for part in &parts {
        match find(weights, prefixes, part) {
            Some((position, name)) => {
                used.insert(position);
                by_shard.entry(weights.shard_of(position).unwrap_or(0)).or_default().push((name, part));
            }
            None if part.optional => {}
            None => faults.add(Fault::Missing, || missing(prefixes, part)),
        }
    }
    let surplus = Surplus { wanted: &wanted, ignore };
    for prefix in prefixes {
        for (position, name) in weights.under(prefix) {
            if used.insert(position) {
                surplus.judge(name, prefix, &mut faults);
            }
        }
    }
    let mut sources = Vec::new();
    let mut placed = HashMap::new();
    for (number, found) in by_shard {
        let label = weights.shard_name(number);
        let opened;
        let shard = match weights.single() {
            Some(single) => single,
            None => match weights.shard(number) {
                Ok(shard) => {
                    opened = shard;
                    &opened
                }
                Err(error) => {
                    faults.add(Fault::Shard, || format!("{error} ({} wanted tensors)", found.len()));
                    continue;
                }
            },
        };
        unlisted(weights, shard, prefixes, &surplus, &mut faults);
        for (name, part) in found {
            match shard.find(&name) {
                Some(stored) => {
                    if let Some((dtype, piece)) = fit(stored, part, sources.len(), &mut faults) {
                        placed.insert(&*part.name, Placed { dtype, piece, name });
                    }
                }
                None => faults.add(Fault::Missing, || format!("{} (not in {label})", quoted(&name))),
            }
        }
        let file = shard.file.try_clone().map_err(|error| super::file::failure(label, "opened", &error))?;
        sources.push(Source { name: label.to_owned(), file });
    }
    let slots = specs.iter().filter_map(|spec| assemble(spec, &placed, &mut faults)).collect();
    faults.into_result()?;
    Ok(Selection::new(sources, slots))
}

/// How many of `specs` a checkpoint has in full, by their names alone.
pub(super) fn present(weights: &Weights, prefixes: &[&str], specs: &[TensorSpec]) -> usize {
    let whole = |spec: &&TensorSpec| spec.parts().iter().all(|part| find(weights, prefixes, part).is_some());
    specs.iter().filter(whole).count()
}

/// The place and name of `part` under the first prefix that has it.
fn find(weights: &Weights, prefixes: &[&str], part: &TensorSpec) -> Option<(usize, String)> {
    let names = prefixes.iter().map(|prefix| format!("{prefix}{}", part.name));
    names.into_iter().find_map(|name| Some((weights.position(&name)?, name)))
}

/// A stored tensor that is as wanted.
struct Placed {
    dtype: Dtype,
    piece: Piece,
    /// With the checkpoint's prefix.
    name: String,
}

/// One wanted tensor of its parts, if all of them fit.
fn assemble(spec: &TensorSpec, placed: &HashMap<&str, Placed>, faults: &mut Faults) -> Option<Slot> {
    let parts: Option<Vec<_>> = spec.parts().iter().map(|part| placed.get(&*part.name)).collect();
    let parts = parts?;
    let dtype = parts.first()?.dtype;
    if parts.iter().any(|part| part.dtype != dtype) {
        faults.add(Fault::Mixed, || quoted(&spec.name));
        return None;
    }
    let stored = parts.iter().map(|part| quoted(&part.name)).collect::<Vec<_>>().join(", ");
    let pieces: Vec<Piece> = parts.into_iter().map(|part| part.piece).collect();
    let len = pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len));
    Some(Slot { name: spec.name.clone(), stored, dtype, shape: spec.shape.clone(), pieces, len })
}

/// The place of a stored tensor, if it is as wanted.
fn fit(stored: &Stored, part: &TensorSpec, source: usize, faults: &mut Faults) -> Option<(Dtype, Piece)> {
    let dtype = match &stored.storage {
        Storage::Float(dtype) => *dtype,
        Storage::Other(other) => {
            faults.add(Fault::Quantised, || format!("{} is {}", quoted(&stored.name), quoted(other)));
            return None;
        }
    };
    if *stored.shape != *part.shape {
        faults.add(Fault::Shape, || {
            format!("{} is {:?} instead of {:?}", quoted(&stored.name), stored.shape, part.shape)
        });
        return None;
    }
    if stored.wanted_len() != Some(stored.len) {
        faults.add(Fault::Damaged, || {
            format!("{} has {} bytes, which its shape and type contradict", quoted(&stored.name), stored.len)
        });
        return None;
    }
    Some((dtype, Piece { source, start: stored.start, len: stored.len }))
}

fn missing(prefixes: &[&str], spec: &TensorSpec) -> String {
    match prefixes.first() {
        Some(prefix) => quoted(&format!("{prefix}{}", spec.name)),
        None => quoted(&spec.name),
    }
}

/// Tensors of an open shard that its index does not know would be silently lost.
fn unlisted(weights: &Weights, shard: &Shard, prefixes: &[&str], surplus: &Surplus, faults: &mut Faults) {
    if weights.single().is_some() {
        return;
    }
    for stored in &shard.tensors {
        let prefix = prefixes.iter().find(|prefix| stored.name.starts_with(**prefix));
        if let Some(prefix) = prefix
            && !weights.contains(&stored.name)
        {
            surplus.judge(&stored.name, prefix, faults);
        }
    }
}

/// Judges tensors that stand under the tower's prefixes and that it does not want.
struct Surplus<'a> {
    wanted: &'a HashSet<&'a str>,
    ignore: &'a dyn Fn(&str) -> bool,
}

impl Surplus<'_> {
    fn judge(&self, name: &str, prefix: &str, faults: &mut Faults) {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        if self.companion(bare) {
            faults.add(Fault::Quantised, || format!("{} stands beside a weight", quoted(name)));
        } else if !(self.ignore)(bare) {
            faults.add(Fault::Unexpected, || quoted(name));
        }
    }

    /// Whether `name` belongs to the quantised form of a wanted tensor, whatever the family ignores.
    fn companion(&self, name: &str) -> bool {
        let Some((module, last)) = name.rsplit_once('.') else { return false };
        let last = if last.starts_with("bitsandbytes__") { "quant_state" } else { last };
        let module = module.strip_suffix(".quant_state").unwrap_or(module);
        let beside = self.wanted.contains(module) || self.wanted.contains(&*format!("{module}.weight"));
        beside && COMPANIONS.iter().any(|end| last.ends_with(end))
    }
}
