//! Methods and attributes of values other than texts.

use std::rc::Rc;

use dashu_int::ops::{BitTest, UnsignedAbs};

use super::arguments::{Bound, Native, index};
use super::attributes::{Found, method};
use super::error::{Result, fail};
use super::eval::Machine;
use super::number;
use super::value::{Dict, List, Macro, Value, ViewKind};

pub(super) static LIST: &[Native] = &[
    Native { name: "count", parameters: "self /value", run: count },
    Native { name: "index", parameters: "self /value /start? /stop?", run: index_of },
    Native { name: "copy", parameters: "self", run: |_, args| Ok(args.value(0)) },
];

/// Methods of tuples, which ranges have, too.
pub(super) static TUPLE: &[Native] = &[
    Native { name: "count", parameters: "self /value", run: count },
    Native { name: "index", parameters: "self /value /start? /stop?", run: index_of },
];

pub(super) static DICT: &[Native] = &[
    Native { name: "get", parameters: "self /key /default?", run: get },
    Native { name: "keys", parameters: "self", run: |_, args| view(args, ViewKind::Keys) },
    Native { name: "values", parameters: "self", run: |_, args| view(args, ViewKind::Values) },
    Native { name: "items", parameters: "self", run: |_, args| view(args, ViewKind::Items) },
    Native { name: "copy", parameters: "self", run: |_, args| Ok(args.value(0)) },
    Native { name: "fromkeys", parameters: "self /keys /value?", run: from_keys },
];

/// Methods of the function `dict`.
pub(super) static DICT_TYPE: &[Native] =
    &[Native { name: "fromkeys", parameters: "self /keys /value?", run: from_keys }];

pub(super) static CYCLER: &[Native] = &[
    Native { name: "next", parameters: "self", run: next_of_cycler },
    Native { name: "reset", parameters: "self", run: reset_cycler },
];

pub(super) static LOOP: &[Native] = &[
    Native { name: "cycle", parameters: "self *", run: cycle },
    Native { name: "changed", parameters: "self *", run: changed },
];

static INT: &[Native] = &[
    Native { name: "bit_length", parameters: "self", run: bit_length },
    Native { name: "bit_count", parameters: "self", run: bit_count },
    Native { name: "is_integer", parameters: "self", run: |_, _| Ok(Value::Bool(true)) },
    Native {
        name: "conjugate",
        parameters: "self",
        run: |_, args| Ok(number::positive(&args.value(0)).unwrap_or(Value::None)),
    },
];

static FLOAT: &[Native] = &[
    Native { name: "is_integer", parameters: "self", run: is_whole },
    Native { name: "conjugate", parameters: "self", run: |_, args| Ok(args.value(0)) },
];

pub(super) fn int_attribute(value: &Value, name: &str) -> Option<Found> {
    match name {
        "real" | "numerator" => number::positive(value).map(Found::Value),
        "imag" => Some(Found::Value(Value::Int(0))),
        "denominator" => Some(Found::Value(Value::Int(1))),
        _ => method(value, INT, name),
    }
}

pub(super) fn float_attribute(value: &Value, name: &str) -> Option<Found> {
    match name {
        "real" => Some(Found::Value(value.clone())),
        "imag" => Some(Found::Value(Value::Float(0.0))),
        _ => method(value, FLOAT, name),
    }
}

pub(super) fn macro_attribute(called: &Macro, name: &str) -> Option<Found> {
    let definition = &called.definition;
    let has_caller = definition.parameters.iter().any(|(name, _)| name.as_ref() == "caller");
    Some(Found::Value(match name {
        "name" => definition.name.clone().map_or(Value::None, Value::Text),
        "arguments" => {
            let names = definition.parameters.iter().map(|(name, _)| Value::Text(name.clone()));
            Value::Tuple(List::of_texts(names.collect()))
        }
        "catch_kwargs" => Value::Bool(definition.uses.kwargs),
        "catch_varargs" => Value::Bool(definition.uses.varargs),
        "caller" => Value::Bool(definition.uses.caller),
        "explicit_caller" => Value::Bool(has_caller),
        _ => return None,
    }))
}

fn count(machine: &Machine, args: &Bound) -> Result<Value> {
    let mut count = 0usize;
    for item in args.value(0).iter()? {
        count += usize::from(item?.equals(&args.value(1), &machine.budget)?);
    }
    Ok(Value::from(count))
}

fn index_of(machine: &Machine, args: &Bound) -> Result<Value> {
    let receiver = args.value(0);
    let len = receiver.len().unwrap_or(0);
    let bound = |at: usize, default: usize| -> Result<usize> {
        let Some(value) = args.get(at) else { return Ok(default) };
        Ok(from_end(index(value)?, len))
    };
    let (start, stop) = (bound(2, 0)?, bound(3, len)?);
    for (at, item) in receiver.iter()?.enumerate().take(stop).skip(start) {
        if item?.equals(&args.value(1), &machine.budget)? {
            return Ok(Value::from(at));
        }
    }
    fail!("the value is not in the {}", receiver.type_name())
}

/// An index that counts from the end if it is negative, within the sequence.
pub(super) fn from_end(index: i64, len: usize) -> usize {
    let from_start = if index < 0 { index.saturating_add_unsigned(len as u64).max(0) } else { index };
    usize::try_from(from_start).unwrap_or(len).min(len)
}

fn dict(args: &Bound) -> Result<Rc<Dict>> {
    match args.value(0) {
        Value::Dict(dict) => Ok(dict),
        other => fail!("expected a dict, found '{}'", other.type_name()),
    }
}

fn get(machine: &Machine, args: &Bound) -> Result<Value> {
    Ok(dict(args)?.get(&args.value(1), &machine.budget)?.cloned().unwrap_or_else(|| args.value(2)))
}

fn view(args: &Bound, kind: ViewKind) -> Result<Value> {
    Ok(Value::View(kind, dict(args)?))
}

fn from_keys(machine: &Machine, args: &Bound) -> Result<Value> {
    let keys = args.value(1).collect(&machine.budget)?;
    let value = args.value(2);
    Ok(Value::Dict(Dict::new(keys.into_iter().map(|key| (key, value.clone())), &machine.budget)?))
}

fn next_of_cycler(_: &Machine, args: &Bound) -> Result<Value> {
    let Value::Cycler(cycler) = args.value(0) else { return Ok(Value::None) };
    let at = cycler.at.get();
    cycler.at.set((at + 1) % cycler.items.items.len().max(1));
    Ok(cycler.items.items.get(at).cloned().unwrap_or(Value::None))
}

fn reset_cycler(_: &Machine, args: &Bound) -> Result<Value> {
    if let Value::Cycler(cycler) = args.value(0) {
        cycler.at.set(0);
    }
    Ok(Value::None)
}

fn cycle(_: &Machine, args: &Bound) -> Result<Value> {
    let Value::Loop(looped) = args.value(0) else { return Ok(Value::None) };
    let values = &args.rest.positional;
    if values.is_empty() {
        fail!("no items for cycling given");
    }
    Ok(values[looped.index0.get() % values.len()].clone())
}

fn changed(machine: &Machine, args: &Bound) -> Result<Value> {
    let Value::Loop(looped) = args.value(0) else { return Ok(Value::None) };
    let values = Value::Tuple(List::new(args.rest.positional.clone(), &machine.budget)?);
    let last = looped.changed.borrow().clone();
    if let Some(last) = &last
        && last.equals(&values, &machine.budget)?
    {
        return Ok(Value::Bool(false));
    }
    if last.is_none() {
        machine.track_loop(&looped)?;
    }
    let old = looped.changed.replace(Some(values));
    drop(old);
    Ok(Value::Bool(true))
}

fn bit_length(_: &Machine, args: &Bound) -> Result<Value> {
    let bits = number::to_big(&args.value(0)).map_or(0, |big| big.unsigned_abs().bit_len());
    Ok(Value::Int(i64::try_from(bits).unwrap_or(i64::MAX)))
}

fn bit_count(_: &Machine, args: &Bound) -> Result<Value> {
    let ones = number::to_big(&args.value(0)).map_or(0, |big| big.unsigned_abs().count_ones());
    Ok(Value::Int(i64::try_from(ones).unwrap_or(i64::MAX)))
}

fn is_whole(_: &Machine, args: &Bound) -> Result<Value> {
    Ok(Value::Bool(matches!(args.value(0), Value::Float(float) if float.is_finite() && float.fract() == 0.0)))
}
