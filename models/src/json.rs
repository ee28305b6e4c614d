//! JSON objects of files, whose fields are read with their type checked.

mod python;

use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result, cut_to};

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
            Value::Object(map) if python::spelling(value).is_none() => Ok(Self { map, file, section }),
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

    /// The file, for messages.
    pub(crate) fn file(&self) -> &'a str {
        self.file
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

    /// An integer from `-max` to `max`.
    pub(crate) fn integer(&self, name: &str, max: usize) -> Result<Option<i64>> {
        self.read(name, &format!("an integer from -{max} to {max}"), |value| {
            value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() <= max as f64).map(|x| x as i64)
        })
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
    impl Write for Start {
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

    /// Writes JSON, and what Python alone reads as the file spells it.
    fn write(value: &Value, to: &mut Start) -> io::Result<()> {
        let mut separator = "";
        match (python::spelling(value), value) {
            (Some(spelling), _) => to.write_all(spelling.as_bytes()),
            (None, Value::Array(values)) => {
                to.write_all(b"[")?;
                for value in values {
                    to.write_all(separator.as_bytes())?;
                    write(value, to)?;
                    separator = ",";
                }
                to.write_all(b"]")
            }
            (None, Value::Object(fields)) => {
                to.write_all(b"{")?;
                for (name, value) in fields {
                    to.write_all(separator.as_bytes())?;
                    serde_json::to_writer(&mut *to, name)?;
                    to.write_all(b":")?;
                    write(value, to)?;
                    separator = ",";
                }
                to.write_all(b"}")
            }
            (None, value) => Ok(serde_json::to_writer(to, value)?),
        }
    }

    let mut start = Start(Vec::new());
    // An error says that it is full.
    let _ = write(value, &mut start);
    let text = String::from_utf8_lossy(&start.0);
    cut_to(&text, MAX_CHARS).into_owned()
}

/// The value of a file's text, which may have what Python's `json` reads beyond JSON: readers of [`Fields`] refuse that by
/// the name of its field.
///
/// # Errors
/// [`Error::Json`] for a text that Python does not read.
pub(crate) fn parse(text: &str, file: &str) -> Result<Value> {
    parse_as(text).map_err(|source| Error::Json { file: file.to_owned(), source })
}

/// [`parse`] into a type that reads some fields and leaves the others.
pub(crate) fn parse_as<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    if text.starts_with('\u{feff}') {
        return Err(serde::de::Error::custom("it begins with a byte order mark"));
    }
    serde_json::from_str(text).or_else(|error| match python::rewritten(text) {
        // Places in the rewritten text are others than in the file.
        Some(json) => serde_json::from_str(&json).map_err(|in_json: serde_json::Error| match in_json.is_data() {
            true => in_json,
            false => error,
        }),
        None => Err(error),
    })
}

/// A number, which may be infinite or `NaN` in a file that Python wrote.
pub(crate) fn as_number(value: &Value) -> Option<f64> {
    match python::spelling(value) {
        Some(spelling) => spelling.parse().ok(),
        None => value.as_f64(),
    }
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

    /// Python reads all of this, and so does transformers.
    #[test]
    fn fields_that_python_alone_reads_are_refused_by_name() {
        let text = r#"{"a": {"x": Infinity, "y": 1e400, "z": [1, -Infinity], "n": NaN, "s": "\ud800", "ok": 1, "ok": 2},
            "unread": [NaN, {"\udfff": "\ud800 \udfff"}]}"#;
        let value = parse(text, "f").expect("as Python reads it");
        let a = Fields::of(&value, "config.json", "").expect("an object").section("a").expect("one").expect("present");
        let error = |result: Error| result.to_string();
        for (found, expected) in [
            (error(a.number("x").unwrap_err()), "`a.x` must be a finite number, found Infinity"),
            (error(a.positive("y").unwrap_err()), "`a.y` must be a positive number, found 1e400"),
            (error(a.positives("z").unwrap_err()), "`a.z` must be a list of positive numbers, found [1,-Infinity]"),
            (error(a.size("n", 9).unwrap_err()), "`a.n` must be an integer from 1 to 9, found NaN"),
            (error(a.count("x", 9).unwrap_err()), "`a.x` must be an integer from 0 to 9, found Infinity"),
            (error(a.flag("n").unwrap_err()), "`a.n` must be true or false, found NaN"),
            (error(a.list("x").unwrap_err()), "`a.x` must be a list, found Infinity"),
            (error(a.text("n").unwrap_err()), "`a.n` must be a string, found NaN"),
            (
                error(a.text("s").unwrap_err()),
                r#"`a.s` must be a string, found "\ud800", which has half of a surrogate pair"#,
            ),
        ] {
            assert_eq!(found, format!("config.json: {expected}"));
        }
        let Err(section) = a.section("n") else { panic!("NaN is no object") };
        assert_eq!(section.to_string(), "config.json: `n` must be an object, found NaN");
        // The last of two fields counts in Python, too.
        assert_eq!(a.size("ok", 9).expect("a number"), Some(2));
        assert_eq!(value["unread"].as_array().map(Vec::len), Some(2));
        assert_eq!(["x", "n", "s", "ok"].map(|name| a.get(name).and_then(as_number).map(f64::to_bits)), {
            [Some(f64::INFINITY.to_bits()), Some(f64::NAN.to_bits()), None, Some(2f64.to_bits())]
        });
    }

    #[test]
    fn errors_name_the_place_in_the_file() {
        let line = |text| parse(text, "f").expect_err("no JSON").one_line();
        assert_eq!(line(r#"{"a": NaN, "b": }"#), "f is not valid JSON: expected value at line 1 column 7");
        assert_eq!(line(r#"{"a": 1,}"#), "f is not valid JSON: trailing comma at line 1 column 9");
        assert!(line("\u{feff}{}").contains("byte order mark"));
    }

    #[test]
    fn numbers_are_read_to_the_last_digit() {
        let value = parse("[29707022588.880146, 1e-05]", "f").expect("json");
        assert_eq!(value, serde_json::json!([29_707_022_588.880_146, 1e-5]));
    }
}
