//! Filters over sequences.

use std::collections::HashSet;
use std::rc::Rc;

use super::arguments::{Bound, CallArguments, text};
use super::ast::Operator;
use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::iterate::Generator;
use super::text::{escape_html, is_digit};
use super::value::{List, Value, same_kind};

/// The most parts that `slice` and `batch` may make.
const MAX_PARTS: i64 = 100_000;

/// A path of attributes such as `address.city`, from an argument: names, or numbers as indices.
fn path(attribute: &Value) -> Vec<Value> {
    match attribute.as_text() {
        None if matches!(attribute, Value::None) => Vec::new(),
        None => vec![attribute.clone()],
        Some(path) => path.split('.').map(part_of_path).collect(),
    }
}

fn part_of_path(part: &str) -> Value {
    let is_index = !part.is_empty() && part.chars().all(is_digit);
    part.parse().ok().filter(|_| is_index).map_or_else(|| Value::from(part), Value::Int)
}

/// The value at a path, with `default` for what is not there.
fn at_path(machine: &Machine, item: &Value, path: &[Value], default: Option<&Value>) -> Result<Value> {
    let mut item = item.clone();
    for part in path {
        item = machine.item(&item, part)?;
        if let (true, Some(default)) = (item.is_undefined(), default) {
            item = default.clone();
        }
    }
    Ok(item)
}

/// A key to sort by, in lower case unless the case counts.
fn sort_key(machine: &Machine, key: Value, case_sensitive: bool) -> Result<Value> {
    match key.as_text() {
        Some(text) if !case_sensitive => {
            let lower = text.to_lowercase();
            machine.budget.text(lower.len())?;
            Ok(Value::from(lower))
        }
        _ => Ok(key),
    }
}

/// Sorts values by their keys with `<` alone, as Python does, and keeps the order of equal ones.
pub(super) fn merge_sort(machine: &Machine, mut items: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>> {
    let mut width = 1;
    while width < items.len() {
        machine.budget.items(2 * items.len())?;
        let mut merged = Vec::with_capacity(items.len());
        for run in items.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some(first), Some(second)) = (left.first(), right.first()) {
                let from = if second.0.is_less(&first.0, &machine.budget)? { &mut right } else { &mut left };
                merged.extend(from.first().cloned());
                *from = &from[1..];
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        items = merged;
        width *= 2;
    }
    Ok(items)
}

fn sorted(machine: &Machine, mut items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>> {
    if reverse {
        items.reverse();
    }
    let mut sorted: Vec<Value> = merge_sort(machine, items)?.into_iter().map(|(_, value)| value).collect();
    if reverse {
        sorted.reverse();
    }
    Ok(sorted)
}

fn new_list(machine: &Machine, items: Vec<Value>) -> Result<Value> {
    Ok(Value::List(List::new(items, &machine.budget)?))
}

pub(super) fn list(machine: &Machine, args: &Bound) -> Result<Value> {
    let items = args.value(0).collect(&machine.budget)?;
    new_list(machine, items)
}

pub(super) fn first(_: &Machine, args: &Bound) -> Result<Value> {
    match args.value(0).iter()?.next() {
        Some(item) => item,
        None => Ok(Value::undefined("No first item, sequence was empty.")),
    }
}

pub(super) fn last(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    if matches!(value, Value::Generator(_)) || value.iter().is_err() {
        fail!("'{}' object is not reversible", value.type_name());
    }
    if let Some(text) = value.as_text() {
        machine.budget.reading(text.len())?;
        if !text.is_empty() {
            return machine.item(&value, &Value::Int(-1));
        }
    }
    match value.iter()?.last() {
        Some(item) => item,
        None => Ok(Value::undefined("No last item, sequence was empty.")),
    }
}

pub(super) fn reverse(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    if let Some(text) = value.as_text() {
        machine.budget.text(text.len())?;
        return Ok(same_kind(&value, text.chars().rev().collect()));
    }
    let mut items = value.collect(&machine.budget)?;
    items.reverse();
    match value {
        Value::Generator(_) => new_list(machine, items),
        _ => Generator::value("reverse iterator", items.into_iter().map(Ok), &machine.budget),
    }
}

pub(super) fn join(machine: &Machine, args: &Bound) -> Result<Value> {
    let separator = args.get(1).cloned().unwrap_or_else(|| Value::from(""));
    let path = args.some(2).map(path).unwrap_or_default();
    let mut items = Vec::new();
    for item in args.value(0).iter()? {
        machine.budget.items(1)?;
        items.push(at_path(machine, &item?, &path, None)?);
    }
    let is_markup = |value: &Value| matches!(value, Value::Markup(_));
    let escape = machine.autoescape.get() && (is_markup(&separator) || items.iter().any(is_markup));
    let as_text = |value: &Value| -> Result<Rc<str>> {
        let text = machine.to_text(value)?;
        Ok(if escape && !is_markup(value) { escape_html(&text).into() } else { text })
    };
    let separator = as_text(&separator)?;
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        machine.budget.steps(1)?;
        if at > 0 {
            out.push_str(&separator);
        }
        let text = as_text(item)?;
        check_text(out.len().saturating_add(text.len()))?;
        out.push_str(&text);
    }
    machine.budget.text(out.len())?;
    Ok(if escape { Value::Markup(out.into()) } else { Value::from(out) })
}

pub(super) fn sort(machine: &Machine, args: &Bound) -> Result<Value> {
    let paths: Vec<Vec<Value>> = match args.some(3).map(|attribute| (attribute, attribute.as_text())) {
        None => vec![Vec::new()],
        Some((_, Some(names))) => names.split(',').map(|name| path(&Value::from(name))).collect(),
        Some((attribute, None)) => vec![path(attribute)],
    };
    let mut items = Vec::new();
    for item in args.value(0).collect(&machine.budget)? {
        let mut keys = Vec::new();
        for path in &paths {
            keys.push(sort_key(machine, at_path(machine, &item, path, None)?, args.flag(2))?);
        }
        items.push((Value::List(List::new(keys, &machine.budget)?), item));
    }
    let sorted = sorted(machine, items, args.int(1, 0)? != 0)?;
    new_list(machine, sorted)
}

pub(super) fn dict_sort(machine: &Machine, args: &Bound) -> Result<Value> {
    let Value::Dict(dict) = args.value(0) else {
        fail!("dictsort needs a dict, found '{}'", args.value(0).type_name());
    };
    let by = args.get(2).map_or_else(|| Ok("key".into()), text)?;
    if !matches!(by.as_ref(), "key" | "value") {
        fail!("dictsort sorts by \"key\" or \"value\", not by {by:?}");
    }
    let mut items = Vec::new();
    for (key, value) in dict.entries.values() {
        machine.budget.items(4)?;
        let sort_by = if by.as_ref() == "key" { key } else { value };
        items.push((sort_key(machine, sort_by.clone(), args.flag(1))?, List::pair(key.clone(), value.clone())));
    }
    let sorted = sorted(machine, items, args.int(3, 0)? != 0)?;
    new_list(machine, sorted)
}

pub(super) fn unique(machine: &Machine, args: &Bound) -> Result<Value> {
    let path = args.some(2).map(path).unwrap_or_default();
    let mut seen = HashSet::new();
    let mut items = Vec::new();
    for item in args.value(0).iter()? {
        let take = |item: &Value| -> Result<_> {
            machine.budget.entries(1)?;
            sort_key(machine, at_path(machine, item, &path, None)?, args.flag(1))?.key(&machine.budget)
        };
        // An item that fails ends the generator when it is read.
        match item.and_then(|item| Ok((take(&item)?, item))) {
            Ok((key, item)) => {
                if seen.insert(key) {
                    items.push(Ok(item));
                }
            }
            Err(error) => {
                items.push(Err(error));
                break;
            }
        }
    }
    Generator::value("generator", items.into_iter(), &machine.budget)
}

pub(super) fn min(machine: &Machine, args: &Bound) -> Result<Value> {
    extreme(machine, args, |new, best| new.is_less(best, &machine.budget))
}

pub(super) fn max(machine: &Machine, args: &Bound) -> Result<Value> {
    extreme(machine, args, |new, best| best.is_less(new, &machine.budget))
}

/// The first item whose key beats those of all others.
fn extreme(machine: &Machine, args: &Bound, beats: impl Fn(&Value, &Value) -> Result<bool>) -> Result<Value> {
    let path = args.some(2).map(path).unwrap_or_default();
    let mut best: Option<(Value, Value)> = None;
    for item in args.value(0).iter()? {
        let item = item?;
        let key = sort_key(machine, at_path(machine, &item, &path, None)?, args.flag(1))?;
        if match &best {
            None => true,
            Some((best, _)) => beats(&key, best)?,
        } {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item))
}

pub(super) fn sum(machine: &Machine, args: &Bound) -> Result<Value> {
    let path = args.some(1).map(path).unwrap_or_default();
    let mut sum = args.get(2).cloned().unwrap_or(Value::Int(0));
    if sum.as_text().is_some() {
        fail!("sum() can't sum strings, use the filter 'join'");
    }
    for item in args.value(0).iter()? {
        sum = machine.arithmetic(Operator::Add, &sum, &at_path(machine, &item?, &path, None)?)?;
    }
    Ok(sum)
}

pub(super) fn group_by(machine: &Machine, args: &Bound) -> Result<Value> {
    let (path, default, case_sensitive) = (path(&args.value(1)), args.some(2), args.flag(3));
    let mut items = Vec::new();
    for item in args.value(0).collect(&machine.budget)? {
        machine.budget.items(2)?;
        let key = sort_key(machine, at_path(machine, &item, &path, default)?, case_sensitive)?;
        items.push((key, item));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in merge_sort(machine, items)? {
        match groups.last_mut() {
            Some((last, group)) if last.equals(&key, &machine.budget)? => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut out = Vec::new();
    for (_, group) in groups {
        // The key as the first item of the group has it, not in lower case.
        let key = at_path(machine, &group[0], &path, default)?;
        out.push(List::group(key, new_list(machine, group)?, &machine.budget)?);
    }
    new_list(machine, out)
}

pub(super) fn batch(machine: &Machine, args: &Bound) -> Result<Value> {
    let size = args.value(1);
    let count = super::number::to_index(&size).unwrap_or(-1);
    if count > MAX_PARTS {
        fail!("batch makes at most {MAX_PARTS} parts, and {count} were asked for");
    }
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    for item in args.value(0).iter()? {
        let item = item?;
        machine.budget.items(2)?;
        if i64::try_from(batch.len()).unwrap_or(i64::MAX) == count {
            batches.push(new_list(machine, std::mem::take(&mut batch))?);
        }
        batch.push(item);
    }
    if !batch.is_empty() {
        let missing = usize::try_from(count).unwrap_or(0).saturating_sub(batch.len());
        if let Some(fill) = args.some(2) {
            machine.budget.items(missing)?;
            batch.extend(std::iter::repeat_n(fill.clone(), missing));
        }
        batches.push(new_list(machine, batch)?);
    }
    Generator::value("generator", batches.into_iter().map(Ok), &machine.budget)
}

pub(super) fn slice(machine: &Machine, args: &Bound) -> Result<Value> {
    let slices = super::arguments::index(&args.value(1))?;
    if slices == 0 {
        fail!("division by zero");
    }
    if slices > MAX_PARTS {
        fail!("slice makes at most {MAX_PARTS} parts, and {slices} were asked for");
    }
    let items = args.value(0).collect(&machine.budget)?;
    let slices = usize::try_from(slices).unwrap_or(0);
    let (size, longer) = (items.len().checked_div(slices).unwrap_or(0), items.len().checked_rem(slices).unwrap_or(0));
    let mut parts = Vec::new();
    let mut rest = items.as_slice();
    for at in 0..slices {
        let (part, after) = rest.split_at(size + usize::from(at < longer));
        rest = after;
        let mut part = part.to_vec();
        if at >= longer {
            part.extend(args.some(2).cloned());
        }
        parts.push(new_list(machine, part)?);
    }
    Generator::value("generator", parts.into_iter().map(Ok), &machine.budget)
}

/// `map(attribute=…, default=…)`, or `map(filter, arguments…)`.
pub(super) fn map(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    if !value.is_true() {
        return Generator::value("generator", std::iter::empty(), &machine.budget);
    }
    let mut given = args.rest.clone();
    let apply: Box<dyn Fn(Value) -> Result<Value>> = if given.positional.is_empty() {
        let mut take = |name: &str| {
            let at = given.named.iter().position(|(other, _)| other.as_ref() == name)?;
            Some(given.named.remove(at).1)
        };
        let (attribute, default) = (take("attribute"), take("default"));
        let path = match (attribute, given.named.first()) {
            (Some(attribute), None) => path(&attribute),
            (Some(_), Some((name, _))) => fail!("map() got an unexpected keyword argument '{name}'"),
            (None, _) => fail!("map requires a filter argument"),
        };
        let default = default.filter(|default| !matches!(default, Value::None));
        Box::new(move |item| at_path(machine, &item, &path, default.as_ref()))
    } else {
        let name = text(&given.positional.remove(0))?;
        Box::new(move |item| machine.filter(&name, &item, given.clone()))
    };
    let items = value.iter()?.map(|item| apply(item?));
    Generator::value("generator", items, &machine.budget)
}

/// `select`, `reject`, `selectattr` and `rejectattr`: the items whose test has the truth that is `wanted`.
pub(super) fn select(machine: &Machine, args: &Bound, by_attribute: bool, wanted: bool) -> Result<Value> {
    let value = args.value(0);
    if !value.is_true() {
        return Generator::value("generator", std::iter::empty(), &machine.budget);
    }
    let mut given: CallArguments = args.rest.clone();
    let mut path_of_item = Vec::new();
    if by_attribute {
        if given.positional.is_empty() {
            fail!("the name of an attribute is missing");
        }
        path_of_item = path(&given.positional.remove(0));
    }
    let test = if given.positional.is_empty() { None } else { Some(text(&given.positional.remove(0))?) };
    let passes = |item: &Value| -> Result<bool> {
        let item = at_path(machine, item, &path_of_item, None)?;
        match &test {
            Some(test) => machine.test(test, &item, given.clone()),
            None => Ok(item.is_true()),
        }
    };
    let items = value.iter()?.filter_map(|item| {
        let selected = item.and_then(|item| Ok((passes(&item)? == wanted).then_some(item)));
        selected.transpose()
    });
    Generator::value("generator", items, &machine.budget)
}
