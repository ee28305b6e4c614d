//! Regular expressions as a `tokenizer.json` has them, in Ruby's syntax, and as the crate compiles them.
//!
//! Most mean the same in both. What does not is rewritten where that is exact, and else refused: the tokens would be
//! others, and nothing would say so.

use serde_json::{Value, json};

use crate::json::brief;

/// Ruby's begins every line, but for an empty one at the end of a text.
const LINE_START: &str = r"(?:\A|(?m:^)(?!\z))";
const LINE_END: &str = "(?m:$)";
/// What opens a group that means the same in both. The flag `m` does not: there, it is this syntax's `s`.
const GROUPS: [&str; 7] = ["(?:", "(?=", "(?!", "(?>", "(?<", "(?i:", "(?-i:"];

/// Rewrites the regular expressions in a part of the file.
pub(super) fn translate(part: &mut Value) -> Result<(), String> {
    match part {
        Value::Object(fields) => fields.iter_mut().try_for_each(|(name, value)| match value {
            Value::String(regex) if name == "Regex" => {
                let rewritten = rewrite(regex);
                *regex = rewritten
                    .map_err(|problem| format!("the regular expression {} has {problem}", brief(&json!(regex))))?;
                Ok(())
            }
            _ => translate(value),
        }),
        Value::Array(values) => values.iter_mut().try_for_each(translate),
        _ => Ok(()),
    }
}

fn rewrite(regex: &str) -> Result<String, &'static str> {
    let mut rewritten = String::with_capacity(regex.len());
    let (mut rest, mut classes) = (regex, 0usize);
    while let Some(letter) = rest.chars().next() {
        let (length, written) = match letter {
            '\\' => same(rest, escape(rest)),
            '[' => {
                classes += 1;
                same(rest, if classes == 1 { class(rest) } else { 1 })
            }
            ']' if classes > 0 => {
                classes -= 1;
                same(rest, 1)
            }
            _ if classes > 0 => same(rest, letter.len_utf8()),
            '^' => (1, LINE_START),
            '$' => (1, LINE_END),
            '(' => same(rest, group(rest, rest.len() == regex.len())?),
            '+' | '*' | '?' | '{' => quantifier(rest)?,
            _ => same(rest, letter.len_utf8()),
        };
        rewritten.push_str(written);
        rest = &rest[length..];
    }
    Ok(rewritten)
}

/// What is read is what is written.
fn same(text: &str, length: usize) -> (usize, &str) {
    (length, &text[..length])
}

/// The length of an escape, such as `\p{L}`.
fn escape(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    let Some((_, letter)) = letters.next() else { return text.len() };
    let end = 1 + letter.len_utf8();
    match text[end..].starts_with('{').then(|| text.find('}')).flatten() {
        Some(brace) if matches!(letter, 'p' | 'P' | 'x' | 'u' | 'U') => brace + 1,
        _ => end,
    }
}

/// The length of the beginning of a class, where `]` stands for itself.
fn class(text: &str) -> usize {
    ["[^]", "[]", "[^"].into_iter().find(|begin| text.starts_with(begin)).map_or(1, str::len)
}

/// The length of what opens a group.
fn group(text: &str, first: bool) -> Result<usize, &'static str> {
    if !text.starts_with("(?") {
        return Ok(1);
    }
    match GROUPS.into_iter().find(|open| text.starts_with(open)) {
        Some(open) => Ok(open.len()),
        // What follows `(?i)` further on is a group of its own in Ruby, with all its alternatives.
        _ if first && text.starts_with("(?i)") => Ok(4),
        _ => Err("a group or flag that means something else in Ruby's syntax, or nothing"),
    }
}

/// The length of a quantifier, and how it is written here.
fn quantifier(text: &str) -> Result<(usize, &str), &'static str> {
    let after = |length: usize| text[length..].bytes().next();
    let (length, written) = match Interval::read(text) {
        None if text.starts_with('{') => return Ok((1, r"\{")),
        None => same(text, 1 + usize::from(matches!(after(1), Some(b'?' | b'+')))),
        Some(interval) => match (after(interval.length), interval) {
            // Any number of times from one to three, any number of times.
            (Some(b'+'), Interval { least: 0, most: 1.., length }) => (length + 1, "*"),
            (Some(b'+'), Interval { least: 1, most: 1.., length }) => (length + 1, "+"),
            (Some(b'?'), Interval { least, most, length }) if least < most => same(text, length + 1),
            (_, Interval { length, .. }) => same(text, length),
        },
    };
    let again =
        after(length).is_some_and(|letter| b"+*?".contains(&letter)) || Interval::read(&text[length..]).is_some();
    match again {
        true => Err("a quantifier of a quantifier, which means something else in Ruby's syntax"),
        false => Ok((length, written)),
    }
}

/// `{2,3}`.
struct Interval {
    least: usize,
    most: usize,
    length: usize,
}

impl Interval {
    /// That at the beginning of a text; other braces are letters.
    fn read(text: &str) -> Option<Self> {
        let (bounds, _) = text.strip_prefix('{')?.split_once('}')?;
        let number = |digits: &str, none| match digits {
            "" => Some(none),
            _ if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            _ => None,
        };
        let (least, most) = match bounds.split_once(',') {
            _ if matches!(bounds, "" | ",") => return None,
            None => (number(bounds, 0)?, number(bounds, 0)?),
            Some((least, most)) => (number(least, 0)?, number(most, usize::MAX)?),
        };
        Some(Self { least, most, length: bounds.len() + 2 })
    }
}
