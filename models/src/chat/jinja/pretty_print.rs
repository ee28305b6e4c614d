//! The filter `pprint`.

use super::arguments::Bound;
use super::budget::check_text;
use super::error::Result;
use super::eval::Machine;
use super::repr::quoted;
use super::sequences::merge_sort;
use super::text::{char_count, is_space, split_lines};
use super::value::{Dict, List, Value};

/// `pprint`: Python's `pprint.pformat`, with sorted keys and lines of 80 characters.
pub(super) fn pretty_print(machine: &Machine, args: &Bound) -> Result<Value> {
    let mut printer = Printer { machine, out: String::new() };
    printer.value(&args.value(0), 0, 0, true)?;
    machine.new_text(printer.out)
}

struct Printer<'m> {
    machine: &'m Machine,
    out: String,
}

impl Printer<'_> {
    const WIDTH: usize = 80;

    /// Writes a value in one line, or in several where it would be too long with the `allowance` that follows it.
    fn value(&mut self, value: &Value, indent: usize, allowance: usize, is_top: bool) -> Result<()> {
        let sorted = self.sorted(value)?;
        let text = self.machine.repr(&sorted)?;
        if char_count(&text) + indent + allowance <= Self::WIDTH {
            self.out.push_str(&text);
            return check_text(self.out.len());
        }
        match &sorted {
            Value::List(list) => {
                self.out.push('[');
                self.items(&list.items, indent + 1, allowance + 1)?;
                self.out.push(']');
            }
            Value::Tuple(list) => {
                let close = if list.items.len() == 1 { ",)" } else { ")" };
                self.out.push('(');
                self.items(&list.items, indent + 1, allowance + close.len())?;
                self.out.push_str(close);
            }
            Value::Dict(dict) => {
                self.out.push('{');
                self.entries(dict, indent + 1, allowance + 1)?;
                self.out.push('}');
            }
            Value::Text(text) if !text.is_empty() => self.text(text, indent, allowance, is_top),
            _ => self.out.push_str(&text),
        }
        check_text(self.out.len())
    }

    /// The value with the keys of all dicts sorted, as far as they can be compared.
    fn sorted(&self, value: &Value) -> Result<Value> {
        let budget = &self.machine.budget;
        Ok(match value {
            Value::Dict(dict) => {
                let entries: Vec<_> = dict.entries.values().cloned().collect();
                budget.entries(entries.len())?;
                let sorted = merge_sort(self.machine, entries.clone()).unwrap_or(entries);
                let sorted: Result<Vec<_>> =
                    sorted.into_iter().map(|(key, value)| Ok((key, self.sorted(&value)?))).collect();
                Value::Dict(Dict::new(sorted?, budget)?)
            }
            Value::List(list) | Value::Tuple(list) => {
                let items = list.items.iter().map(|item| self.sorted(item)).collect::<Result<_>>()?;
                let items = List::new(items, budget)?;
                if matches!(value, Value::List(_)) { Value::List(items) } else { Value::Tuple(items) }
            }
            other => other.clone(),
        })
    }

    fn separator(&mut self, indent: usize) {
        self.out.push_str(",\n");
        self.out.extend(std::iter::repeat_n(' ', indent));
    }

    fn items(&mut self, items: &[Value], indent: usize, allowance: usize) -> Result<()> {
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.separator(indent);
            }
            let allowance = if at + 1 == items.len() { allowance } else { 1 };
            self.value(item, indent, allowance, false)?;
        }
        Ok(())
    }

    fn entries(&mut self, dict: &Dict, indent: usize, allowance: usize) -> Result<()> {
        for (at, (key, value)) in dict.entries.values().enumerate() {
            if at > 0 {
                self.separator(indent);
            }
            let key = self.machine.repr(key)?;
            self.out.push_str(&key);
            self.out.push_str(": ");
            let allowance = if at + 1 == dict.entries.len() { allowance } else { 1 };
            self.value(value, indent + char_count(&key) + 2, allowance, false)?;
        }
        Ok(())
    }

    /// A long text as several literals, each on a line of its own.
    fn text(&mut self, text: &str, indent: usize, allowance: usize, is_top: bool) {
        let extra = usize::from(is_top);
        let (indent, allowance) = (indent + extra, allowance + extra);
        let width = Self::WIDTH.saturating_sub(indent);
        let lines = split_lines(text, true);
        let mut literals = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let is_last_line = at + 1 == lines.len();
            let reserved = if is_last_line { allowance } else { 0 };
            if char_count(&quoted(line)) + reserved <= width {
                literals.push(quoted(line));
                continue;
            }
            let words = words_with_space(line);
            let mut current = String::new();
            for (at, word) in words.iter().enumerate() {
                let reserved = if at + 1 == words.len() { reserved } else { 0 };
                let candidate = format!("{current}{word}");
                if char_count(&quoted(&candidate)) + reserved <= width {
                    current = candidate;
                    continue;
                }
                if !current.is_empty() {
                    literals.push(quoted(&current));
                }
                (*word).clone_into(&mut current);
            }
            if !current.is_empty() {
                literals.push(quoted(&current));
            }
        }
        if literals.len() == 1 {
            self.out.push_str(&literals[0]);
            return;
        }
        let separator = format!("\n{}", " ".repeat(indent));
        let literals = literals.join(&separator);
        match is_top {
            true => self.out.push_str(&format!("({literals})")),
            false => self.out.push_str(&literals),
        }
    }
}

/// Words, each with the white space after it.
fn words_with_space(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let word = rest.find(is_space).unwrap_or(rest.len());
        let end = rest[word..].find(|c| !is_space(c)).map_or(rest.len(), |at| word + at);
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}
