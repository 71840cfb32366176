//! Strict JSON: UTF-8, no NaN, no key twice, bounded depth, errors that are sentences.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::file;
use crate::{Error, Result};

/// Deepest nesting of a configuration file. Published files stay below 10.
const DEPTH: usize = 64;

/// The longest piece of foreign text that an error repeats, in characters. Names of tensors rarely reach it.
const QUOTED: usize = 100;

/// A configuration file that holds one JSON object.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) name: &'static str,
    pub(super) value: Value,
}

impl Document {
    /// Reads the file `name` of at most `limit` bytes; `None` if there is none.
    pub(super) fn read(root: &Path, name: &'static str, limit: u64) -> Result<Option<Self>> {
        let Some(bytes) = file::read(root, name, limit)? else { return Ok(None) };
        Self::parse(name, &bytes).map(Some)
    }

    /// The JSON object in `bytes`, which errors call `name`.
    pub(super) fn parse(name: &'static str, bytes: &[u8]) -> Result<Self> {
        let complaint = Complaint::default();
        let value = parse(name, bytes, Strict { complaint: &complaint, depth: 0 }, &complaint)?;
        match value {
            Value::Object(_) => Ok(Self { name, value }),
            other => Err(Error::checkpoint(format!("{name}: must be an object, got {}", shown(&other)))),
        }
    }
}

/// A sentence that a visitor leaves behind, since serde's own errors can carry no type of ours.
#[derive(Default)]
pub(super) struct Complaint(RefCell<Option<String>>);

impl Complaint {
    /// Keeps the first sentence and gives an error that ends the parse.
    pub(super) fn stop<E: serde::de::Error>(&self, sentence: String) -> E {
        self.0.borrow_mut().get_or_insert(sentence);
        E::custom("")
    }
}

/// Parses all of `bytes` with `seed`; errors name the file `name`.
pub(super) fn parse<'de, S: DeserializeSeed<'de>>(
    name: &str,
    bytes: &'de [u8],
    seed: S,
    complaint: &Complaint,
) -> Result<S::Value> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Error::checkpoint(format!("{name}: is not UTF-8 text: byte {} is wrong", error.valid_up_to()))
    })?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = seed.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| {
        let sentence = complaint.0.take().unwrap_or_else(|| syntax(text, &error));
        Error::checkpoint(format!("{name}: {sentence}"))
    })
}

/// A sentence on a syntax error, with the word at its place.
fn syntax(text: &str, error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "ends in the middle of a JSON value: the file is cut short or empty".to_owned();
    }
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or("");
    let column = error.column().saturating_sub(1);
    let at = (0..=column.min(line.len())).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
    let (before, after) = line.split_at(at);
    let inside = |c: &char| c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
    let mut word: Vec<char> = before.chars().rev().take_while(inside).take(QUOTED).collect();
    word.reverse();
    word.extend(after.chars().take_while(inside).take(QUOTED));
    let word = String::from_iter(word);
    let place = format!("line {}, column {}", error.line(), error.column());
    match word.trim_start_matches('-') {
        "NaN" | "Infinity" => format!("holds {word} at {place}, which is not JSON: write a finite number"),
        "" => format!("is not valid JSON at {place}"),
        _ => format!("is not valid JSON at {place}, near {}", quoted(&word)),
    }
}

/// Foreign text in quotes, escaped and cut to a bearable length.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or("")),
        None => format!("{text:?}"),
    }
}

/// A value as an error shows it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Builds a [`Value`] and refuses what `serde_json` would let pass in silence.
#[derive(Clone, Copy)]
struct Strict<'a> {
    complaint: &'a Complaint,
    depth: usize,
}

impl Strict<'_> {
    fn deeper<E: serde::de::Error>(self) -> std::result::Result<Self, E> {
        if self.depth >= DEPTH {
            return Err(self.complaint.stop(format!("nests values deeper than {DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom(""))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(self
                    .complaint
                    .stop(format!("holds the key {} twice in one object", quoted(&key))));
            }
            let value = entries.next_value_seed(inner)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
