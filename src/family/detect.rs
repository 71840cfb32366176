//! Which family a checkpoint belongs to. Contradiction and ambiguity are errors that say what was seen.

use super::registry::{Entry, REGISTRY, find};
use crate::checkpoint::Node;
use crate::{Error, Result};

/// Architectures that config.json may list at most.
const MAX_ARCHITECTURES: usize = 16;

/// The family of a checkpoint with this config.json, served under the name `model`.
///
/// config.json decides; a model id or an explicit `family` that says otherwise is an error. Several families may read
/// one checkpoint, such as the image and the audio tower of one model: then `family` must say which.
pub fn detect(config: Node<'_>, model: &str, family: Option<&str>) -> Result<&'static Entry> {
    let named = family.map(find).transpose()?;
    let by_id = matching(|entry| id_matches(entry, model));
    let model_type = config.opt_str("model_type")?;
    let architectures = match config.get("architectures") {
        Some(_) => config.items("architectures", 0..=MAX_ARCHITECTURES)?,
        None => Vec::new(),
    };
    let architecture = architectures.first().map(|item| item.as_str()).transpose()?;
    if model_type.is_none() && architecture.is_none() {
        return named.map_or_else(|| only(&by_id, "the model id"), Ok);
    }

    let shown_as = |seen: Option<&str>| seen.map_or("(absent)".into(), |seen| format!("{seen:?}"));
    let seen = format!(
        "config.json has model_type {} and architecture {}",
        shown_as(model_type),
        shown_as(architecture)
    );
    let of_type = matching(|entry| model_type.is_some_and(|seen| entry.model_types.contains(&seen)));
    let of_architecture =
        matching(|entry| architecture.is_some_and(|seen| entry.architectures.contains(&seen)));
    let shown: Vec<_> = match (&*of_type, &*of_architecture) {
        ([], one) | (one, []) => one.to_vec(),
        (a, b) => a.iter().copied().filter(|entry| among(entry, b)).collect(),
    };
    if shown.is_empty() {
        return Err(Error::checkpoint(match (&*of_type, &*of_architecture) {
            ([a, ..], [b, ..]) => {
                format!("{seen}, which are of different families: {} and {}", a.name, b.name)
            }
            _ => format!("{seen}: no family of this build ({})", names(REGISTRY)),
        }));
    }
    if let Some(named) = named
        && !among(named, &shown)
    {
        return Err(Error::checkpoint(format!(
            "{seen}, which is of the family {}, not of {} that was asked for",
            names(&shown),
            named.name
        )));
    }
    if !by_id.is_empty() && !by_id.iter().any(|entry| among(entry, &shown)) {
        return Err(Error::checkpoint(format!(
            "{seen}, which is of the family {}, but the model id says {}",
            names(&shown),
            names(&by_id)
        )));
    }
    named.map_or_else(|| only(&shown, &seen), Ok)
}

/// The one entry of `entries`; `seen` is what showed them.
fn only(entries: &[&'static Entry], seen: &str) -> Result<&'static Entry> {
    match entries {
        [] => Err(Error::checkpoint(format!(
            "config.json has neither model_type nor architectures, and the model id is of no family of this build: \
             name the family, one of {}",
            names(REGISTRY)
        ))),
        [entry] => Ok(entry),
        several => Err(Error::checkpoint(format!(
            "{seen}: this is of several families, name the one to use: {}",
            names(several)
        ))),
    }
}

fn matching(matches: impl Fn(&Entry) -> bool) -> Vec<&'static Entry> {
    REGISTRY.iter().copied().filter(|entry| matches(entry)).collect()
}

fn among(entry: &Entry, entries: &[&Entry]) -> bool {
    entries.iter().any(|other| other.name == entry.name)
}

fn names(entries: &[&Entry]) -> String {
    entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn id_matches(entry: &Entry, model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    entry.model_ids.iter().any(|start| model.starts_with(start))
}
