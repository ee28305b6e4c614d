//! Methods, filters and tests where Python's differ from the engine's, or could make one step of a template large.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::meter::{check_text, refused};

/// Beyond this a width in a format is no layout.
const MAX_WIDTH_DIGITS: usize = 3;
/// The most parts that `batch` and `slice` may be asked for.
const MAX_PARTS: usize = 100_000;

pub(super) fn add(env: &mut Environment<'_>) {
    // The engine's own additions to Jinja: a template that names them fails in transformers, too.
    for name in ["chain", "zip", "lines", "split", "bool"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    env.set_unknown_method_callback(method);
    env.add_filter("trim", |text: &Value, chars: Option<&str>| strip(&string(text), chars, true, true).to_owned());
    env.add_filter("replace", |text: &Value, old: &Value, new: &Value, count: Option<i64>| {
        replace(&string(text), &string(old), &string(new), count)
    });
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("format", |text: &Value, args: Rest<Value>| {
        check_format(text.as_str().unwrap_or_default())?;
        let args: Vec<Value> = std::iter::once(text.clone()).chain(args.iter().cloned()).collect();
        engines_own("format", &args)
    });
    for name in ["batch", "slice"] {
        env.add_filter(name, move |list: Value, count: usize, fill: Option<Value>| {
            if count > MAX_PARTS {
                return Err(refused(format!("{count} parts are more than {MAX_PARTS}")));
            }
            let args: Vec<Value> = [list, count.into()].into_iter().chain(fill).collect();
            engines_own(name, &args)
        });
    }
    env.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| value.as_str().is_some() || value.try_iter().is_ok());
}

/// A filter of the engine's, which one of the same name here stands before.
fn engines_own(name: &str, args: &[Value]) -> Result<Value, Error> {
    let plain = Environment::new();
    plain.empty_state().apply_filter(name, args)
}

fn string(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What Python takes for white space: Unicode's, and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip<'t>(mut text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    if left {
        text = text.trim_start_matches(goes);
    }
    if right {
        text = text.trim_end_matches(goes);
    }
    text
}

fn replace(text: &str, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = text.matches(old).take(most).count();
    check_text(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, most))
}

/// `list | join(d, attribute)`.
fn join(list: &Value, separator: Option<&Value>, attribute: Option<&str>, more: Kwargs) -> Result<String, Error> {
    let separator = match separator {
        Some(separator) => string(separator),
        None => more.get::<Option<&str>>("d")?.unwrap_or_default().to_owned(),
    };
    let attribute = attribute.map_or_else(|| more.get::<Option<&str>>("attribute"), |name| Ok(Some(name)))?;
    more.assert_all_used()?;
    let items = list.try_iter()?.map(|item| match attribute {
        None => Ok(item),
        Some(path) => path.split('.').try_fold(item, |item, name| item.get_attr(name)),
    });
    joined(&separator, items)
}

fn joined(separator: &str, items: impl Iterator<Item = Result<Value, Error>>) -> Result<String, Error> {
    let mut text = String::new();
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push_str(separator);
        }
        text.push_str(&string(&item?));
        check_text(text.len())?;
    }
    Ok(text)
}

/// `text | indent(width, first, blank)`.
fn indent(text: &Value, positional: Rest<Value>, more: Kwargs) -> Result<String, Error> {
    let option = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        positional.get(at).cloned().map_or_else(|| more.get::<Option<Value>>(name), |value| Ok(Some(value)))
    };
    let indent = match option(0, "width")? {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = width.as_usize().ok_or_else(|| refused("a width must be a number or a text"))?;
                check_text(width)?;
                " ".repeat(width)
            }
        },
    };
    let first = option(1, "first")?.is_some_and(|value| value.is_true());
    let blank = option(2, "blank")?.is_some_and(|value| value.is_true());
    more.assert_all_used()?;
    let text = string(text);
    let lines = lines(&text, false);
    check_text(text.len().saturating_add(lines.len().saturating_mul(indent.len())))?;
    let mut out = if first { indent.clone() } else { String::new() };
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indent);
            }
        }
        out.push_str(line);
    }
    // A break at the end is followed by an empty line.
    if text.ends_with(is_break) {
        out.push('\n');
        if blank {
            out.push_str(&indent);
        }
    }
    Ok(out)
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// `str.splitlines`.
fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_break) {
        let width = match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { end + width } else { end }]);
        rest = &rest[end + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Refuses widths that would make a large text out of a short one.
fn check_format(text: &str) -> Result<(), Error> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    let nested = text.split('{').skip(1).any(|field| field.contains(':') && !field.contains('}'));
    if digits > MAX_WIDTH_DIGITS || text.contains('*') || nested {
        return Err(refused("a width in a format is too large, or is an argument"));
    }
    Ok(())
}

/// `text.split(sep, maxsplit)`, or `rsplit`, which counts from the end.
fn split(text: &str, separator: Option<&str>, most: Option<i64>, from_end: bool) -> Result<Vec<Value>, Error> {
    let most = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(refused("an empty separator")),
        Some(separator) if from_end => text.rsplitn(most, separator).collect(),
        Some(separator) => text.splitn(most, separator).collect(),
        None if from_end => {
            let (mut parts, mut rest) = (Vec::new(), strip(text, None, false, true));
            while !rest.is_empty() {
                let gap = rest.char_indices().rfind(|&(_, c)| is_space(c)).filter(|_| parts.len() + 1 < most);
                let start = gap.map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(&rest[start..]);
                rest = strip(&rest[..start], None, false, true);
            }
            parts
        }
        None => {
            let (mut parts, mut rest) = (Vec::new(), strip(text, None, true, false));
            while !rest.is_empty() {
                let end = rest.find(is_space).filter(|_| parts.len() + 1 < most).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = strip(&rest[end..], None, true, false);
            }
            parts
        }
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Arguments by position or by name.
fn arguments<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (given, more): (Rest<Value>, Kwargs) = from_args(args)?;
    if given.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut found = [const { None }; N];
    for (at, name) in names.into_iter().enumerate() {
        found[at] = match given.get(at) {
            Some(value) => Some(value.clone()),
            None => more.get::<Option<Value>>(name)?,
        }
        .filter(|value| !value.is_none());
    }
    more.assert_all_used()?;
    Ok(found)
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let one = || -> Result<&str, Error> { Ok(from_args::<(&str,)>(args)?.0) };
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => {
            let [separator, most] = arguments(args, ["sep", "maxsplit"])?;
            let most = most.and_then(|most| most.as_i64());
            Value::from(split(text, separator.as_ref().and_then(Value::as_str), most, name == "rsplit")?)
        }
        "splitlines" => {
            let [keep_ends] = arguments(args, ["keepends"])?;
            lines(text, keep_ends.is_some_and(|keep| keep.is_true())).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let separator = one()?;
            let found = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            parts.into_iter().map(Value::from).collect()
        }
        "removeprefix" => Value::from(text.strip_prefix(one()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(one()?).unwrap_or(text)),
        "replace" => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            Value::from(replace(text, old, new, count)?)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items = items.try_iter()?.map(|item| match item.as_str() {
                Some(_) => Ok(item),
                None => Err(refused(format!("join expects texts, found a value of type {}", item.kind()))),
            });
            Value::from(joined(text, items)?)
        }
        "format" => {
            check_format(text)?;
            return pycompat::unknown_method_callback(state, value, name, args);
        }
        _ => return pycompat::unknown_method_callback(state, value, name, args),
    })
}
