//! The methods of Python's `str`.

use super::arguments::{Bound, Native, index, text};
use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::methods::from_end;
use super::number;
use super::text::{
    byte_offset, capitalize, casefold, char_count, decimal_digit, is_cased, is_digit, is_identifier, is_printable,
    is_space, split_lines, swap_case, title,
};
use super::value::{Dict, List, Value};

/// A method with one name, its parameters after `self`, and what runs it.
macro_rules! methods {
    ($($name:literal ($parameters:literal) => $run:expr;)*) => {
        &[$(Native { name: $name, parameters: concat!("self ", $parameters), run: $run }),*]
    };
}

pub(super) static STR: &[Native] = methods! {
    "capitalize" ("") => |machine, args| changed(machine, args, capitalize);
    "casefold" ("") => |machine, args| changed(machine, args, casefold);
    "center" ("/width /fill?") => |machine, args| justified(machine, args, Side::Both);
    "count" ("/part /start? /end?") => count;
    "encode" ("encoding? errors?") => |_, _| fail!("encode() makes bytes, which templates do not have here");
    "endswith" ("/end /start? /stop?") => |machine, args| has_affix(machine, args, |text, affix| text.ends_with(affix));
    "expandtabs" ("tabsize?") => expand_tabs;
    "find" ("/part /start? /end?") => |machine, args| position(machine, args, false).map(found_or_minus_one);
    "format" ("*") => |machine, args| machine.format_method(&args.value(0), &args.rest);
    "format_map" ("/mapping") => |machine, args| machine.format_map_method(&args.value(0), &args.value(1));
    "index" ("/part /start? /end?") => |machine, args| position(machine, args, false).and_then(found_or_error);
    "isalnum" ("") => |machine, args| all(machine, args, |c| c.is_alphabetic() || c.is_numeric());
    "isalpha" ("") => |machine, args| all(machine, args, char::is_alphabetic);
    "isascii" ("") => |_, args| Ok(Value::Bool(args.text(0)?.is_ascii()));
    "isdecimal" ("") => |machine, args| all(machine, args, |c| decimal_digit(c).is_some());
    "isdigit" ("") => |machine, args| all(machine, args, is_digit);
    "isidentifier" ("") => |_, args| Ok(Value::Bool(is_identifier(&args.text(0)?)));
    "islower" ("") => |_, args| Ok(Value::Bool(has_case(&args.text(0)?, char::is_uppercase)));
    "isnumeric" ("") => |machine, args| all(machine, args, char::is_numeric);
    "isprintable" ("") => |_, args| Ok(Value::Bool(args.text(0)?.chars().all(is_printable)));
    "isspace" ("") => |machine, args| all(machine, args, is_space);
    "istitle" ("") => |_, args| Ok(Value::Bool(is_title(&args.text(0)?)));
    "isupper" ("") => |_, args| Ok(Value::Bool(has_case(&args.text(0)?, char::is_lowercase)));
    "join" ("/items") => join;
    "ljust" ("/width /fill?") => |machine, args| justified(machine, args, Side::Right);
    "lower" ("") => |machine, args| changed(machine, args, str::to_lowercase);
    "lstrip" ("/chars?") => |machine, args| stripped(machine, args, true, false);
    "maketrans" ("*") => |_, _| fail!("maketrans() is not supported; translate() takes a dict");
    "partition" ("/separator") => |machine, args| partition(machine, args, false);
    "removeprefix" ("/prefix") => |machine, args| without_affix(machine, args, |text, affix| text.strip_prefix(affix));
    "removesuffix" ("/suffix") => |machine, args| without_affix(machine, args, |text, affix| text.strip_suffix(affix));
    "replace" ("/old /new count?") => replace_method;
    "rfind" ("/part /start? /end?") => |machine, args| position(machine, args, true).map(found_or_minus_one);
    "rindex" ("/part /start? /end?") => |machine, args| position(machine, args, true).and_then(found_or_error);
    "rjust" ("/width /fill?") => |machine, args| justified(machine, args, Side::Left);
    "rpartition" ("/separator") => |machine, args| partition(machine, args, true);
    "rsplit" ("sep? maxsplit?") => |machine, args| split(machine, args, true);
    "rstrip" ("/chars?") => |machine, args| stripped(machine, args, false, true);
    "split" ("sep? maxsplit?") => |machine, args| split(machine, args, false);
    "splitlines" ("keepends?") => lines;
    "startswith" ("/start /from? /stop?") => |machine, args| has_affix(machine, args, |text, affix| text.starts_with(affix));
    "strip" ("/chars?") => |machine, args| stripped(machine, args, true, true);
    "swapcase" ("") => |machine, args| changed(machine, args, swap_case);
    "title" ("") => |machine, args| changed(machine, args, title);
    "translate" ("/table") => translate;
    "upper" ("") => |machine, args| changed(machine, args, str::to_uppercase);
    "zfill" ("/width") => fill_with_zeros;
};

/// The side on which a text is filled up to a width.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

/// A list of new texts.
fn made_list<'t>(machine: &Machine, texts: impl IntoIterator<Item = &'t str>) -> Result<Vec<Value>> {
    let made_item = |text: &'t str| {
        machine.budget.items(2)?;
        machine.new_text(text)
    };
    texts.into_iter().map(made_item).collect()
}

fn changed(machine: &Machine, args: &Bound, change: fn(&str) -> String) -> Result<Value> {
    let text = args.text(0)?;
    // Some characters have longer forms in the other case.
    machine.budget.text(text.len())?;
    machine.new_text(change(&text))
}

fn all(machine: &Machine, args: &Bound, test: fn(char) -> bool) -> Result<Value> {
    let text = args.text(0)?;
    machine.budget.reading(text.len())?;
    Ok(Value::Bool(!text.is_empty() && text.chars().all(test)))
}

/// Tells if a text has letters with a case, and none of the other case.
pub(super) fn has_case(text: &str, is_other: fn(char) -> bool) -> bool {
    let is_title = |c: char| is_cased(c) && !c.is_lowercase() && !c.is_uppercase();
    text.chars().any(is_cased) && !text.chars().any(|c| is_other(c) || is_title(c))
}

fn is_title(text: &str) -> bool {
    let (mut in_word, mut any) = (false, false);
    for c in text.chars() {
        let is_upper = c.is_uppercase() || is_cased(c) && !c.is_lowercase();
        if is_upper && in_word || c.is_lowercase() && !in_word {
            return false;
        }
        in_word = is_cased(c);
        any |= in_word;
    }
    any
}

/// The part of a text between two indices of code points: its bytes, and the index of its first code point.
fn part_between(text: &str, start: Option<&Value>, end: Option<&Value>) -> Result<Option<(usize, usize, usize)>> {
    let len = char_count(text);
    let bound = |value: Option<&Value>| -> Result<Option<i64>> {
        value.filter(|value| !matches!(value, Value::None)).map(index).transpose()
    };
    let start = bound(start)?.unwrap_or(0);
    let end = bound(end)?.map_or(len, |end| from_end(end, len));
    if start > i64::try_from(len).unwrap_or(i64::MAX) {
        return Ok(None);
    }
    let start = from_end(start, len);
    if start > end {
        return Ok(None);
    }
    Ok(Some((byte_offset(text, start), byte_offset(text, end), start)))
}

/// The index of the first or last place of a part, in code points.
fn position(machine: &Machine, args: &Bound, last: bool) -> Result<Option<usize>> {
    let (text, part) = (args.text(0)?, args.text(1)?);
    machine.budget.reading(2 * text.len())?;
    let Some((start, end, first)) = part_between(&text, args.get(2), args.get(3))? else { return Ok(None) };
    let within = &text[start..end];
    let at = if last { within.rfind(part.as_ref()) } else { within.find(part.as_ref()) };
    Ok(at.map(|at| first + char_count(&within[..at])))
}

fn found_or_minus_one(at: Option<usize>) -> Value {
    at.map_or(Value::Int(-1), Value::from)
}

fn found_or_error(at: Option<usize>) -> Result<Value> {
    match at {
        Some(at) => Ok(Value::from(at)),
        None => fail!("substring not found"),
    }
}

fn count(machine: &Machine, args: &Bound) -> Result<Value> {
    let (text, part) = (args.text(0)?, args.text(1)?);
    machine.budget.reading(2 * text.len())?;
    let Some((start, end, _)) = part_between(&text, args.get(2), args.get(3))? else { return Ok(Value::Int(0)) };
    Ok(Value::from(text[start..end].matches(part.as_ref()).count()))
}

/// `startswith` and `endswith`, with one affix or a tuple of them.
fn has_affix(machine: &Machine, args: &Bound, test: fn(&str, &str) -> bool) -> Result<Value> {
    let receiver = args.text(0)?;
    machine.budget.reading(receiver.len())?;
    let part = part_between(&receiver, args.get(2), args.get(3))?;
    let has = |affix: &Value| -> Result<bool> {
        machine.budget.steps(1)?;
        let affix = text(affix)?;
        Ok(part.is_some_and(|(start, end, _)| test(&receiver[start..end], &affix)))
    };
    let Value::Tuple(affixes) = args.value(1) else { return has(&args.value(1)).map(Value::Bool) };
    for affix in &affixes.items {
        if has(affix)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn without_affix(
    machine: &Machine,
    args: &Bound,
    strip: for<'t> fn(&'t str, &str) -> Option<&'t str>,
) -> Result<Value> {
    let (text, affix) = (args.text(0)?, args.text(1)?);
    machine.new_text(strip(&text, &affix).unwrap_or(&text))
}

/// A text without white space, or without some characters, at its ends.
pub(super) fn strip<'t>(mut text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    if left {
        text = text.trim_start_matches(goes);
    }
    if right {
        text = text.trim_end_matches(goes);
    }
    text
}

fn stripped(machine: &Machine, args: &Bound, left: bool, right: bool) -> Result<Value> {
    let receiver = args.text(0)?;
    let chars = args.some(1).map(text).transpose()?;
    // Each character may be compared with all that are stripped.
    machine.budget.steps(chars.as_ref().map_or(0, |chars| receiver.len().saturating_mul(chars.len()) / 256))?;
    machine.new_text(strip(&receiver, chars.as_deref(), left, right))
}

/// A text filled up to `width` code points.
fn justify(text: &str, width: i64, fill: char, side: Side) -> Result<String> {
    let len = char_count(text);
    let width = usize::try_from(width).unwrap_or(0);
    check_text(width.saturating_mul(fill.len_utf8()))?;
    let missing = width.saturating_sub(len);
    let left = match side {
        Side::Left => missing,
        Side::Right => 0,
        // Python puts the odd one on the left only in odd widths.
        Side::Both => missing / 2 + (missing & width & 1),
    };
    let mut out = String::with_capacity(text.len() + missing);
    out.extend(std::iter::repeat_n(fill, left));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - left));
    Ok(out)
}

fn justified(machine: &Machine, args: &Bound, side: Side) -> Result<Value> {
    let fill = match args.get(2) {
        None => ' ',
        Some(fill) => {
            let fill = text(fill)?;
            let mut chars = fill.chars();
            let (Some(fill), None) = (chars.next(), chars.next()) else {
                fail!("the fill character must be exactly one character long");
            };
            fill
        }
    };
    machine.new_text(justify(&args.text(0)?, args.int(1, 0)?, fill, side)?)
}

/// `str.center`, for the filter of this name.
pub(super) fn center(text: &str, width: i64) -> Result<String> {
    justify(text, width, ' ', Side::Both)
}

fn fill_with_zeros(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = args.text(0)?;
    let sign = if text.starts_with(['+', '-']) { 1 } else { 0 };
    let width = args.int(1, 0)?.saturating_sub(i64::try_from(sign).unwrap_or(0));
    let digits = justify(&text[sign..], width, '0', Side::Left)?;
    machine.new_text(format!("{}{digits}", &text[..sign]))
}

fn expand_tabs(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = args.text(0)?;
    let size = usize::try_from(args.int(1, 8)?).unwrap_or(0);
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                check_text(out.len().saturating_add(spaces))?;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    machine.new_text(out)
}

fn partition(machine: &Machine, args: &Bound, last: bool) -> Result<Value> {
    let (text, separator) = (args.text(0)?, args.text(1)?);
    if separator.is_empty() {
        fail!("empty separator");
    }
    let separator = separator.as_ref();
    let found = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if last => ["", "", &text],
        None => [&text, "", ""],
    };
    Ok(Value::Tuple(List::new(made_list(machine, parts)?, &machine.budget)?))
}

fn lines(machine: &Machine, args: &Bound) -> Result<Value> {
    let text = args.text(0)?;
    machine.budget.reading(text.len())?;
    let keep_ends = args.int(1, 0)?;
    // Python has a C int here.
    if i32::try_from(keep_ends).is_err() {
        fail!("splitlines() takes an integer of 32 bits, found {keep_ends}");
    }
    let lines = split_lines(&text, keep_ends != 0);
    Ok(Value::List(List::new(made_list(machine, lines)?, &machine.budget)?))
}

/// `split`, or `rsplit`, which counts from the end.
fn split(machine: &Machine, args: &Bound, from_end: bool) -> Result<Value> {
    let receiver = args.text(0)?;
    machine.budget.reading(receiver.len())?;
    let separator = args.some(1).map(text).transpose()?;
    let most = usize::try_from(args.int(2, -1)?).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator.as_deref() {
        Some("") => fail!("empty separator"),
        Some(separator) if from_end => receiver.rsplitn(most, separator).collect(),
        Some(separator) => receiver.splitn(most, separator).collect(),
        None if from_end => words_from_end(&receiver, most),
        None => words(&receiver, most),
    };
    if from_end {
        parts.reverse();
    }
    Ok(Value::List(List::new(made_list(machine, parts)?, &machine.budget)?))
}

/// Words between white space, of which the last holds all that is left.
fn words(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), strip(text, None, true, false));
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| words.len() + 1 < most).unwrap_or(rest.len());
        words.push(&rest[..end]);
        rest = strip(&rest[end..], None, true, false);
    }
    words
}

fn words_from_end(text: &str, most: usize) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), strip(text, None, false, true));
    while !rest.is_empty() {
        let gap = rest.char_indices().rfind(|&(_, c)| is_space(c)).filter(|_| words.len() + 1 < most);
        let start = gap.map_or(0, |(at, c)| at + c.len_utf8());
        words.push(&rest[start..]);
        rest = strip(&rest[..start], None, false, true);
    }
    words
}

fn join(machine: &Machine, args: &Bound) -> Result<Value> {
    let separator = args.text(0)?;
    let mut out = String::new();
    for (at, item) in args.value(1).iter()?.enumerate() {
        machine.budget.steps(1)?;
        if at > 0 {
            out.push_str(&separator);
        }
        let item = item?;
        let Some(text) = item.as_text() else {
            fail!("sequence item {at}: expected str instance, {} found", item.type_name());
        };
        check_text(out.len().saturating_add(text.len()).saturating_add(separator.len()))?;
        out.push_str(text);
    }
    machine.new_text(out)
}

/// `text.replace(old, new, count)`, where a negative count replaces all.
pub(super) fn replace(machine: &Machine, text: &str, old: &str, new: &str, count: i64) -> Result<Value> {
    machine.budget.reading(text.len())?;
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).take(most).count();
    check_text(text.len().saturating_add(found.saturating_mul(new.len())))?;
    machine.new_text(text.replacen(old, new, most))
}

fn replace_method(machine: &Machine, args: &Bound) -> Result<Value> {
    replace(machine, &args.text(0)?, &args.text(1)?, &args.text(2)?, args.int(3, -1)?)
}

/// `translate` with a dict of code points: to other ones, to texts, or to `None`.
fn translate(machine: &Machine, args: &Bound) -> Result<Value> {
    let Value::Dict(table) = args.value(1) else { fail!("translate() needs a dict") };
    let mut out = String::new();
    for c in args.text(0)?.chars() {
        machine.budget.steps(1)?;
        push_translated(machine, &table, c, &mut out)?;
        check_text(out.len())?;
    }
    machine.new_text(out)
}

fn push_translated(machine: &Machine, table: &Dict, c: char, out: &mut String) -> Result<()> {
    match table.get(&Value::Int(i64::from(u32::from(c))), &machine.budget)? {
        None => out.push(c),
        Some(Value::None) => {}
        Some(Value::Text(text) | Value::Markup(text)) => {
            check_text(out.len() + text.len())?;
            out.push_str(text);
        }
        Some(value) => {
            let code = number::to_index(value).and_then(|code| char::from_u32(u32::try_from(code).ok()?));
            match code {
                Some(c) => out.push(c),
                None => fail!("the table of translate() must hold characters, found '{}'", value.type_name()),
            }
        }
    }
    Ok(())
}
