//! Templates as tokens, with Jinja's rules for white space: `trim_blocks` and `lstrip_blocks` are on.

use std::rc::Rc;

use dashu_int::IBig;

use super::error::{Error, Result, fail};
use super::number::from_big;
use super::text::{is_identifier, is_space};
use super::value::Value;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(Rc<str>),
    Text(String),
    Integer(Rc<IBig>),
    Float(f64),
    Operator(&'static str),
    End,
}

impl Token {
    /// The token as error messages name it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Data(_) => "template data".to_owned(),
            Self::VariableBegin => "begin of print statement".to_owned(),
            Self::VariableEnd => "end of print statement".to_owned(),
            Self::BlockBegin => "begin of statement block".to_owned(),
            Self::BlockEnd => "end of statement block".to_owned(),
            Self::Name(name) => name.to_string(),
            Self::Text(_) => "string".to_owned(),
            Self::Integer(_) => "integer".to_owned(),
            Self::Float(_) => "float".to_owned(),
            Self::Operator(operator) => (*operator).to_owned(),
            Self::End => "end of template".to_owned(),
        }
    }

    /// The value of a number.
    pub(super) fn number(&self) -> Option<Value> {
        match self {
            Self::Integer(integer) => Some(from_big(integer.as_ref().clone())),
            Self::Float(float) => Some(Value::Float(*float)),
            _ => None,
        }
    }
}

/// A token and the line that it begins on.
#[derive(Debug)]
pub(super) struct Lexed {
    pub token: Token,
    pub line: u32,
}

/// Operators, longer ones before those that they begin with.
const OPERATORS: [&str; 25] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",",
];

/// All tokens of a template, with [`Token::End`] as the last.
pub(super) fn tokens(source: &str) -> Result<Vec<Lexed>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, line_starting: true, tokens: Vec::new() };
    let result = lexer.root();
    let line = lexer.line_here();
    match result {
        Ok(()) => {
            lexer.push(Token::End);
            Ok(lexer.tokens)
        }
        Err(error) => Err(error.at(line)),
    }
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    /// The line of the byte at `counted`.
    line: u32,
    counted: usize,
    /// The last tag ended with a line break, so that the next text begins a line.
    line_starting: bool,
    tokens: Vec<Lexed>,
}

/// The place of a tag, and the sign after its opening: `-` strips white space, `+` keeps it.
struct Opening {
    at: usize,
    sign: Option<u8>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn line_here(&mut self) -> u32 {
        let passed = self.source[self.counted..self.at].bytes().filter(|&b| b == b'\n').count();
        self.line = self.line.saturating_add(u32::try_from(passed).unwrap_or(u32::MAX));
        self.counted = self.at;
        self.line
    }

    fn push(&mut self, token: Token) {
        let line = self.line_here();
        self.tokens.push(Lexed { token, line });
    }

    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        self.line_starting = self.source[..self.at].ends_with('\n');
    }

    fn skip_space(&mut self) {
        self.at += space_before(self.rest());
    }

    /// Text and tags, up to the end of the template.
    fn root(&mut self) -> Result<()> {
        while self.at < self.source.len() {
            let Some((found, kind)) = self.find_tag() else {
                self.push_data(self.rest());
                self.at = self.source.len();
                break;
            };
            let sign = self.source.as_bytes().get(found + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
            let opening = Opening { at: found, sign };
            self.text_before(&opening, kind != b'{');
            self.at = found;
            if kind == b'%' && self.raw_block()? {
                continue;
            }
            let opening_bytes = 2 + usize::from(sign.is_some());
            match kind {
                b'#' => {
                    self.skip(opening_bytes);
                    self.comment()?;
                }
                b'%' => {
                    self.push(Token::BlockBegin);
                    self.skip(opening_bytes);
                    self.tag(b'%')?;
                }
                _ => {
                    self.push(Token::VariableBegin);
                    self.skip(opening_bytes);
                    self.tag(b'}')?;
                }
            }
        }
        Ok(())
    }

    /// The next `{{`, `{%` or `{#`, and its second byte.
    fn find_tag(&self) -> Option<(usize, u8)> {
        let bytes = self.source.as_bytes();
        let mut at = self.at;
        while let Some(found) = self.source[at..].find('{') {
            at += found + 1;
            if let Some(&kind @ (b'{' | b'%' | b'#')) = bytes.get(at) {
                return Some((at - 1, kind));
            }
        }
        None
    }

    fn push_data(&mut self, data: &str) {
        if !data.is_empty() {
            self.push(Token::Data(data.to_owned()));
        }
    }

    /// The text before a tag, without the white space that the tag takes away.
    fn text_before(&mut self, opening: &Opening, strip_indent: bool) {
        let text = &self.source[self.at..opening.at];
        let kept = match opening.sign {
            Some(b'-') => text.trim_end_matches(is_space),
            Some(_) => text,
            None if strip_indent => {
                let line_start = text.rfind('\n').map_or(0, |at| at + 1);
                let begins_line = line_start > 0 || self.line_starting;
                let only_indent = text[line_start..].bytes().all(|b| matches!(b, b' ' | b'\t'));
                if begins_line && only_indent { &text[..line_start] } else { text }
            }
            None => text,
        };
        self.push_data(kept);
    }

    /// The end of a tag at the start of `text`: how many bytes it takes, with the white space after it.
    fn closing(text: &str, delimiter: &str, trim_newline: bool) -> Option<usize> {
        if let Some(after) = text.strip_prefix('-').and_then(|text| text.strip_prefix(delimiter)) {
            return Some(1 + delimiter.len() + space_before(after));
        }
        if trim_newline && let Some(after) = text.strip_prefix('+') {
            return after.starts_with(delimiter).then_some(1 + delimiter.len());
        }
        let after = text.strip_prefix(delimiter)?;
        Some(delimiter.len() + usize::from(trim_newline && after.starts_with('\n')))
    }

    /// A tag that holds one word, such as `{% raw %}`, at the start of `text`; `{% raw %}` keeps the line break after it.
    fn word_tag(text: &str, word: &str, trim_newline: bool) -> Option<usize> {
        let mut rest = text.strip_prefix("{%")?;
        rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        rest = rest.trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space);
        let closing = Self::closing(rest, "%}", trim_newline)?;
        Some(text.len() - rest.len() + closing)
    }

    /// `{% raw %}…{% endraw %}`, if that is what comes next.
    fn raw_block(&mut self) -> Result<bool> {
        let Some(opening) = Self::word_tag(self.rest(), "raw", false) else { return Ok(false) };
        self.skip(opening);
        let mut from = self.at;
        while let Some(found) = self.source[from..].find("{%").map(|found| from + found) {
            if let Some(closing) = Self::word_tag(&self.source[found..], "endraw", true) {
                let sign = self.source.as_bytes().get(found + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
                self.text_before(&Opening { at: found, sign }, true);
                self.at = found;
                self.skip(closing);
                return Ok(true);
            }
            from = found + 2;
        }
        fail!("missing end of raw directive")
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else { fail!("missing end of comment tag") };
        let signed = self.rest()[..end].ends_with(['-', '+']);
        let end = end - usize::from(signed);
        let closing = Self::closing(&self.rest()[end..], "#}", true).unwrap_or(2);
        self.skip(end + closing);
        Ok(())
    }

    /// The tokens of one tag, up to its end.
    fn tag(&mut self, delimiter: u8) -> Result<()> {
        let is_block = delimiter == b'%';
        let delimiter = if is_block { "%}" } else { "}}" };
        let mut open = Vec::new();
        loop {
            self.skip_space();
            let rest = self.rest();
            if rest.is_empty() {
                return Ok(());
            }
            if open.is_empty()
                && let Some(closing) = Self::closing(rest, delimiter, is_block)
            {
                self.push(if is_block { Token::BlockEnd } else { Token::VariableEnd });
                self.skip(closing);
                return Ok(());
            }
            let (token, bytes) = self.token()?;
            if let Token::Operator(operator) = token {
                balance(&mut open, operator)?;
            }
            self.push(token);
            self.skip(bytes);
        }
    }

    /// The token that comes next, and its length.
    fn token(&self) -> Result<(Token, usize)> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or(' ');
        if first.is_ascii_digit() {
            return self.number();
        }
        if first == '_' || first.is_alphanumeric() {
            let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            let name = &rest[..end];
            if !is_identifier(name) {
                fail!("invalid character in identifier {name}");
            }
            return Ok((Token::Name(name.into()), end));
        }
        if matches!(first, '"' | '\'')
            && let Some(end) = end_of_string(rest)
        {
            return Ok((Token::Text(unescape(&rest[1..end - 1])?), end));
        }
        match OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
            Some(operator) => Ok((Token::Operator(operator), operator.len())),
            None => fail!("unexpected character {first:?}"),
        }
    }

    fn number(&self) -> Result<(Token, usize)> {
        let rest = self.rest();
        if !self.source[..self.at].ends_with('.')
            && let Some(end) = end_of_float(rest)
        {
            let float = rest[..end].replace('_', "").parse().map_err(|_| Error::new("a number that cannot be read"))?;
            return Ok((Token::Float(float), end));
        }
        let prefix = rest.as_bytes().get(1).map(u8::to_ascii_lowercase);
        let radix = match prefix {
            Some(b'x') if rest.starts_with('0') => 16,
            Some(b'o') if rest.starts_with('0') => 8,
            Some(b'b') if rest.starts_with('0') => 2,
            _ => 10,
        };
        if radix != 10 {
            let digits = run_of_digits(&rest[2..], radix, true);
            if digits > 0 {
                return Ok((integer(&rest[2..2 + digits], radix)?, 2 + digits));
            }
        }
        let digits = match rest.starts_with('0') {
            true => 1 + run_of_zeros(&rest[1..]),
            false => run_of_digits(rest, 10, false),
        };
        Ok((integer(&rest[..digits], 10)?, digits))
    }
}

/// Matches brackets, so that `}}` inside of them ends no tag.
fn balance(open: &mut Vec<&'static str>, operator: &'static str) -> Result<()> {
    match operator {
        "{" => open.push("}"),
        "(" => open.push(")"),
        "[" => open.push("]"),
        "}" | ")" | "]" => match open.pop() {
            None => fail!("unexpected '{operator}'"),
            Some(expected) if expected != operator => fail!("unexpected '{operator}', expected '{expected}'"),
            Some(_) => {}
        },
        _ => {}
    }
    Ok(())
}

fn space_before(text: &str) -> usize {
    text.len() - text.trim_start_matches(is_space).len()
}

/// The longest integer that Python would print or read.
const MAX_DIGITS: usize = 4300;

fn integer(digits: &str, radix: u32) -> Result<Token> {
    let digits = digits.replace('_', "");
    if digits.len() > MAX_DIGITS {
        fail!("an integer of {} digits is longer than {MAX_DIGITS}", digits.len());
    }
    match IBig::from_str_radix(&digits, radix) {
        Ok(integer) => Ok(Token::Integer(Rc::new(integer))),
        Err(_) => fail!("{digits} is not an integer"),
    }
}

/// The length of digits with single underscores between them, or also before them.
fn run_of_digits(text: &str, radix: u32, leading_underscore: bool) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(|b| char::from(*b).is_digit(radix));
    let mut at = 0;
    loop {
        if is_digit(at) {
            at += 1;
        } else if bytes.get(at) == Some(&b'_') && is_digit(at + 1) && (at > 0 || leading_underscore) {
            at += 2;
        } else {
            return at;
        }
    }
}

fn run_of_zeros(text: &str) -> usize {
    let mut rest = text;
    while let Some(after) = rest.strip_prefix("_0").or_else(|| rest.strip_prefix('0')) {
        rest = after;
    }
    text.len() - rest.len()
}

/// The length of the float at the start of `text`, which has a fraction or an exponent.
fn end_of_float(text: &str) -> Option<usize> {
    let whole = run_of_digits(text, 10, false);
    let fraction = match text[whole..].strip_prefix('.') {
        Some(rest) => Some(run_of_digits(rest, 10, false)).filter(|&digits| digits > 0).map(|digits| digits + 1),
        None => None,
    };
    let mantissa = whole + fraction.unwrap_or(0);
    let exponent = text[mantissa..].strip_prefix(['e', 'E']).and_then(|rest| {
        let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        let run = run_of_digits(digits, 10, false);
        (run > 0).then_some(1 + rest.len() - digits.len() + run)
    });
    (fraction.is_some() || exponent.is_some()).then_some(mantissa + exponent.unwrap_or(0))
}

/// The length of the string literal at the start of `text`, with its quotes.
fn end_of_string(text: &str) -> Option<usize> {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return Some(at + 1);
        }
    }
    None
}

/// A string literal without its escapes, as Python's codec `unicode-escape` reads it.
///
/// A backslash before a character outside of ASCII is read as Jinja does: the character's own escape follows it.
fn unescape(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(escape) = chars.next() else { fail!("a string ends with a backslash") };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escape),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'x' => out.push(code_point(&mut chars, 2)?),
            'u' => out.push(code_point(&mut chars, 4)?),
            'U' => out.push(code_point(&mut chars, 8)?),
            'N' => fail!("names of characters (\\N) are not supported in strings"),
            '0'..='7' => {
                let more = chars.as_str().bytes().take(2).take_while(|b| matches!(b, b'0'..=b'7')).count();
                let octal: String = std::iter::once(escape).chain(chars.by_ref().take(more)).collect();
                let code = u32::from_str_radix(&octal, 8).unwrap_or(0);
                out.extend(char::from_u32(code));
            }
            c if !c.is_ascii() => {
                let code = u32::from(c);
                out.push('\\');
                out.push_str(&match code {
                    0..=0xff => format!("x{code:02x}"),
                    0x100..=0xffff => format!("u{code:04x}"),
                    _ => format!("U{code:08x}"),
                });
            }
            other => out.extend(['\\', other]),
        }
    }
    Ok(out)
}

fn code_point(chars: &mut std::str::Chars<'_>, digits: usize) -> Result<char> {
    let code: String = chars.by_ref().take(digits).collect();
    let valid = code.len() == digits && code.bytes().all(|b| b.is_ascii_hexdigit());
    let code = if valid { u32::from_str_radix(&code, 16).ok() } else { None };
    match code.and_then(char::from_u32) {
        Some(c) => Ok(c),
        None => fail!("a string has an escape that is not a character"),
    }
}
