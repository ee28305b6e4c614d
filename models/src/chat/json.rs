//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::meter::{check_text, refused};

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, without the escapes that HTML needs.
pub(super) fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(flag) => flag,
        None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = match options.get::<Option<Value>>("indent")?.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = value.as_i64().ok_or_else(|| refused("indent must be a number or a text"))?;
                let width = usize::try_from(width).unwrap_or(0);
                check_text(width)?;
                " ".repeat(width)
            }
        }),
    };
    let separators = match options.get::<Option<Value>>("separators")?.filter(|value| !value.is_none()) {
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(value) => {
            let texts: Vec<String> = value.try_iter()?.take(3).filter_map(|v| v.as_str().map(str::to_owned)).collect();
            texts.try_into().map_err(|_| refused("separators must be two texts"))?
        }
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { out: String::new(), ensure_ascii, indent, separators, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    separators: [String; 2],
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.before_item(at, depth + 1)?;
                    self.value(item, depth + 1)?;
                }
                self.after_items(items.len(), depth)?;
                self.out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.out.push('{');
                for (at, key) in keys.iter().enumerate() {
                    self.before_item(at, depth + 1)?;
                    match key.kind() {
                        ValueKind::String => self.text(key.as_str().unwrap_or_default()),
                        _ => {
                            self.out.push('"');
                            self.value(key, depth + 1)?;
                            self.out.push('"');
                        }
                    }
                    self.out.push_str(&self.separators[1]);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.after_items(keys.len(), depth)?;
                self.out.push('}');
            }
            kind => return Err(refused(format!("a value of type {kind} is not JSON serializable"))),
        }
        check_text(self.out.len())
    }

    fn before_item(&mut self, at: usize, depth: usize) -> Result<(), Error> {
        if at > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.line(depth)
    }

    fn after_items(&mut self, items: usize, depth: usize) -> Result<(), Error> {
        if items > 0 { self.line(depth) } else { Ok(()) }
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        check_text(self.out.len() + depth.saturating_mul(indent.len()))?;
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python's `repr` has it: whole floats keep their point, and exponents a sign and two digits.
fn number(value: &Value) -> String {
    let float = f64::try_from(value.clone()).ok().filter(|_| !value.is_integer());
    let Some(float) = float else { return value.to_string() };
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if float == 0.0 || (1e-4..1e16).contains(&float.abs()) {
        return format!("{float:?}");
    }
    let text = format!("{float:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}
