//! The global functions of chat templates: Jinja's, and those that transformers adds.

use std::cell::Cell;
use std::rc::Rc;

use super::arguments::{Bound, CallArguments, Native, index};
use super::error::{Error, Result, fail};
use super::eval::Machine;
use super::value::{Cycler, Dict, Joiner, List, Namespace, Range, Value, nesting_of, range_len};

/// Maximum number of items of a range, as in Jinja's sandbox.
const MAX_RANGE: usize = 100_000;

pub(super) static GLOBALS: [Native; 8] = [
    Native { name: "range", parameters: "/start /stop? /step?", run: range },
    Native { name: "dict", parameters: "*", run: |machine, args| Ok(Value::Dict(dict(machine, &args.rest)?)) },
    Native { name: "namespace", parameters: "*", run: namespace },
    Native { name: "cycler", parameters: "*", run: cycler },
    Native { name: "joiner", parameters: "sep?", run: joiner },
    Native { name: "lipsum", parameters: "*", run: |_, _| fail!("lipsum is random text, which is not supported") },
    Native { name: "raise_exception", parameters: "message", run: raise_exception },
    Native { name: "strftime_now", parameters: "format", run: strftime_now },
];

fn range(_: &Machine, args: &Bound) -> Result<Value> {
    let first = index(&args.value(0))?;
    let (start, stop) = match args.get(1) {
        Some(stop) => (first, index(stop)?),
        None => (0, first),
    };
    let step = args.int(2, 1)?;
    if step == 0 {
        fail!("range() arg 3 must not be zero");
    }
    let len = range_len(start, stop, step);
    if len > MAX_RANGE {
        fail!("a range of {len} items has too many: at most {MAX_RANGE} are allowed");
    }
    Ok(Value::Range(Rc::new(Range { start, stop, step, len })))
}

/// `dict(mapping or pairs, key=value)`.
fn dict(machine: &Machine, given: &CallArguments) -> Result<Rc<Dict>> {
    let mut entries = Vec::new();
    match given.positional.as_slice() {
        [] => {}
        [Value::Dict(dict)] => entries.extend(dict.entries.values().cloned()),
        [pairs] => {
            for pair in pairs.iter()? {
                machine.budget.items(2)?;
                let mut pair = pair?.iter()?;
                let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                    fail!("dict() needs a mapping or pairs");
                };
                entries.push((key?, value?));
            }
        }
        more => fail!("dict() takes at most 1 argument, and {} were given", more.len()),
    }
    entries.extend(given.named.iter().map(|(name, value)| (Value::Text(name.clone()), value.clone())));
    Dict::new(entries, &machine.budget)
}

fn namespace(machine: &Machine, args: &Bound) -> Result<Value> {
    let namespace = Rc::new(Namespace::default());
    for (name, value) in dict(machine, &args.rest)?.entries.values() {
        let Some(name) = name.as_text() else { fail!("the attributes of a namespace must have strings as names") };
        namespace.set(name, value.clone(), &machine.budget)?;
    }
    machine.track_namespace(&namespace)?;
    Ok(Value::Namespace(namespace))
}

fn cycler(machine: &Machine, args: &Bound) -> Result<Value> {
    if args.rest.positional.is_empty() || !args.rest.named.is_empty() {
        fail!("cycler() needs items, by position");
    }
    let items = List::new(args.rest.positional.clone(), &machine.budget)?;
    Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0) })))
}

fn joiner(_: &Machine, args: &Bound) -> Result<Value> {
    let separator = args.get(0).cloned().unwrap_or_else(|| Value::from(", "));
    nesting_of(std::iter::once(&separator))?;
    Ok(Value::Joiner(Rc::new(Joiner { separator, used: Cell::new(false) })))
}

fn raise_exception(machine: &Machine, args: &Bound) -> Result<Value> {
    Err(Error::new(machine.to_text(&args.value(0))?.as_ref()))
}

fn strftime_now(machine: &Machine, args: &Bound) -> Result<Value> {
    /// A directive may write much more than it takes in the format.
    const MAX_FORMAT_BYTES: usize = 1000;
    let format = args.text(0)?;
    if format.len() > MAX_FORMAT_BYTES {
        fail!("strftime_now takes a format of at most {MAX_FORMAT_BYTES} bytes, found {} bytes", format.len());
    }
    match now(&directives(&format)) {
        Ok(text) => machine.new_text(text),
        Err(error) => fail!("strftime_now cannot format the time by '{format}': {error}"),
    }
}

/// A format of Python's `strftime` for a local time without a zone, in directives that mean the same everywhere.
fn directives(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        if let Some(modifier @ ('E' | 'O')) = directive {
            // These ask for the eras and digits of a locale, which Python's default locale does not have.
            let known = if modifier == 'E' { "cCxXyYz%" } else { "deHImMSuUVwWyz%" };
            if !chars.as_str().starts_with(|c| known.contains(c)) {
                out.extend(['%', '%', modifier]);
                continue;
            }
            directive = chars.next();
        }
        match directive {
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('f') => out.push_str("%6f"),
            // A time without a zone has no name and no offset of one.
            Some('z' | 'Z') => {}
            directive => out.extend(std::iter::once('%').chain(directive)),
        }
    }
    out
}

/// The local time by a format of `strftime`.
#[cfg(feature = "local-time")]
fn now(format: &str) -> std::result::Result<String, String> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(|error| error.to_string())
}

#[cfg(not(feature = "local-time"))]
fn now(_: &str) -> std::result::Result<String, String> {
    Err("the local time needs the feature `local-time`".to_owned())
}
