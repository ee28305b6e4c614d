//! `str.format` with Python's format specifications.

use std::rc::Rc;

use dashu_int::IBig;

use super::arguments::CallArguments;
use super::budget::check_text;
use super::error::{Error, Result, fail};
use super::eval::Machine;
use super::number;
use super::repr::ascii;
use super::text::{char_count, escape_html};
use super::value::{Value, same_kind};
use crate::error::cut_to;

/// How a float is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatStyle {
    Fixed,
    Exponent,
    General,
}

/// The digits of a finite float without its sign. `alternate` keeps the point and the zeros at the end.
pub(super) fn float_digits(float: f64, style: FloatStyle, precision: usize, alternate: bool) -> Result<String> {
    check_text(precision)?;
    let text = match style {
        FloatStyle::Fixed => with_zeros(|precision| format!("{float:.precision$}"), precision),
        FloatStyle::Exponent => exponent_digits(float, precision),
        FloatStyle::General => return Ok(general_digits(float, precision.max(1), alternate)),
    };
    Ok(if alternate && precision == 0 { with_point(&text) } else { text })
}

/// No float has more decimals than these; zeros follow them.
const MAX_DECIMALS: usize = 1100;

fn with_zeros(write: impl Fn(usize) -> String, precision: usize) -> String {
    let exact = precision.min(MAX_DECIMALS);
    let mut text = write(exact);
    text.extend(std::iter::repeat_n('0', precision - exact));
    text
}

fn exponent_digits(float: f64, precision: usize) -> String {
    let text = format!("{float:.*e}", precision.min(MAX_DECIMALS));
    let zeros = "0".repeat(precision - precision.min(MAX_DECIMALS));
    number::python_exponent(&text.replace('e', &format!("{zeros}e")))
}

/// `%g`: fixed or with an exponent, whichever suits the size, to `precision` significant digits.
fn general_digits(float: f64, precision: usize, alternate: bool) -> String {
    let precision = precision.min(MAX_DECIMALS);
    let text = exponent_digits(float, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let significant = i64::try_from(precision).unwrap_or(i64::MAX);
    if exponent < -4 || exponent >= significant {
        let digits = if alternate { digits } else { without_zeros(digits) };
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:0>2}", exponent.abs());
    }
    let decimals = usize::try_from(significant - 1 - exponent).unwrap_or(0);
    let fixed = format!("{float:.decimals$}");
    if alternate { with_point(&fixed) } else { without_zeros(&fixed).to_owned() }
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

fn with_point(digits: &str) -> String {
    match digits.split_once('e') {
        _ if digits.contains('.') => digits.to_owned(),
        Some((digits, exponent)) => format!("{digits}.e{exponent}"),
        None => format!("{digits}."),
    }
}

/// A format specification such as `>10.2f`.
struct Spec {
    fill: char,
    align: Option<char>,
    sign: Option<char>,
    /// A number that is rounded to zero has no minus.
    unsigned_zero: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        let invalid = || Error::new(format!("invalid format specifier '{}'", cut_to(text, 40)));
        let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
        let mut chars = text.chars().peekable();
        let mut spec = Self {
            fill: ' ',
            align: None,
            sign: None,
            unsigned_zero: false,
            alternate: false,
            zero: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        };
        if let Some(align) = text.chars().nth(1).filter(|&c| is_align(c)) {
            spec.fill = chars.next().unwrap_or(' ');
            spec.align = Some(align);
            chars.next();
        } else {
            spec.align = chars.next_if(|&c| is_align(c));
        }
        spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        spec.unsigned_zero = chars.next_if_eq(&'z').is_some();
        spec.alternate = chars.next_if_eq(&'#').is_some();
        if spec.align.is_none() && chars.next_if_eq(&'0').is_some() {
            spec.zero = true;
            spec.fill = '0';
        }
        spec.width = checked_digits(&mut chars)?.unwrap_or(0);
        spec.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(checked_digits(&mut chars)?.ok_or_else(invalid)?);
        }
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => Err(invalid()),
        }
    }

    fn unknown_code<T>(&self, value: &Value) -> Result<T> {
        let code = self.kind.unwrap_or(' ');
        fail!("unknown format code '{code}' for object of type '{}'", value.type_name())
    }

    /// A sign as asked for.
    fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    /// Text filled up to the width.
    fn pad(&self, sign: &str, text: &str, default_align: char) -> String {
        let missing = self.width.saturating_sub(char_count(sign) + char_count(text));
        let left = match self.align.unwrap_or(default_align) {
            '<' => 0,
            '^' => missing / 2,
            _ => missing,
        };
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(default_align) {
            '=' => format!("{sign}{}{text}", fill(missing)),
            _ => format!("{}{sign}{text}{}", fill(left), fill(missing - left)),
        }
    }

    /// Digits with separators, and zeros before them where the width asks for those.
    fn pad_number(&self, sign: &str, digits: &str, group: usize) -> String {
        let whole_end = digits.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(digits.len());
        let (whole, rest) = digits.split_at(whole_end);
        let zero_filled = self.fill == '0' && matches!(self.align, None | Some('='));
        let mut grouped = self.grouped(whole, group);
        if zero_filled && self.grouping.is_some() {
            let width = self.width.saturating_sub(sign.len() + rest.len());
            let mut zeros = 0;
            while grouped.len() < width {
                zeros += (width - grouped.len()).div_ceil(2).max(1);
                grouped = self.grouped(&format!("{}{whole}", "0".repeat(zeros)), group);
            }
        }
        self.pad(sign, &format!("{grouped}{rest}"), if self.zero { '=' } else { '>' })
    }

    fn grouped(&self, digits: &str, group: usize) -> String {
        let Some(separator) = self.grouping else { return digits.to_owned() };
        let mut out = String::new();
        for (at, c) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(group) {
                out.push(separator);
            }
            out.push(c);
        }
        out
    }
}

/// Reads decimal digits, if there are any.
pub(super) fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<usize> {
    let mut number = None;
    while let Some(c) = chars.next_if(char::is_ascii_digit) {
        number = Some(number.unwrap_or(0usize).saturating_mul(10).saturating_add(c as usize - '0' as usize));
    }
    number
}

/// Reads a number in a format, if there is one, and refuses one that would make a large text.
fn checked_digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let number = digits(chars);
    if let Some(width) = number {
        check_width(width)?;
    }
    Ok(number)
}

/// Refuses widths that would make a large text.
pub(super) fn check_width(width: usize) -> Result<()> {
    match check_text(width) {
        Ok(()) => Ok(()),
        Err(_) => fail!("a width of {width} in a format is too large"),
    }
}

impl Machine {
    /// `format(value, spec)`.
    fn format_value(&self, value: &Value, spec: &str) -> Result<String> {
        if spec.is_empty() {
            return Ok(self.to_text(value)?.to_string());
        }
        let text = match value {
            Value::Text(text) | Value::Markup(text) => format_text(text, value, &Spec::parse(spec)?),
            Value::Bool(_) | Value::Int(_) | Value::Big(_) => format_int(value, &Spec::parse(spec)?),
            Value::Float(float) => format_float(*float, value, &Spec::parse(spec)?),
            _ => fail!("unsupported format string passed to {}.__format__", value.type_name()),
        }?;
        self.budget.text(text.len())?;
        Ok(text)
    }

    /// `text.format(*args, **kwargs)`.
    pub(super) fn format_method(&self, text: &Value, given: &CallArguments) -> Result<Value> {
        let named = |name: &str| {
            let value = given.named.iter().find(|(other, _)| other.as_ref() == name).map(|(_, value)| value.clone());
            value.ok_or_else(|| Error::new(format!("format() has no argument '{name}'")))
        };
        self.formatted(text, &given.positional, &named)
    }

    /// `text.format_map(mapping)`.
    pub(super) fn format_map_method(&self, text: &Value, mapping: &Value) -> Result<Value> {
        let named = |name: &str| match mapping {
            Value::Dict(dict) => {
                let value = dict.get(&Value::from(name), &self.budget)?.cloned();
                value.ok_or_else(|| Error::new(format!("format_map() has no key '{name}'")))
            }
            _ => fail!("format_map() needs a mapping, found '{}'", mapping.type_name()),
        };
        self.formatted(text, &[], &named)
    }

    fn formatted(&self, text: &Value, positional: &[Value], named: &dyn Fn(&str) -> Result<Value>) -> Result<Value> {
        let escape = matches!(text, Value::Markup(_));
        let mut formatter = Formatter { machine: self, positional, named, numbering: Numbering::None, escape };
        let source = text.as_text().map_or("", |text| text.as_ref());
        let out = formatter.format(source, 2)?;
        self.budget.text(out.len())?;
        Ok(same_kind(text, out))
    }
}

fn format_text(text: &str, value: &Value, spec: &Spec) -> Result<String> {
    if !matches!(spec.kind, None | Some('s')) {
        return spec.unknown_code(value);
    }
    let for_numbers = spec.sign.is_some() || spec.unsigned_zero || spec.alternate || spec.grouping.is_some();
    if for_numbers || spec.align == Some('=') {
        fail!("a string cannot be formatted with a sign, 'z', '=', '#' or separators");
    }
    let shown: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    check_text(shown.len().saturating_add(spec.width.saturating_mul(spec.fill.len_utf8())))?;
    Ok(spec.pad("", &shown, '<'))
}

fn format_int(value: &Value, spec: &Spec) -> Result<String> {
    let int = number::to_big(value).unwrap_or_default();
    let (radix, prefix, group) = match spec.kind {
        None | Some('d' | 'n') => (10, "", 3),
        Some('b') => (2, "0b", 4),
        Some('o') => (8, "0o", 4),
        Some('x') => (16, "0x", 4),
        Some('X') => (16, "0X", 4),
        Some('c') if !spec.unsigned_zero => {
            let c = u32::try_from(&int).ok().and_then(char::from_u32);
            let Some(c) = c else { fail!("the code of %c is not a character") };
            return Ok(spec.pad("", &c.to_string(), '>'));
        }
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
            let float = number::to_float(value).unwrap_or(Ok(0.0))?;
            return format_float(float, value, spec);
        }
        _ => return spec.unknown_code(value),
    };
    if spec.precision.is_some() || spec.unsigned_zero {
        fail!("neither a precision nor 'z' is allowed in an integer format specifier");
    }
    if spec.grouping == Some(',') && group == 4 {
        fail!("cannot specify ',' with '{}'", spec.kind.unwrap_or(' '));
    }
    check_text(spec.width.saturating_mul(spec.fill.len_utf8()))?;
    let digits = int_digits(&int, radix, spec.kind == Some('X'))?;
    let sign = spec.sign_of(number::is_negative(value)).to_owned() + if spec.alternate { prefix } else { "" };
    Ok(spec.pad_number(&sign, &digits, group))
}

/// The digits of an integer without its sign.
pub(super) fn int_digits(int: &IBig, radix: u32, upper: bool) -> Result<String> {
    let digits = match radix {
        10 => number::big_digits(int)?,
        _ => int.in_radix(u8::try_from(radix).unwrap_or(10)).to_string(),
    };
    let digits = digits.trim_start_matches('-');
    Ok(if upper { digits.to_uppercase() } else { digits.to_owned() })
}

fn format_float(float: f64, value: &Value, spec: &Spec) -> Result<String> {
    let kind = spec.kind.unwrap_or(' ');
    let style = match kind.to_ascii_lowercase() {
        'f' | '%' => FloatStyle::Fixed,
        'e' => FloatStyle::Exponent,
        'g' | 'n' | ' ' => FloatStyle::General,
        _ => return spec.unknown_code(value),
    };
    check_text(spec.width.saturating_mul(spec.fill.len_utf8()))?;
    let size = if kind == '%' { float.abs() * 100.0 } else { float.abs() };
    let mut digits = if !size.is_finite() {
        number::non_finite(size).to_owned()
    } else if spec.kind.is_some() {
        float_digits(size, style, spec.precision.unwrap_or(6), spec.alternate)?
    } else {
        match spec.precision {
            None => number::repr(size),
            Some(precision) => short_digits(size, precision.max(1)),
        }
    };
    let mantissa = digits.split('e').next().unwrap_or_default();
    let is_zero = size.is_finite() && !mantissa.contains(|c| matches!(c, '1'..='9'));
    let negative = float.is_sign_negative() && !float.is_nan() && !(spec.unsigned_zero && is_zero);
    if kind == '%' {
        digits.push('%');
    }
    if matches!(kind, 'E' | 'F' | 'G') {
        digits = digits.to_uppercase();
    }
    Ok(spec.pad_number(spec.sign_of(negative), &digits, 3))
}

/// A float of a precision without a type: like `g`, but with a digit after the point.
fn short_digits(float: f64, precision: usize) -> String {
    let text = exponent_digits(float, precision.min(MAX_DECIMALS) - 1);
    let exponent: i64 = text.split_once('e').map_or(0, |(_, exponent)| exponent.parse().unwrap_or(0));
    let significant = i64::try_from(precision).unwrap_or(i64::MAX);
    if exponent < -4 || exponent >= significant - 1 {
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let digits = general_digits(float, precision, false);
    if digits.contains('.') { digits } else { format!("{digits}.0") }
}

/// How the fields of a format get their arguments, which cannot be mixed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbering {
    None,
    Automatic(usize),
    Manual,
}

struct Formatter<'m> {
    machine: &'m Machine,
    positional: &'m [Value],
    named: &'m dyn Fn(&str) -> Result<Value>,
    numbering: Numbering,
    escape: bool,
}

/// A replacement field: `{name!conversion:spec}`.
struct Field<'t> {
    name: &'t str,
    conversion: Option<char>,
    spec: &'t str,
    /// Length of the field with its braces.
    len: usize,
}

impl<'t> Field<'t> {
    /// Parses the field at the start of `text`, which begins with a brace.
    fn parse(text: &'t str) -> Result<Self> {
        let mut at = 1;
        let mut in_brackets = false;
        let end = loop {
            let Some(c) = text[at..].chars().next() else { fail!("expected '}}' before end of string") };
            match c {
                ']' if in_brackets => in_brackets = false,
                _ if in_brackets => {}
                '[' => in_brackets = true,
                '{' => fail!("unexpected '{{' in field name"),
                '}' | ':' | '!' => break at,
                _ => {}
            }
            at += c.len_utf8();
        };
        let mut rest = &text[end..];
        let mut conversion = None;
        if let Some(after) = rest.strip_prefix('!') {
            let mut chars = after.chars();
            conversion = chars.next();
            rest = chars.as_str();
            if conversion.is_none() || !rest.starts_with([':', '}']) {
                fail!("expected ':' or '}}' after a conversion");
            }
        }
        let spec_start = text.len() - rest.len() + usize::from(rest.starts_with(':'));
        let mut open = 1;
        for (offset, c) in text[spec_start..].char_indices() {
            match c {
                '{' => open += 1,
                '}' => open -= 1,
                _ => {}
            }
            if open == 0 {
                let spec = &text[spec_start..spec_start + offset];
                return Ok(Self { name: &text[1..end], conversion, spec, len: spec_start + offset + 1 });
            }
        }
        fail!("expected '}}' before end of string")
    }
}

/// Tells if a field's name or key is the number of an argument or item.
fn is_index(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

impl Formatter<'_> {
    fn format(&mut self, text: &str, levels: usize) -> Result<String> {
        if levels == 0 {
            fail!("max string recursion exceeded in a format");
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            self.machine.budget.steps(1)?;
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                out.push_str(&rest[..1]);
                rest = &rest[2..];
                continue;
            }
            if rest.starts_with('}') {
                fail!("single '}}' encountered in a format");
            }
            let field = Field::parse(rest)?;
            let value = self.value(field.name)?;
            let value = self.converted(value, field.conversion)?;
            let spec = if field.spec.is_empty() { String::new() } else { self.format(field.spec, levels - 1)? };
            let text = self.machine.format_value(&value, &spec)?;
            match self.escape && !matches!(value, Value::Markup(_)) {
                true => out.push_str(&escape_html(&text)),
                false => out.push_str(&text),
            }
            check_text(out.len())?;
            rest = &rest[field.len..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn converted(&self, value: Value, conversion: Option<char>) -> Result<Value> {
        Ok(match conversion {
            None => value,
            Some('s') => Value::Text(self.machine.to_text(&value)?),
            Some('r') => Value::from(self.machine.repr(&value)?),
            Some('a') => Value::from(ascii(&self.machine.repr(&value)?)),
            Some(other) => fail!("unknown conversion specifier '{other}'"),
        })
    }

    /// The argument that a field names, with its attributes and items.
    fn value(&mut self, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = if rest.is_empty() { self.argument(first)? } else { self.compound_argument(first)? };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                if end == 0 {
                    fail!("empty attribute in format string");
                }
                value = self.machine.attribute(&value, &Rc::from(&after[..end]))?;
                rest = &after[end..];
            } else if let Some((key, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                let index = if is_index(key) { key.parse().ok().map(Value::Int) } else { None };
                value = self.machine.item(&value, &index.unwrap_or_else(|| Value::from(key)))?;
                rest = after;
            } else {
                fail!("only '.' or '[' may follow ']' in a format field");
            }
        }
        Ok(value)
    }

    /// Returns the argument of a field with attributes or items. Python does not count these fields among the numbered.
    fn compound_argument(&self, name: &str) -> Result<Value> {
        if is_index(name) { self.positional_argument(name.parse().unwrap_or(usize::MAX)) } else { (self.named)(name) }
    }

    fn argument(&mut self, name: &str) -> Result<Value> {
        let is_index = is_index(name);
        let index = match (name, self.numbering) {
            ("", Numbering::Manual) => fail!("cannot switch from manual to automatic field numbering"),
            ("", Numbering::None) => {
                self.numbering = Numbering::Automatic(1);
                0
            }
            ("", Numbering::Automatic(next)) => {
                self.numbering = Numbering::Automatic(next + 1);
                next
            }
            (_, Numbering::Automatic(_)) if is_index => {
                fail!("cannot switch from automatic to manual field numbering")
            }
            (_, _) if is_index => {
                self.numbering = Numbering::Manual;
                name.parse().unwrap_or(usize::MAX)
            }
            _ => return (self.named)(name),
        };
        self.positional_argument(index)
    }

    fn positional_argument(&self, index: usize) -> Result<Value> {
        match self.positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => fail!("a format needs more than {} arguments", self.positional.len()),
        }
    }
}
