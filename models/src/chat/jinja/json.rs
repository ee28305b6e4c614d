//! The filter `tojson`, which writes JSON as Python's `json.dumps` does.

use std::fmt::Write;

use super::arguments::{Bound, index, text};
use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::number;
use super::value::{Dict, Value};

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, without the escapes that HTML needs.
pub(super) fn to_json(machine: &Machine, args: &Bound) -> Result<Value> {
    let indent = match args.some(2) {
        None => None,
        Some(indent) if indent.as_text().is_some() => Some(text(indent)?.to_string()),
        Some(width) => {
            let width = usize::try_from(index(width)?).unwrap_or(0);
            check_text(width)?;
            Some(" ".repeat(width))
        }
    };
    let separators = match args.some(3) {
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(separators) => {
            let separators = separators.collect(&machine.budget)?;
            let [item, key] = separators.as_slice() else { fail!("tojson needs two separators") };
            [text(item)?.to_string(), text(key)?.to_string()]
        }
    };
    let (ensure_ascii, sort_keys) = (args.flag(1), args.flag(4));
    let mut writer = Writer { machine, out: String::new(), ensure_ascii, indent, separators, sort_keys };
    writer.value(&args.value(0), 0)?;
    machine.budget.text(writer.out.len())?;
    Ok(Value::from(writer.out))
}

struct Writer<'m> {
    machine: &'m Machine,
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    separators: [String; 2],
    sort_keys: bool,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        self.machine.budget.steps(1)?;
        match value {
            Value::Text(text) | Value::Markup(text) => {
                check_text(self.out.len().saturating_add(text.len()))?;
                self.text(text);
            }
            Value::List(list) | Value::Tuple(list) => self.list(&list.items, depth)?,
            Value::Dict(dict) => self.dict(dict, depth)?,
            _ => match scalar(value)? {
                Some(scalar) => self.out.push_str(&scalar),
                None => fail!("Object of type {} is not JSON serializable", value.type_name()),
            },
        }
        check_text(self.out.len())
    }

    fn list(&mut self, items: &[Value], depth: usize) -> Result<()> {
        self.out.push('[');
        for (at, item) in items.iter().enumerate() {
            self.before_item(at, depth + 1)?;
            self.value(item, depth + 1)?;
        }
        self.after_items(items.len(), depth)?;
        self.out.push(']');
        Ok(())
    }

    fn dict(&mut self, dict: &Dict, depth: usize) -> Result<()> {
        self.out.push('{');
        let entries = dict.entries.values().cloned().collect();
        let entries: Vec<(Value, Value)> = match self.sort_keys {
            true => super::sequences::merge_sort(self.machine, entries)?,
            false => entries,
        };
        for (at, (key, value)) in entries.iter().enumerate() {
            self.before_item(at, depth + 1)?;
            match (key.as_text(), scalar(key)?) {
                (Some(key), _) => self.text(key),
                (None, Some(key)) => self.text(&key),
                (None, None) => fail!("keys must be str, int, float, bool or None, not {}", key.type_name()),
            }
            self.out.push_str(&self.separators[1]);
            self.value(value, depth + 1)?;
        }
        self.after_items(entries.len(), depth)?;
        self.out.push('}');
        Ok(())
    }

    fn before_item(&mut self, at: usize, depth: usize) -> Result<()> {
        if at > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.line(depth)
    }

    fn after_items(&mut self, items: usize, depth: usize) -> Result<()> {
        if items > 0 { self.line(depth) } else { Ok(()) }
    }

    fn line(&mut self, depth: usize) -> Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        check_text(self.out.len().saturating_add(depth.saturating_mul(indent.len())))?;
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

/// A number, a boolean or `None` in JSON.
fn scalar(value: &Value) -> Result<Option<String>> {
    Ok(Some(match value {
        Value::None => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Big(big) => number::big_digits(big)?,
        Value::Float(float) if float.is_nan() => "NaN".to_owned(),
        Value::Float(float) if float.is_infinite() => if *float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Value::Float(float) => number::repr(*float),
        _ => return Ok(None),
    }))
}
