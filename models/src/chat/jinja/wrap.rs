//! Filters that lay out text: `wordwrap` and `striptags`.

use super::arguments::{Bound, text};
use super::budget::check_text;
use super::error::{Result, fail};
use super::eval::Machine;
use super::text::{is_space, split_lines};
use super::value::Value;

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
    machine.new_text(out)
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

/// `striptags`: text without comments and tags, with single spaces, and with the common entities as characters.
pub(super) fn strip_tags(machine: &Machine, args: &Bound) -> Result<Value> {
    let source = machine.to_text(&args.value(0))?;
    machine.budget.text(source.len())?;
    let plain = without_spans(&without_spans(&source, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = plain.split(is_space).filter(|word| !word.is_empty()).collect();
    machine.new_text(unescape(&words.join(" ")))
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
