//! `text % values`: formatting in the manner of C's `printf`.

use super::budget::check_text;
use super::error::{Error, Result, fail};
use super::eval::Machine;
use super::format::{FloatStyle, check_width, digits, float_digits, int_digits};
use super::number;
use super::repr::ascii;
use super::text::{char_count, escape_html};
use super::value::{Value, same_kind};

/// One conversion, such as `%-10.3f`.
#[derive(Default)]
struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

/// The arguments of a format: a tuple is taken apart, and everything else is one argument.
struct Arguments<'v> {
    all: &'v Value,
    items: &'v [Value],
    used: usize,
}

impl Arguments<'_> {
    fn next(&mut self) -> Result<Value> {
        self.used += 1;
        match self.items.get(self.used - 1) {
            Some(value) => Ok(value.clone()),
            None => fail!("not enough arguments for format string"),
        }
    }

    /// A width or a precision for `*`.
    fn next_int(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(int) => Ok(int),
            other => fail!("* wants int, found '{}'", other.type_name()),
        }
    }
}

impl Machine {
    /// `text % values`.
    pub(super) fn printf(&self, text: &Value, values: &Value) -> Result<Value> {
        let format = text.as_text().map_or("", |text| text.as_ref());
        let items = match values {
            Value::Tuple(list) => list.items.as_slice(),
            other => std::slice::from_ref(other),
        };
        let mut arguments = Arguments { all: values, items, used: 0 };
        let mut used_keys = false;
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            self.budget.steps(1)?;
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                out.push('%');
                rest = after;
                continue;
            }
            let key = match rest.strip_prefix('(') {
                Some(after) => {
                    let (key, after) = take_key(after)?;
                    rest = after;
                    used_keys = true;
                    Some(self.value_of_key(arguments.all, key)?)
                }
                None => None,
            };
            let (conversion, kind, after) = Conversion::parse(rest, &mut arguments)?;
            rest = after;
            let value = match key {
                Some(value) => value,
                // Conversions by key leave no arguments for others.
                None if used_keys => fail!("not enough arguments for format string"),
                None => arguments.next()?,
            };
            let piece = conversion.apply(self, kind, &value)?;
            match matches!(text, Value::Markup(_)) && !matches!(value, Value::Markup(_)) {
                true => out.push_str(&escape_html(&piece)),
                false => out.push_str(&piece),
            }
            check_text(out.len())?;
        }
        out.push_str(rest);
        let takes_keys = matches!(values, Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_));
        if arguments.used < items.len() && !used_keys && !takes_keys {
            fail!("not all arguments converted during string formatting");
        }
        self.budget.text(out.len())?;
        Ok(same_kind(text, out))
    }

    fn value_of_key(&self, values: &Value, key: &str) -> Result<Value> {
        let Value::Dict(dict) = values else { fail!("format requires a mapping") };
        match dict.get(&Value::from(key), &self.budget)? {
            Some(value) => Ok(value.clone()),
            None => fail!("a format names the key '{key}', which is not there"),
        }
    }
}

/// The key before the parenthesis that ends it, and the rest.
fn take_key(text: &str) -> Result<(&str, &str)> {
    let mut open = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Ok((&text[..at], &text[at + 1..]));
        }
    }
    fail!("incomplete format key")
}

impl Conversion {
    /// Flags, width, precision and the letter of a conversion, and the rest of the format.
    fn parse<'t>(text: &'t str, arguments: &mut Arguments<'_>) -> Result<(Self, char, &'t str)> {
        let mut conversion = Self::default();
        let mut chars = text.chars().peekable();
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '#' | '0')) {
            match flag {
                '-' => conversion.left = true,
                '+' => conversion.plus = true,
                ' ' => conversion.space = true,
                '#' => conversion.alternate = true,
                _ => conversion.zero = true,
            }
        }
        if chars.next_if_eq(&'*').is_some() {
            let width = arguments.next_int()?;
            conversion.left |= width < 0;
            conversion.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        } else {
            conversion.width = digits(&mut chars).unwrap_or(0);
        }
        if chars.next_if_eq(&'.').is_some() {
            conversion.precision = Some(match chars.next_if_eq(&'*') {
                Some(_) => usize::try_from(arguments.next_int()?).unwrap_or(0),
                None => digits(&mut chars).unwrap_or(0),
            });
        }
        check_width(conversion.width)?;
        check_width(conversion.precision.unwrap_or(0))?;
        chars.next_if(|c| matches!(c, 'h' | 'l' | 'L'));
        let Some(kind) = chars.next() else { fail!("incomplete format") };
        let rest: usize = chars.map(char::len_utf8).sum();
        Ok((conversion, kind, &text[text.len() - rest..]))
    }

    fn apply(&self, machine: &Machine, kind: char, value: &Value) -> Result<String> {
        let text = match kind {
            's' => self.text(&machine.to_text(value)?),
            'r' => self.text(&machine.repr(value)?),
            'a' => self.text(&ascii(&machine.repr(value)?)),
            'c' => self.pad("", &character(value)?, false),
            'd' | 'i' | 'u' => self.decimal(value, kind)?,
            'o' | 'x' | 'X' => self.radix(value, kind)?,
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => self.float(value, kind)?,
            other => fail!("unsupported format character '{other}'"),
        };
        machine.budget.text(text.len())?;
        Ok(text)
    }

    /// Text cut to the precision and filled up to the width.
    fn text(&self, text: &str) -> String {
        let shown: String = text.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        self.pad("", &shown, false)
    }

    fn decimal(&self, value: &Value, kind: char) -> Result<String> {
        let int = match value {
            Value::Float(float) => number::truncate(*float)?,
            Value::Bool(_) | Value::Int(_) | Value::Big(_) => value.clone(),
            _ => fail!("%{kind} format: a real number is required, not {}", value.type_name()),
        };
        let digits = int_digits(&number::to_big(&int).unwrap_or_default(), 10, false)?;
        Ok(self.integer(number::is_negative(&int), "", &digits))
    }

    fn radix(&self, value: &Value, kind: char) -> Result<String> {
        let Some(int) = number::to_big(value) else {
            fail!("%{kind} format: an integer is required, not {}", value.type_name());
        };
        let (radix, prefix) = match kind {
            'o' => (8, "0o"),
            'x' => (16, "0x"),
            _ => (16, "0X"),
        };
        let digits = int_digits(&int, radix, kind == 'X')?;
        Ok(self.integer(number::is_negative(value), if self.alternate { prefix } else { "" }, &digits))
    }

    /// An integer, with as many digits as the precision asks for.
    fn integer(&self, negative: bool, prefix: &str, digits: &str) -> String {
        let zeros = "0".repeat(self.precision.unwrap_or(0).saturating_sub(digits.len()));
        self.pad(&format!("{}{prefix}", self.sign(negative)), &format!("{zeros}{digits}"), self.zero)
    }

    fn float(&self, value: &Value, kind: char) -> Result<String> {
        let float = match number::to_float(value) {
            Some(float) => float?,
            None => fail!("must be real number, not {}", value.type_name()),
        };
        let style = match kind.to_ascii_lowercase() {
            'f' => FloatStyle::Fixed,
            'e' => FloatStyle::Exponent,
            _ => FloatStyle::General,
        };
        let mut digits = match float.is_finite() {
            true => float_digits(float.abs(), style, self.precision.unwrap_or(6), self.alternate)?,
            false => number::non_finite(float.abs()).to_owned(),
        };
        if kind.is_ascii_uppercase() {
            digits = digits.to_uppercase();
        }
        let negative = float.is_sign_negative() && !float.is_nan();
        Ok(self.pad(self.sign(negative), &digits, self.zero))
    }

    fn sign(&self, negative: bool) -> &'static str {
        match () {
            () if negative => "-",
            () if self.plus => "+",
            () if self.space => " ",
            () => "",
        }
    }

    /// Text filled up to the width: with zeros behind its sign, or with spaces.
    fn pad(&self, sign: &str, text: &str, zeros: bool) -> String {
        let missing = self.width.saturating_sub(sign.len() + char_count(text));
        match (self.left, zeros) {
            (true, _) => format!("{sign}{text}{}", " ".repeat(missing)),
            (false, true) => format!("{sign}{}{text}", "0".repeat(missing)),
            (false, false) => format!("{}{sign}{text}", " ".repeat(missing)),
        }
    }
}

/// The character of `%c`: a code, or a text of one character.
fn character(value: &Value) -> Result<String> {
    let wrong = || Error::new("%c requires an int or a string of one character");
    match (value.as_text(), number::to_index(value)) {
        (Some(text), _) if char_count(text) == 1 => Ok(text.to_string()),
        (None, Some(code)) => {
            let c = u32::try_from(code).ok().and_then(char::from_u32);
            c.map(String::from).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}
