//! JSON objects of files, whose fields are read with their type checked.

use std::io;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object whose fields are read with their type checked.
///
/// A field that is `null` counts as missing, as in Python configs.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The file, and the path to this object in it, for messages.
    file: &'a str,
    section: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(value: &'a Value, file: &'a str, section: &'a str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, file, section }),
            other => Err(Error::Config {
                file: file.to_owned(),
                problem: match section {
                    "" => format!("expected an object, found {}", brief(other)),
                    _ => format!("`{section}` must be an object, found {}", brief(other)),
                },
            }),
        }
    }

    /// An error about the field `name` of this object.
    pub(crate) fn problem(&self, name: &str, problem: &str) -> Error {
        Error::Config {
            file: self.file.to_owned(),
            problem: match self.section {
                "" => format!("`{name}` {problem}"),
                section => format!("`{section}.{name}` {problem}"),
            },
        }
    }

    /// Whether the file spells the field out, be it as `null`.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn section(&self, name: &'a str) -> Result<Option<Fields<'a>>> {
        self.get(name).map(|value| Fields::of(value, self.file, name)).transpose()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    fn read<T>(&self, name: &str, expected: &str, convert: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.problem(name, &format!("must be {expected}, found {}", brief(value)))),
        }
    }

    /// A count from 0 to `max`. Python writes some as `32768.0`, which is the same count.
    pub(crate) fn count(&self, name: &str, max: usize) -> Result<Option<usize>> {
        self.read(name, &format!("an integer from 0 to {max}"), |value| as_count(value).filter(|&n| n <= max))
    }

    /// A count from 1 to `max`.
    pub(crate) fn size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        self.read(name, &format!("an integer from 1 to {max}"), |value| {
            as_count(value).filter(|&n| (1..=max).contains(&n))
        })
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a finite number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a positive number", |value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    pub(crate) fn positives(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let positive = |value: &Value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        self.read(name, "a list of positive numbers", |value| value.as_array()?.iter().map(positive).collect())
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>> {
        self.read(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn required<T>(&self, name: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.problem(name, "is missing"))
    }
}

pub(crate) fn as_count(value: &Value) -> Option<usize> {
    /// Whole numbers up to here are exact in an f64.
    const EXACT: f64 = (1u64 << 53) as f64;
    match value.as_u64() {
        Some(n) => usize::try_from(n).ok(),
        None => value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=EXACT).contains(x)).map(|x| x as usize),
    }
}

/// A value as it can stand in one line of a message.
pub(crate) fn brief(value: &Value) -> String {
    /// Enough to recognise the value by.
    const MAX_CHARS: usize = 60;
    /// The longest beginning of as many characters and one more.
    const MAX_BYTES: usize = 4 * (MAX_CHARS + 1);

    /// Takes no more than a beginning: a value may have millions of parts.
    struct Start(Vec<u8>);
    impl io::Write for Start {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match MAX_BYTES - self.0.len() {
                0 => Err(io::ErrorKind::WriteZero.into()),
                room => {
                    let taken = room.min(bytes.len());
                    self.0.extend(&bytes[..taken]);
                    Ok(taken)
                }
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut start = Start(Vec::new());
    // An error says that it is full.
    let _ = serde_json::to_writer(&mut start, value);
    let text = String::from_utf8_lossy(&start.0);
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

pub(crate) fn parse(text: &str, file: &str) -> Result<Value> {
    let parsed = match text.starts_with('\u{feff}') {
        true => Err(serde::de::Error::custom("it begins with a byte order mark")),
        false => serde_json::from_str(text),
    };
    parsed.map_err(|source| Error::Json { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_messages_are_cut_at_a_character() {
        assert_eq!(brief(&Value::from("ä".repeat(100))), format!("\"{}…", "ä".repeat(59)));
        assert_eq!(brief(&Value::from(vec![1; 1000])), format!("[{}1…", "1,".repeat(29)));
        assert_eq!(brief(&Value::from(vec!["😀"; 3])), r#"["😀","😀","😀"]"#);
    }

    #[test]
    fn wrong_types_are_reported_with_their_field_and_value() {
        let value = parse(r#"{"a": {"n": "12", "m": 32768.0, "k": 1.5, "z": null}}"#, "f").expect("json");
        let fields = Fields::of(&value, "config.json", "").expect("an object");
        let a = fields.section("a").expect("an object").expect("present");
        let error = a.size("n", 100).expect_err("a string");
        assert_eq!(error.to_string(), "config.json: `a.n` must be an integer from 1 to 100, found \"12\"");
        assert_eq!(a.size("m", 1 << 20).expect("whole"), Some(32768));
        assert!(a.size("k", 100).is_err());
        assert_eq!(a.size("z", 100).expect("null is missing"), None);
    }

    #[test]
    fn numbers_are_read_to_the_last_digit() {
        let value = parse("[29707022588.880146, 1e-05]", "f").expect("json");
        assert_eq!(value, serde_json::json!([29_707_022_588.880_146, 1e-5]));
    }
}
