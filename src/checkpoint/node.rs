//! Values of a configuration file, asked for by key, form and range.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::json::{Document, quoted, shown};
use crate::{Error, Result};

/// A JSON value that knows its file and path, so that an error reads
/// `config.json: vision_config.depth must be an integer from 1 to 256, got "x"`.
///
/// A key that holds null counts as absent. Numbers are never taken from strings or booleans, and integers never
/// from `14.0`.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    document: &'a Document,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn of(document: &'a Document) -> Self {
        Self { document, value: &document.value }
    }

    /// The value itself.
    pub fn raw(self) -> &'a Value {
        self.value
    }

    /// The value under `key`; `None` if this is no object, or the key is absent or null.
    pub fn get(self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Self { value, ..self })
    }

    /// The value under `key`, which must be there.
    pub fn need(self, key: &str) -> Result<Self> {
        self.get(key).ok_or_else(|| Error::checkpoint(format!("{} is missing", self.child(key))))
    }

    /// The object under `key`.
    pub fn object(self, key: &str) -> Result<Self> {
        let found = self.need(key)?;
        if found.value.is_object() { Ok(found) } else { Err(found.wrong("an object")) }
    }

    /// The integer under `key`, within `range`.
    pub fn u32(self, key: &str, range: RangeInclusive<u32>) -> Result<u32> {
        self.need(key)?.as_u32(range)
    }

    /// The integer under `key`, within `range`; `None` if absent.
    pub fn opt_u32(self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>> {
        self.get(key).map(|found| found.as_u32(range)).transpose()
    }

    /// The integer under `key`, within `range`; `default` if absent.
    pub fn u32_or(self, key: &str, default: u32, range: RangeInclusive<u32>) -> Result<u32> {
        Ok(self.opt_u32(key, range)?.unwrap_or(default))
    }

    /// The number under `key`, within `range`.
    pub fn f64(self, key: &str, range: RangeInclusive<f64>) -> Result<f64> {
        self.need(key)?.as_f64(range)
    }

    /// The number under `key`, within `range`; `default` if absent.
    pub fn f64_or(self, key: &str, default: f64, range: RangeInclusive<f64>) -> Result<f64> {
        self.get(key).map_or(Ok(default), |found| found.as_f64(range))
    }

    /// The boolean under `key`; `default` if absent.
    pub fn bool_or(self, key: &str, default: bool) -> Result<bool> {
        self.get(key)
            .map_or(Ok(default), |found| found.value.as_bool().ok_or_else(|| found.wrong("true or false")))
    }

    /// The string under `key`.
    pub fn str(self, key: &str) -> Result<&'a str> {
        self.need(key)?.as_str()
    }

    /// The string under `key`; `None` if absent.
    pub fn opt_str(self, key: &str) -> Result<Option<&'a str>> {
        self.get(key).map(Self::as_str).transpose()
    }

    /// The string under `key`; `default` if absent.
    pub fn str_or(self, key: &str, default: &'a str) -> Result<&'a str> {
        Ok(self.opt_str(key)?.unwrap_or(default))
    }

    /// The string under `key`, which must be one of `choices`; `None` if absent.
    pub fn opt_choice(self, key: &str, choices: &[&str]) -> Result<Option<&'a str>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match found.value.as_str() {
            Some(seen) if choices.contains(&seen) => Ok(Some(seen)),
            _ => Err(found.wrong(match choices {
                [only] => format!("{only:?}"),
                several => format!("one of {}", several.join(", ")),
            })),
        }
    }

    /// The items of the list under `key`, whose number must be within `length`.
    pub fn items(self, key: &str, length: RangeInclusive<usize>) -> Result<Vec<Self>> {
        let found = self.need(key)?;
        match found.value.as_array() {
            Some(items) if length.contains(&items.len()) => {
                Ok(items.iter().map(|value| Self { value, ..self }).collect())
            }
            _ if length.start() == length.end() => Err(found.wrong(format!("a list of {}", length.start()))),
            _ => Err(found.wrong(format!("a list of {} to {} items", length.start(), length.end()))),
        }
    }

    /// The list of integers under `key`: how many, and within which range each.
    pub fn u32s(
        self,
        key: &str,
        length: RangeInclusive<usize>,
        range: RangeInclusive<u32>,
    ) -> Result<Vec<u32>> {
        self.items(key, length)?.into_iter().map(|item| item.as_u32(range.clone())).collect()
    }

    /// The list of exactly `N` numbers under `key`, each within `range`.
    pub fn floats<const N: usize>(self, key: &str, range: RangeInclusive<f64>) -> Result<[f64; N]> {
        let mut numbers = [0.0; N];
        for (number, item) in numbers.iter_mut().zip(self.items(key, N..=N)?) {
            *number = item.as_f64(range.clone())?;
        }
        Ok(numbers)
    }

    /// This value as an integer within `range`.
    pub fn as_u32(self, range: RangeInclusive<u32>) -> Result<u32> {
        let number = self.value.as_u64().and_then(|value| u32::try_from(value).ok());
        number
            .filter(|value| range.contains(value))
            .ok_or_else(|| self.wrong(format!("an integer from {} to {}", range.start(), range.end())))
    }

    /// This value as a number within `range`.
    pub fn as_f64(self, range: RangeInclusive<f64>) -> Result<f64> {
        self.value
            .as_f64()
            .filter(|value| range.contains(value))
            .ok_or_else(|| self.wrong(format!("a number from {:?} to {:?}", range.start(), range.end())))
    }

    /// This value as a string.
    pub fn as_str(self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    /// The error `FILE: PATH must be WHAT, got VALUE` for this value.
    pub fn wrong(self, what: impl Display) -> Error {
        Error::checkpoint(format!("{} must be {what}, got {}", self.place(), shown(self.value)))
    }

    /// The error `FILE: PATH TEXT` about this value.
    pub fn fault(self, text: impl Display) -> Error {
        Error::checkpoint(format!("{} {text}", self.place()))
    }

    /// File and path of this value, as in `config.json: vision_config.depth`.
    pub fn place(self) -> String {
        let mut path = String::new();
        trace(&self.document.value, self.value, &mut path);
        match path.strip_prefix('.').unwrap_or(&path) {
            "" => self.document.name.to_owned(),
            path => format!("{}: {path}", self.document.name),
        }
    }

    fn child(self, key: &str) -> String {
        let place = self.place();
        let joint = if std::ptr::eq(self.value, &self.document.value) { ": " } else { "." };
        format!("{place}{joint}{key}")
    }
}

/// Appends the path from `at` to `target` (the same value in memory, not an equal one) and says whether it is there.
///
/// The path is found only when an error needs it, which keeps a [`Node`] two pointers wide.
fn trace(at: &Value, target: &Value, path: &mut String) -> bool {
    if std::ptr::eq(at, target) {
        return true;
    }
    let kept = path.len();
    let mut step = |name: String, value: &Value| {
        path.push_str(&name);
        let found = trace(value, target, path);
        if !found {
            path.truncate(kept);
        }
        found
    };
    match at {
        Value::Object(map) => map.iter().any(|(key, value)| step(label(key), value)),
        Value::Array(items) => items.iter().enumerate().any(|(i, value)| step(format!("[{i}]"), value)),
        _ => false,
    }
}

fn label(key: &str) -> String {
    if !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        format!(".{key}")
    } else {
        format!("[{}]", quoted(key))
    }
}
