//! Filters that lay out text: `wordwrap`, `pprint` and `striptags`.

use super::arguments::{Bound, text};
use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::repr::push_quoted;
use super::str_methods::made;
use super::text::{char_count, is_space, split_lines};
use super::value::{Dict, Value};

/// `wordwrap(width, break_long_words, wrapstring, break_on_hyphens)`: each line is wrapped on its own, as Python's
/// `textwrap.wrap` does it.
pub(super) fn word_wrap(machine: &Machine, args: &Bound) -> Result<Value> {
    let source = args.text(0)?;
    let width = usize::try_from(args.int(1, 79)?).unwrap_or(0);
    if width == 0 {
        fail!("wordwrap needs a width above 0");
    }
    let flag = |at: usize| args.get(at).is_none_or(Value::is_true);
    let wrapper = Wrapper { width, break_long_words: flag(2), break_on_hyphens: flag(4) };
    let separator = args.some(3).map_or_else(|| Ok("\n".into()), text)?;
    machine.budget.items(source.len())?;
    let mut out = String::new();
    for (at, line) in split_lines(&source, false).into_iter().enumerate() {
        machine.budget.reading(line.len())?;
        if at > 0 {
            out.push_str(&separator);
        }
        for (at, wrapped) in wrapper.wrap(line).iter().enumerate() {
            if at > 0 {
                out.push_str(&separator);
            }
            out.push_str(wrapped);
            check_text(out.len())?;
        }
    }
    made(machine, out)
}

struct Wrapper {
    width: usize,
    break_long_words: bool,
    break_on_hyphens: bool,
}

impl Wrapper {
    fn wrap(&self, text: &str) -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        let mut chunks = self.chunks(&chars);
        chunks.reverse();
        let is_blank = |chunk: &[char]| chunk.iter().all(|&c| is_space(c));
        let mut lines = Vec::new();
        while let Some(first) = chunks.last() {
            if is_blank(first) && !lines.is_empty() {
                chunks.pop();
            }
            let (mut line, mut len): (Vec<&[char]>, usize) = (Vec::new(), 0);
            while let Some(chunk) = chunks.pop_if(|chunk| len + chunk.len() <= self.width) {
                len += chunk.len();
                line.push(chunk);
            }
            if let Some(long) = chunks.pop_if(|chunk| chunk.len() > self.width) {
                let (head, rest) = self.broken(long, self.width - len, line.is_empty());
                line.extend(head);
                chunks.extend(rest);
            }
            line.pop_if(|chunk| is_blank(chunk));
            if !line.is_empty() {
                lines.push(line.concat().into_iter().collect());
            }
        }
        lines
    }

    /// The part of a long word that goes into the rest of a line, and the part that is left.
    fn broken<'c>(&self, word: &'c [char], space: usize, empty_line: bool) -> (Option<&'c [char]>, Option<&'c [char]>) {
        if !self.break_long_words {
            return if empty_line { (Some(word), None) } else { (None, Some(word)) };
        }
        let hyphen = word[..space]
            .iter()
            .rposition(|&c| c == '-')
            .filter(|&at| self.break_on_hyphens && at > 0 && word[..at].iter().any(|&c| c != '-'));
        let end = hyphen.map_or(space, |at| at + 1);
        (Some(&word[..end]).filter(|head| !head.is_empty()), Some(&word[end..]))
    }

    /// Words and the white space between them. Words may end at hyphens and dashes.
    fn chunks<'c>(&self, chars: &'c [char]) -> Vec<&'c [char]> {
        let mut chunks = Vec::new();
        let mut at = 0;
        while at < chars.len() {
            let len = if is_blank(chars[at]) {
                chars[at..].iter().take_while(|&&c| is_blank(c)).count()
            } else if self.break_on_hyphens {
                word_len(chars, at)
            } else {
                chars[at..].iter().take_while(|&&c| !is_blank(c)).count()
            };
            chunks.push(&chars[at..at + len]);
            at += len;
        }
        chunks
    }
}

/// The white space that lines are broken at.
fn is_blank(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

/// The length of the word at `start`, which ends at white space, after a hyphen between letters, or before a dash.
fn word_len(chars: &[char], start: usize) -> usize {
    let is_letter = |at: usize| chars.get(at).is_some_and(|&c| c == '_' || c.is_alphabetic());
    let is_word = |at: usize| chars.get(at).is_some_and(|&c| c == '_' || c.is_alphanumeric());
    let is_punctuated = |at: usize| is_word(at) || chars.get(at).is_some_and(|c| "!\"'&.,?".contains(*c));
    let dash_len = |at: usize| {
        let dashes = chars[at..].iter().take_while(|&&c| c == '-').count();
        if dashes >= 2 && is_word(at + dashes) { dashes } else { 0 }
    };
    if start > 0 && is_punctuated(start - 1) && dash_len(start) > 0 {
        return dash_len(start);
    }
    for end in start + 1..chars.len() {
        let letters_before = end >= 2 && is_letter(end - 1) && is_letter(end - 2);
        let hyphen_before = end >= 3 && is_letter(end - 3) && chars[end - 2] == '-' && is_punctuated(end - 1);
        let letters_after =
            is_letter(end + 1) && (is_letter(end + 2) || chars.get(end + 2) == Some(&'-') && is_letter(end + 3));
        if chars[end] == '-' && (letters_before || hyphen_before) && letters_after {
            return end + 1 - start;
        }
        if is_blank(chars[end]) || is_punctuated(end - 1) && dash_len(end) > 0 {
            return end - start;
        }
    }
    chars.len() - start
}

/// `pprint`: Python's `pprint.pformat`, with sorted keys and lines of 80 characters.
pub(super) fn pretty_print(machine: &Machine, args: &Bound) -> Result<Value> {
    let mut printer = Printer { machine, out: String::new() };
    printer.value(&args.value(0), 0, 0, true)?;
    made(machine, printer.out)
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
                let sorted = super::sequences::merge_sort(self.machine, entries.clone()).unwrap_or(entries);
                let sorted: Result<Vec<_>> =
                    sorted.into_iter().map(|(key, value)| Ok((key, self.sorted(&value)?))).collect();
                Value::Dict(Dict::new(sorted?, budget)?)
            }
            Value::List(list) | Value::Tuple(list) => {
                let items = list.items.iter().map(|item| self.sorted(item)).collect::<Result<_>>()?;
                let items = super::value::List::new(items, budget)?;
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

fn quoted(text: &str) -> String {
    let mut out = String::new();
    push_quoted(text, &mut out);
    out
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

/// `striptags`: text without comments and tags, with single spaces, and with the common entities as characters.
pub(super) fn strip_tags(machine: &Machine, args: &Bound) -> Result<Value> {
    let source = machine.to_text(&args.value(0))?;
    machine.budget.text(source.len())?;
    let plain = without_spans(&without_spans(&source, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = plain.split(is_space).filter(|word| !word.is_empty()).collect();
    made(machine, unescape(&words.join(" ")))
}

fn without_spans(text: &str, open: &str, close: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        let Some(end) = rest[start..].find(close) else { break };
        out.push_str(&rest[..start]);
        rest = &rest[start + end + close.len()..];
    }
    out.push_str(rest);
    out
}

/// Text with character references resolved: numbers, and the names that escaping makes.
fn unescape(text: &str) -> String {
    /// The longest reference that is resolved.
    const MAX_REFERENCE: usize = 10;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.bytes().take(MAX_REFERENCE).position(|b| b == b';');
        match end.and_then(|end| Some((character(&rest[1..end])?, end))) {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn character(reference: &str) -> Option<char> {
    match reference {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        "nbsp" => Some('\u{a0}'),
        _ => {
            let number = reference.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}
