//! Jinja's built-in filters.

use std::rc::Rc;

use super::arguments::{Bound, CallArguments, Native, index, text};
use super::ast::Operator;
use super::attributes::Found;
use super::budget::check_text;
use super::error::{Error, Result, fail};
use super::eval::Machine;
use super::iterate::Generator;
use super::json::to_json;
use super::number;
use super::pretty_print;
use super::repr::quoted;
use super::sequences;
use super::str_methods::{center, replace, strip};
use super::text::{capitalize, char_count, escape_html, split_lines};
use super::value::{Dict, List, Value, ViewKind, same_kind};
use super::wrap;

/// Each filter with its parameters, of which the first is the value that it is applied to.
pub(super) static FILTERS: &[Native] = &[
    Native { name: "abs", parameters: "value", run: abs },
    Native { name: "attr", parameters: "value name", run: attr },
    Native { name: "batch", parameters: "value linecount fill_with?", run: sequences::batch },
    Native { name: "capitalize", parameters: "s", run: |machine, args| mapped(machine, args, capitalize) },
    Native { name: "center", parameters: "value width?", run: center_filter },
    Native { name: "count", parameters: "value", run: length },
    Native { name: "d", parameters: "value default_value? boolean?", run: default },
    Native { name: "default", parameters: "value default_value? boolean?", run: default },
    Native { name: "dictsort", parameters: "value case_sensitive? by? reverse?", run: sequences::dict_sort },
    Native { name: "e", parameters: "value", run: escape },
    Native { name: "escape", parameters: "value", run: escape },
    Native { name: "filesizeformat", parameters: "value binary?", run: file_size },
    Native { name: "first", parameters: "seq", run: sequences::first },
    Native { name: "float", parameters: "value default?", run: float },
    Native { name: "forceescape", parameters: "value", run: force_escape },
    Native { name: "format", parameters: "value *", run: format },
    Native { name: "groupby", parameters: "value attribute default? case_sensitive?", run: sequences::group_by },
    Native { name: "indent", parameters: "s width? first? blank?", run: indent },
    Native { name: "int", parameters: "value default? base?", run: int },
    Native { name: "items", parameters: "value", run: items },
    Native { name: "join", parameters: "value d? attribute?", run: sequences::join },
    Native { name: "last", parameters: "seq", run: sequences::last },
    Native { name: "length", parameters: "value", run: length },
    Native { name: "list", parameters: "value", run: sequences::list },
    Native { name: "lower", parameters: "s", run: |machine, args| mapped(machine, args, str::to_lowercase) },
    Native { name: "map", parameters: "value *", run: sequences::map },
    Native { name: "max", parameters: "value case_sensitive? attribute?", run: sequences::max },
    Native { name: "min", parameters: "value case_sensitive? attribute?", run: sequences::min },
    Native { name: "pprint", parameters: "value", run: pretty_print::pretty_print },
    Native { name: "random", parameters: "seq", run: |_, _| fail!("the filter 'random' is not supported") },
    Native {
        name: "reject",
        parameters: "value *",
        run: |machine, args| sequences::select(machine, args, false, false),
    },
    Native {
        name: "rejectattr",
        parameters: "value *",
        run: |machine, args| sequences::select(machine, args, true, false),
    },
    Native { name: "replace", parameters: "s old new count?", run: replace_filter },
    Native { name: "reverse", parameters: "value", run: sequences::reverse },
    Native { name: "round", parameters: "value precision? method?", run: round },
    Native {
        name: "safe",
        parameters: "value",
        run: |machine, args| Ok(Value::Markup(machine.to_text(&args.value(0))?)),
    },
    Native {
        name: "select",
        parameters: "value *",
        run: |machine, args| sequences::select(machine, args, false, true),
    },
    Native {
        name: "selectattr",
        parameters: "value *",
        run: |machine, args| sequences::select(machine, args, true, true),
    },
    Native { name: "slice", parameters: "value slices fill_with?", run: sequences::slice },
    Native { name: "sort", parameters: "value reverse? case_sensitive? attribute?", run: sequences::sort },
    Native { name: "string", parameters: "s", run: string },
    Native { name: "striptags", parameters: "value", run: wrap::strip_tags },
    Native { name: "sum", parameters: "iterable attribute? start?", run: sequences::sum },
    Native { name: "title", parameters: "s", run: |machine, args| mapped(machine, args, title) },
    Native { name: "tojson", parameters: "x ensure_ascii? indent? separators? sort_keys?", run: to_json },
    Native { name: "trim", parameters: "value chars?", run: trim },
    Native { name: "truncate", parameters: "s length? killwords? end? leeway?", run: truncate },
    Native { name: "unique", parameters: "value case_sensitive? attribute?", run: sequences::unique },
    Native { name: "upper", parameters: "s", run: |machine, args| mapped(machine, args, str::to_uppercase) },
    Native { name: "urlencode", parameters: "value", run: url_encode },
    Native { name: "urlize", parameters: "value *", run: |_, _| fail!("the filter 'urlize' is not supported") },
    Native { name: "wordcount", parameters: "s", run: word_count },
    Native {
        name: "wordwrap",
        parameters: "s width? break_long_words? wrapstring? break_on_hyphens?",
        run: wrap::word_wrap,
    },
    Native { name: "xmlattr", parameters: "d autospace?", run: xml_attributes },
];

/// The value as a text, changed; an escaped text stays escaped.
fn mapped(machine: &Machine, args: &Bound, change: fn(&str) -> String) -> Result<Value> {
    let value = args.value(0);
    let text = machine.to_text(&value)?;
    machine.budget.text(text.len())?;
    let changed = change(&text);
    check_text(changed.len())?;
    Ok(same_kind(&value, changed))
}

fn abs(_: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    match &value {
        Value::Float(float) => Ok(Value::Float(float.abs())),
        _ if number::is_negative(&value) => Ok(number::negative(&value).unwrap_or(value)),
        _ => match number::positive(&value) {
            Some(value) => Ok(value),
            None => fail!("bad operand type for abs(): '{}'", value.type_name()),
        },
    }
}

/// `value | attr(name)`: the attribute alone, without a look at the items.
fn attr(machine: &Machine, args: &Bound) -> Result<Value> {
    let (value, name) = (args.value(0), args.text(1)?);
    if let Value::Undefined(undefined) = &value {
        return Err(undefined.error());
    }
    match machine.find_attribute(&value, &name)? {
        Some(Found::Value(found)) => Ok(found),
        Some(Found::Unsafe) => machine.attribute(&value, &name),
        None => Ok(value.no_attribute(&name)),
    }
}

fn center_filter(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = machine.to_text(&args.value(0))?;
    machine.new_text(center(&text, args.int(1, 80)?)?)
}

fn length(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    if let Value::Loop(looped) = &value {
        return Ok(Value::from(machine.loop_length(looped)?));
    }
    machine.budget.reading(value.as_text().map_or(0, |text| text.len()))?;
    match value.len() {
        Some(len) => Ok(Value::from(len)),
        None => fail!("object of type '{}' has no len()", value.type_name()),
    }
}

fn default(_: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    if value.is_undefined() || args.flag(2) && !value.is_true() {
        return Ok(args.get(1).cloned().unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

fn escape(machine: &Machine, args: &Bound) -> Result<Value> {
    match args.value(0) {
        Value::Markup(text) => Ok(Value::Markup(text)),
        _ => force_escape(machine, args),
    }
}

fn force_escape(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = machine.to_text(&args.value(0))?;
    // Each character may become five.
    check_text(text.len().saturating_mul(5))?;
    let escaped = escape_html(&text);
    machine.budget.text(escaped.len())?;
    Ok(Value::Markup(escaped.into()))
}

fn file_size(_: &Machine, args: &Bound) -> Result<Value> {
    const DECIMAL: [&str; 8] = ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"];
    const BINARY: [&str; 8] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"];
    let bytes = to_float(&args.value(0))?;
    let (base, prefixes) = if args.flag(1) { (1024.0, BINARY) } else { (1000.0, DECIMAL) };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        let whole = number::truncate(bytes)?;
        return Ok(Value::from(format!("{} Bytes", number::to_index(&whole).unwrap_or(0))));
    }
    let mut unit: f64 = base;
    for prefix in prefixes {
        unit *= base;
        if bytes < unit || prefix == prefixes[7] {
            let count = base * bytes / unit;
            let count = if count.is_nan() { "nan".to_owned() } else { format!("{count:.1}") };
            return Ok(Value::from(format!("{count} {prefix}")));
        }
    }
    Ok(Value::None)
}

/// `float(value)`, which fails for what is not a number.
fn to_float(value: &Value) -> Result<f64> {
    match (number::to_float(value), value.as_text(), value) {
        (Some(float), _, _) => float,
        (None, Some(text), _) => match number::parse_float(text) {
            Some(float) => Ok(float),
            None => fail!("could not convert string to float: {}", quoted(text)),
        },
        (None, None, Value::Undefined(undefined)) => Err(undefined.error()),
        _ => fail!("float() argument must be a string or a real number, not '{}'", value.type_name()),
    }
}

fn float(_: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    match (number::to_float(&value), &value) {
        // An integer may be too large, which is an error in Python, too.
        (Some(float), _) => float.map(Value::Float),
        (None, Value::Undefined(undefined)) => Err(undefined.error()),
        (None, _) => match value.as_text().and_then(|text| number::parse_float(text)) {
            Some(float) => Ok(Value::Float(float)),
            None => Ok(args.get(1).cloned().unwrap_or(Value::Float(0.0))),
        },
    }
}

fn int(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let default = || args.get(1).cloned().unwrap_or(Value::Int(0));
    match &value {
        Value::Float(float) if float.is_nan() => Ok(default()),
        Value::Float(float) => number::truncate(*float),
        Value::Undefined(undefined) => Err(undefined.error()),
        _ => match (number::positive(&value), value.as_text()) {
            (Some(int), _) => Ok(int),
            (None, Some(text)) => {
                machine.budget.reading(text.len())?;
                // A base that is no integer makes Python try a float, as every other failure does.
                let base = args.get(2).map_or(Some(10), number::to_index).unwrap_or(-1);
                let int = number::parse_int(text, base).map(number::from_big);
                // Jinja reads "42.23" as 42.
                let truncated = || number::parse_float(text).and_then(|float| number::truncate(float).ok());
                Ok(int.or_else(truncated).unwrap_or_else(default))
            }
            (None, None) => Ok(default()),
        },
    }
}

fn format(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let format = if value.as_text().is_some() { value } else { Value::Text(machine.to_text(&value)?) };
    let CallArguments { positional, named } = &args.rest;
    let values = match (positional.is_empty(), named.is_empty()) {
        (_, true) => Value::Tuple(List::new(positional.clone(), &machine.budget)?),
        (true, false) => {
            let named = named.iter().map(|(name, value)| (Value::Text(name.clone()), value.clone()));
            Value::Dict(Dict::new(named, &machine.budget)?)
        }
        _ => fail!("the filter 'format' takes positional or keyword arguments, not both"),
    };
    machine.arithmetic(Operator::Remainder, &format, &values)
}

fn indent(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let source = text(&value)?;
    let indent = match args.get(1) {
        Some(width) if width.as_text().is_some() => text(width)?,
        _ => {
            let width = usize::try_from(args.int(1, 4)?).unwrap_or(0);
            check_text(width)?;
            " ".repeat(width).into()
        }
    };
    let (first, blank) = (args.flag(2), args.flag(3));
    let ended = format!("{source}\n");
    let lines = split_lines(&ended, false);
    check_text(ended.len().saturating_add(lines.len().saturating_mul(indent.len())))?;
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    machine.budget.text(out.len())?;
    Ok(same_kind(&value, out))
}

fn items(machine: &Machine, args: &Bound) -> Result<Value> {
    let items = match args.value(0) {
        Value::Undefined(_) => Vec::new(),
        Value::Dict(dict) => Value::View(ViewKind::Items, dict).collect(&machine.budget)?,
        other => {
            return failed_generator(
                machine,
                Error::new(format!("items needs a mapping, found '{}'", other.type_name())),
            );
        }
    };
    Generator::value("generator", items.into_iter().map(Ok), &machine.budget)
}

/// A generator that fails when it is read.
fn failed_generator(machine: &Machine, error: Error) -> Result<Value> {
    Generator::value("generator", std::iter::once(Err(error)), &machine.budget)
}

fn replace_filter(machine: &Machine, args: &Bound) -> Result<Value> {
    let [source, old, new] = [0, 1, 2].map(|at| machine.to_text(&args.value(at)));
    let count = match args.some(3) {
        Some(count) => index(count)?,
        None => -1,
    };
    replace(machine, &source?, &old?, &new?, count)
}

fn round(machine: &Machine, args: &Bound) -> Result<Value> {
    let (value, digits) = (args.value(0), args.int(1, 0)?);
    let method = args.get(2).map_or_else(|| Ok("common".into()), text)?;
    let round_up = match method.as_ref() {
        "common" => return number::round(&value, digits),
        "ceil" => true,
        "floor" => false,
        _ => fail!("method must be common, ceil or floor"),
    };
    let unit = machine.arithmetic(Operator::Power, &Value::Int(10), &Value::Int(digits))?;
    let scaled = to_float(&machine.arithmetic(Operator::Multiply, &value, &unit)?)?;
    let rounded = number::truncate(if round_up { scaled.ceil() } else { scaled.floor() })?;
    machine.arithmetic(Operator::Divide, &rounded, &unit)
}

fn string(machine: &Machine, args: &Bound) -> Result<Value> {
    match args.value(0) {
        text @ (Value::Text(_) | Value::Markup(_)) => Ok(text),
        other => Ok(Value::Text(machine.to_text(&other)?)),
    }
}

/// Words begin after white space, hyphens and opening brackets.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| super::text::is_space(c) || "-({[<".contains(c)) {
        let mut chars = word.chars();
        if let Some(first) = chars.next() {
            out.extend(first.to_uppercase());
            out.push_str(&chars.as_str().to_lowercase());
        }
    }
    out
}

fn trim(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let source = machine.to_text(&value)?;
    let chars = args.some(1).map(text).transpose()?;
    machine.budget.steps(chars.as_ref().map_or(0, |chars| source.len().saturating_mul(chars.len()) / 256))?;
    machine.budget.text(source.len())?;
    Ok(same_kind(&value, strip(&source, chars.as_deref(), true, true).to_owned()))
}

fn truncate(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let length = args.int(1, 255)?;
    let end: Rc<str> = args.get(3).map_or_else(|| Ok("...".into()), text)?;
    let leeway = args.some(4).map_or(Ok(5), index)?;
    let end_length = i64::try_from(char_count(&end)).unwrap_or(i64::MAX);
    if length < end_length || leeway < 0 {
        fail!("truncate needs a length of at least {end_length} and a leeway of at least 0");
    }
    let Some(len) = value.len() else { fail!("object of type '{}' has no len()", value.type_name()) };
    if i64::try_from(len).unwrap_or(i64::MAX) <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let source = text(&value)?;
    let kept = super::text::byte_offset(&source, usize::try_from(length - end_length).unwrap_or(0));
    let kept = &source[..kept];
    let kept = if args.flag(2) { kept } else { kept.rsplit_once(' ').map_or(kept, |(before, _)| before) };
    machine.new_text(format!("{kept}{end}"))
}

fn url_encode(machine: &Machine, args: &Bound) -> Result<Value> {
    let value = args.value(0);
    let pairs = match &value {
        Value::Dict(dict) => Value::View(ViewKind::Items, dict.clone()),
        _ if value.as_text().is_some() || value.iter().is_err() => {
            return machine.new_text(percent_encoded(&machine.to_text(&value)?, false)?);
        }
        other => other.clone(),
    };
    let mut out = String::new();
    for pair in pairs.iter()? {
        let pair = pair?.collect(&machine.budget)?;
        let [key, value] = pair.as_slice() else { fail!("urlencode needs pairs of keys and values") };
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(&percent_encoded(&machine.to_text(key)?, true)?);
        out.push('=');
        out.push_str(&percent_encoded(&machine.to_text(value)?, true)?);
        check_text(out.len())?;
    }
    machine.new_text(out)
}

fn percent_encoded(text: &str, in_query: bool) -> Result<String> {
    // Each byte may become three.
    check_text(text.len().saturating_mul(3))?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

fn word_count(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = machine.to_text(&args.value(0))?;
    machine.budget.reading(text.len())?;
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}

fn xml_attributes(machine: &Machine, args: &Bound) -> Result<Value> {
    let Value::Dict(dict) = args.value(0) else { fail!("xmlattr needs a dict") };
    let mut out = String::new();
    for (key, value) in dict.entries.values() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = text(key)?;
        if key.contains([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '/', '>', '=']) {
            fail!("invalid character in the name of an attribute");
        }
        let value = match value {
            Value::Markup(text) => text.to_string(),
            value => escape_html(&machine.to_text(value)?),
        };
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&format!("{}=\"{value}\"", escape_html(&key)));
        check_text(out.len())?;
    }
    if !out.is_empty() && args.get(1).is_none_or(Value::is_true) {
        out.insert(0, ' ');
    }
    machine.new_text(out)
}
