//! Finding one tower's tensors among a checkpoint's, and all reasons why they do not fit.

use std::collections::{BTreeMap, HashSet};

use super::fault::{Fault, Faults};
use super::header::{Storage, Stored};
use super::index::{Shard, Weights};
use super::json::quoted;
use super::selection::{Selection, Slot, Source};
use crate::{Error, Result};

/// A tensor that a tower wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name without the checkpoint's prefix.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// The tensor `name` of dimensions `shape`.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
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
    let wanted: HashSet<&str> = specs.iter().map(|spec| &*spec.name).collect();
    if wanted.len() != specs.len() {
        return Err(Error::internal("a tower asks for one tensor twice"));
    }
    let mut faults = Faults::default();
    let mut used = HashSet::new();
    let mut by_shard: BTreeMap<u32, Vec<(String, &TensorSpec)>> = BTreeMap::new();
    for spec in specs {
        let names = prefixes.iter().map(|prefix| format!("{prefix}{}", spec.name));
        match names.into_iter().find_map(|name| Some((weights.position(&name)?, name))) {
            Some((position, name)) => {
                used.insert(position);
                by_shard.entry(weights.shard_of(position).unwrap_or(0)).or_default().push((name, spec));
            }
            None => faults.add(Fault::Missing, || missing(prefixes, spec)),
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
    let mut selection = Selection::default();
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
        let source = selection.sources.len();
        for (name, spec) in found {
            match shard.find(&name) {
                Some(stored) => {
                    if let Some(slot) = fit(stored, spec, source, &mut faults) {
                        selection.slots.push(slot);
                    }
                }
                None => faults.add(Fault::Missing, || format!("{} (not in {label})", quoted(&name))),
            }
        }
        let file = shard.file.try_clone().map_err(|error| super::file::failure(label, "opened", &error))?;
        selection.sources.push(Source { name: label.to_owned(), file });
    }
    faults.into_result()?;
    selection.slots.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(selection)
}

/// The place of a wanted tensor, if it is as wanted.
fn fit(stored: &Stored, spec: &TensorSpec, source: usize, faults: &mut Faults) -> Option<Slot> {
    let dtype = match &stored.storage {
        Storage::Float(dtype) => *dtype,
        Storage::Other(other) => {
            faults.add(Fault::Quantised, || format!("{} is {}", quoted(&stored.name), quoted(other)));
            return None;
        }
    };
    if *stored.shape != *spec.shape {
        faults.add(Fault::Shape, || {
            format!("{} is {:?} instead of {:?}", quoted(&stored.name), stored.shape, spec.shape)
        });
        return None;
    }
    if stored.wanted_len() != Some(stored.len) {
        faults.add(Fault::Damaged, || {
            format!("{} has {} bytes, which its shape and type contradict", quoted(&stored.name), stored.len)
        });
        return None;
    }
    let shape = spec.shape.clone();
    Some(Slot { name: spec.name.clone(), dtype, shape, source, start: stored.start, len: stored.len })
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
