//! What is wrong with a tower's weights, gathered so that one error tells all of it.

use crate::{Error, Result};

/// Findings of each kind that an error spells out; the rest is counted.
const LISTED: usize = 8;

/// A kind of finding, in the order in which an error tells them.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    Shard,
    Quantised,
    Missing,
    Shape,
    Mixed,
    Damaged,
    Unexpected,
}

const KINDS: [(Fault, &str); 7] = [
    (Fault::Shard, "unusable shards"),
    (Fault::Quantised, "quantised or not float32, bfloat16 or float16"),
    (Fault::Missing, "missing"),
    (Fault::Shape, "of another shape"),
    (Fault::Mixed, "in parts of different types"),
    (Fault::Damaged, "damaged"),
    (Fault::Unexpected, "unexpected"),
];

/// Findings by kind: how many, and the first few.
#[derive(Default)]
pub(super) struct Faults([(usize, Vec<String>); KINDS.len()]);

impl Faults {
    pub(super) fn add(&mut self, kind: Fault, text: impl FnOnce() -> String) {
        if let Some((count, texts)) = self.0.get_mut(kind as usize) {
            *count += 1;
            if texts.len() < LISTED {
                texts.push(text());
            }
        }
    }

    /// An error that lists the findings, if there are any.
    pub(super) fn into_result(self) -> Result<()> {
        let mut parts = Vec::new();
        for ((_, title), (count, texts)) in KINDS.iter().zip(&self.0) {
            if *count > 0 {
                let more = match count - texts.len() {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                parts.push(format!("{count} {title}: {}{more}", texts.join(", ")));
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        Err(Error::checkpoint(format!("the weights do not fit the tower: {}", parts.join("; "))))
    }
}
