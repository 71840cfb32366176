//! Which family a checkpoint belongs to. Contradiction and ambiguity are errors that say what was seen.

use super::registry::{Entry, REGISTRY, find};
use crate::checkpoint::Node;
use crate::{Error, Result};

/// Architectures that config.json may list at most.
const MAX_ARCHITECTURES: usize = 16;

/// The family of a checkpoint with this config.json, served under the name `model`.
///
/// config.json decides; a model id or an explicit `family` that says otherwise is an error.
pub fn detect(config: Node<'_>, model: &str, family: Option<&str>) -> Result<&'static Entry> {
    let named = family.map(find).transpose()?;
    let by_id = unique(|entry| id_matches(entry, model));
    let model_type = config.opt_str("model_type")?;
    let architectures = match config.get("architectures") {
        Some(_) => config.items("architectures", 0..=MAX_ARCHITECTURES)?,
        None => Vec::new(),
    };
    let architecture = architectures.first().map(|item| item.as_str()).transpose()?;
    let by_type = model_type.and_then(|seen| unique(|entry| entry.model_types.contains(&seen)));
    let by_architecture = architecture.and_then(|seen| unique(|entry| entry.architectures.contains(&seen)));

    let seen = format!(
        "config.json has model_type {} and architecture {}",
        model_type.map_or("(absent)".into(), |seen| format!("{seen:?}")),
        architecture.map_or("(absent)".into(), |seen| format!("{seen:?}"))
    );
    if let (Some(a), Some(b)) = (by_type, by_architecture)
        && a.name != b.name
    {
        return Err(Error::checkpoint(format!(
            "{seen}, which are of different families: {} and {}",
            a.name, b.name
        )));
    }
    let shown = by_type.or(by_architecture);
    if let (None, Some(named)) = (shown, named) {
        let stranger = model_type.is_some() || architecture.is_some();
        return if stranger {
            Err(Error::checkpoint(format!(
                "{seen}, which is not of the family {:?} that was asked for",
                named.name
            )))
        } else {
            Ok(named)
        };
    }
    let Some(shown) = shown else {
        return match by_id {
            Some(entry) if model_type.is_none() && architecture.is_none() => Ok(entry),
            _ => {
                let known: Vec<_> = REGISTRY.iter().map(|entry| entry.name).collect();
                Err(Error::checkpoint(format!("{seen}: no family of this build ({})", known.join(", "))))
            }
        };
    };
    for (what, other) in [("the family asked for", named), ("the model id", by_id)] {
        if let Some(other) = other
            && !serves(other, model_type, architecture)
        {
            return Err(Error::checkpoint(format!(
                "{seen}, which is of the family {:?}, but {what} says {:?}",
                shown.name, other.name
            )));
        }
    }
    Ok(named.unwrap_or(shown))
}

/// The only entry for which `matches` holds; none where several do.
fn unique(matches: impl Fn(&Entry) -> bool) -> Option<&'static Entry> {
    let mut found = REGISTRY.iter().copied().filter(|entry| matches(entry));
    match (found.next(), found.next()) {
        (Some(entry), None) => Some(entry),
        _ => None,
    }
}

/// Several families may read one checkpoint, such as the image and the audio tower of one model.
fn serves(entry: &Entry, model_type: Option<&str>, architecture: Option<&str>) -> bool {
    model_type.is_some_and(|seen| entry.model_types.contains(&seen))
        || architecture.is_some_and(|seen| entry.architectures.contains(&seen))
}

fn id_matches(entry: &Entry, model: &str) -> bool {
    let model = model.to_ascii_lowercase();
    entry.model_ids.iter().any(|start| model.starts_with(start))
}
