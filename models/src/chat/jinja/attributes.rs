//! Attributes, items and slices, with the rules of Jinja's immutable sandbox.

use std::rc::Rc;

use super::arguments::{CallArguments, Native};
use super::error::{Result, fail};
use super::eval::Machine;
use super::methods::{self, DICT, LIST, TUPLE};
use super::number;
use super::scope::Loop;
use super::str_methods::STR;
use super::text::{byte_offset, char_count, escape_html};
use super::value::{List, Range, Value, range_len, same_kind};

/// Methods that would change a list or a dict.
const CHANGES_LIST: [&str; 8] = ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// An attribute that Python has, or that the sandbox refuses.
pub(super) enum Found {
    Value(Value),
    Unsafe,
}

impl Machine {
    /// `value.name`: the attribute, else the item of this name.
    pub(super) fn attribute(&self, value: &Value, name: &Rc<str>) -> Result<Value> {
        if let Value::Undefined(undefined) = value {
            return Err(undefined.error());
        }
        match self.find_attribute(value, name)? {
            Some(found) => Ok(found.safe(value, name)),
            None => match value {
                Value::Dict(dict) => Ok(match dict.get(&Value::Text(name.clone()), &self.budget)? {
                    Some(item) => item.clone(),
                    None => value.no_attribute(name),
                }),
                Value::Blocks => Ok(match self.block(name) {
                    Some(block) => Value::Block(block.clone()),
                    None => value.no_attribute(name),
                }),
                _ => Ok(value.no_attribute(name)),
            },
        }
    }

    /// `value[key]`: the item, else the attribute of this name.
    pub(super) fn item(&self, value: &Value, key: &Value) -> Result<Value> {
        if let Value::Undefined(undefined) = value {
            return Err(undefined.error());
        }
        let item = match (value, number::to_index(key)) {
            // A key that is not hashable is not in the dict.
            (Value::Dict(dict), _) => dict.get(key, &self.budget).ok().flatten().cloned(),
            (_, Some(index)) => self.element(value, index)?,
            (Value::Blocks, None) => key.as_text().and_then(|name| self.block(name)).cloned().map(Value::Block),
            _ => None,
        };
        if let Some(item) = item {
            return Ok(item);
        }
        match key.as_text() {
            Some(name) => Ok(match self.find_attribute(value, name)? {
                Some(found) => found.safe(value, name),
                None => value.no_attribute(name),
            }),
            None => Ok(value.no_item(key)),
        }
    }

    /// The element of a sequence at an index, which counts from the end if it is negative.
    fn element(&self, value: &Value, index: i64) -> Result<Option<Value>> {
        let Some(len) = value.len() else { return Ok(None) };
        if let Some(text) = value.as_text() {
            self.budget.reading(text.len())?;
        }
        let from_start = if index < 0 { index.saturating_add_unsigned(len as u64) } else { index };
        let Some(index) = usize::try_from(from_start).ok().filter(|&index| index < len) else { return Ok(None) };
        Ok(match value {
            Value::List(list) | Value::Tuple(list) => list.items.get(index).cloned(),
            Value::Range(range) => Some(range.get(index)),
            Value::Text(text) | Value::Markup(text) => {
                let start = byte_offset(text, index);
                let c: String = text[start..].chars().take(1).collect();
                self.budget.text(c.len())?;
                Some(same_kind(value, c))
            }
            _ => None,
        })
    }

    /// `value[start:stop:step]`.
    pub(super) fn slice(&self, value: &Value, parts: &[Option<Value>; 3]) -> Result<Value> {
        if let Value::Undefined(undefined) = value {
            return Err(undefined.error());
        }
        let is_sequence =
            value.as_text().is_some() || matches!(value, Value::List(_) | Value::Tuple(_) | Value::Range(_));
        let Some(len) = value.len().filter(|_| is_sequence) else {
            fail!("'{}' object cannot be sliced", value.type_name());
        };
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            match part {
                None | Some(Value::None) => {}
                Some(part) => match number::to_index(part) {
                    Some(index) => *bound = Some(index),
                    None => fail!("slice indices must be integers or None, not '{}'", part.type_name()),
                },
            }
        }
        let range = slice_range(len, bounds)?;
        Ok(match value {
            Value::List(list) => Value::List(self.picked(list, &range)?),
            Value::Tuple(list) => Value::Tuple(self.picked(list, &range)?),
            Value::Range(of) => {
                let at = |index: i64| of.start.wrapping_add(of.step.wrapping_mul(index));
                let (start, stop, step) = (at(range.start), at(range.stop), of.step.wrapping_mul(range.step));
                Value::Range(Rc::new(Range { start, stop, step, len: range.len }))
            }
            _ => {
                let text = value.as_text().map_or("", |text| text.as_ref());
                self.budget.reading(text.len())?;
                let picked = slice_text(text, &range);
                self.budget.text(picked.len())?;
                same_kind(value, picked)
            }
        })
    }

    fn picked(&self, list: &List, range: &Range) -> Result<Rc<List>> {
        self.budget.items(range.len)?;
        List::new(indices(range).filter_map(|index| list.items.get(index).cloned()).collect(), &self.budget)
    }

    /// The attribute that a Python object of this type has.
    pub(super) fn find_attribute(&self, value: &Value, name: &str) -> Result<Option<Found>> {
        let found = match value {
            Value::Text(_) | Value::Markup(_) => method(value, STR, name),
            Value::List(_) if CHANGES_LIST.contains(&name) => Some(Found::Unsafe),
            Value::List(_) => method(value, LIST, name),
            Value::Tuple(list) => match name {
                "grouper" if list.is_group => list.items.first().cloned().map(Found::Value),
                "list" if list.is_group => list.items.last().cloned().map(Found::Value),
                _ => method(value, TUPLE, name),
            },
            Value::Dict(_) if CHANGES_DICT.contains(&name) => Some(Found::Unsafe),
            Value::Dict(_) => method(value, DICT, name),
            Value::Range(range) => match name {
                "start" => Some(Found::Value(Value::Int(range.start))),
                "stop" => Some(Found::Value(Value::Int(range.stop))),
                "step" => Some(Found::Value(Value::Int(range.step))),
                _ => method(value, TUPLE, name),
            },
            Value::Bool(_) | Value::Int(_) | Value::Big(_) => methods::int_attribute(value, name),
            Value::Float(_) => methods::float_attribute(value, name),
            Value::Namespace(namespace) => {
                return Ok(namespace.get(name).map(Found::Value));
            }
            Value::Loop(looped) => return self.loop_attribute(value, looped, name),
            Value::Macro(called) => methods::macro_attribute(called, name),
            Value::Cycler(cycler) => match name {
                "items" => Some(Found::Value(Value::Tuple(cycler.items.clone()))),
                "pos" => Some(Found::Value(Value::from(cycler.at.get()))),
                "current" => cycler.items.items.get(cycler.at.get()).cloned().map(Found::Value),
                _ => method(value, methods::CYCLER, name),
            },
            Value::Joiner(joiner) => match name {
                "sep" => Some(Found::Value(joiner.separator.clone())),
                "used" => Some(Found::Value(Value::Bool(joiner.used.get()))),
                _ => None,
            },
            Value::Function(native) if native.name == "dict" => method(value, methods::DICT_TYPE, name),
            _ => None,
        };
        // Names that begin with underscores are Python's own, and never attributes of these types.
        Ok(found.filter(|_| !name.starts_with('_')))
    }

    fn loop_attribute(&self, value: &Value, looped: &Loop, name: &str) -> Result<Option<Found>> {
        let index0 = looped.index0.get();
        Ok(Some(Found::Value(match name {
            "index0" => Value::from(index0),
            "index" => Value::from(index0 + 1),
            "first" => Value::Bool(index0 == 0),
            "last" => Value::Bool(self.peek(looped)?.is_none()),
            "length" => Value::from(self.loop_length(looped)?),
            "revindex" => count_down(self.loop_length(looped)?, index0),
            "revindex0" => count_down(self.loop_length(looped)?, index0 + 1),
            "depth0" => Value::from(looped.depth0),
            "depth" => Value::from(looped.depth0 + 1),
            "previtem" => {
                looped.previous.borrow().clone().unwrap_or_else(|| Value::undefined("there is no previous item"))
            }
            "nextitem" => self.peek(looped)?.unwrap_or_else(|| Value::undefined("there is no next item")),
            _ => return Ok(method(value, methods::LOOP, name)),
        })))
    }

    /// Calls a method. Methods of escaped texts escape their arguments and give escaped texts.
    pub(super) fn call_method(&self, receiver: &Value, native: &'static Native, given: CallArguments) -> Result<Value> {
        let Value::Markup(_) = receiver else { return native.call(self, Some(receiver), given) };
        if matches!(native.name, "format" | "format_map") {
            return native.call(self, Some(receiver), given);
        }
        let mut escaped = given;
        for value in &mut escaped.positional {
            *value = self.escaped_deeply(value, native.name == "join")?;
        }
        Ok(match native.call(self, Some(receiver), escaped)? {
            Value::Text(text) => Value::Markup(text),
            Value::List(list) => Value::List(self.marked_up(&list)?),
            Value::Tuple(list) => Value::Tuple(self.marked_up(&list)?),
            other => other,
        })
    }

    fn marked_up(&self, list: &List) -> Result<Rc<List>> {
        let mark = |item: &Value| match item {
            Value::Text(text) => Value::Markup(text.clone()),
            other => other.clone(),
        };
        List::new(list.items.iter().map(mark).collect(), &self.budget)
    }

    /// A text escaped for HTML, or for `join` the texts in a list.
    fn escaped_deeply(&self, value: &Value, in_list: bool) -> Result<Value> {
        match value {
            Value::Text(text) => {
                let text = escape_html(text);
                self.budget.text(text.len())?;
                Ok(Value::Markup(text.into()))
            }
            _ if in_list => {
                let items = value.collect(&self.budget)?;
                let items = items.iter().map(|item| self.escaped_deeply(item, false)).collect::<Result<_>>()?;
                Ok(Value::List(List::new(items, &self.budget)?))
            }
            _ => Ok(value.clone()),
        }
    }
}

impl Found {
    fn safe(self, of: &Value, name: &str) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Unsafe => {
                Value::undefined(format!("access to attribute '{name}' of '{}' object is unsafe", of.type_name()))
            }
        }
    }
}

/// The method of this name, bound to its value.
pub(super) fn method(value: &Value, table: &'static [Native], name: &str) -> Option<Found> {
    let native = table.iter().find(|native| native.name == name)?;
    Some(Found::Value(Value::Method(Rc::new((value.clone(), native)))))
}

fn count_down(length: usize, passed: usize) -> Value {
    let [length, passed] = [length, passed].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    Value::Int(length - passed)
}

/// The indices of a slice of a sequence of `len` items, as Python's `slice.indices` computes them.
fn slice_range(len: usize, [start, stop, step]: [Option<i64>; 3]) -> Result<Range> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1).max(-i64::MAX);
    if step == 0 {
        fail!("slice step cannot be zero");
    }
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(len).max(lowest),
        Some(bound) => bound.min(highest),
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (bound(start, first), bound(stop, last));
    Ok(Range { start, stop, step, len: range_len(start, stop, step) })
}

fn indices(range: &Range) -> impl Iterator<Item = usize> {
    (0..range.len).filter_map(|at| match range.get(at) {
        Value::Int(index) => usize::try_from(index).ok(),
        _ => None,
    })
}

fn slice_text(text: &str, range: &Range) -> String {
    if range.step == 1 {
        let start = byte_offset(text, usize::try_from(range.start).unwrap_or(0));
        return text[start..][..byte_offset(&text[start..], range.len)].to_owned();
    }
    let chars: Vec<char> = if range.len == 0 { Vec::new() } else { text.chars().collect() };
    debug_assert!(range.len <= char_count(text));
    indices(range).filter_map(|index| chars.get(index)).collect()
}
