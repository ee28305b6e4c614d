//! Reads the extensions that Python's `json` accepts: `NaN`, `Infinity`, numbers beyond f64, and unpaired surrogates.
//! Python programs write such files.
//!
//! A [`Value`] cannot hold these, so the text is rewritten: an object with one reserved key stands for each. No reader
//! takes it for a number or a string, and messages show the spelling of the file.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::error::cut_to;

/// An object that stands for a value has this key.
const KEY: &str = "\u{0}python";
/// Maximum number of rewritten values. The objects are longer than the values, so this limits the text.
const MAX_VALUES: usize = 1 << 12;
/// Maximum number of characters that an object keeps of its value.
const MAX_CHARS: usize = 20;

/// Returns the spelling of the value that an object stands for; `None` for every other value.
pub(super) fn spelling(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(KEY)?.as_str()
}

/// Returns the text as JSON. Returns `None` if it has no extension, or more than [`MAX_VALUES`].
///
/// The result is valid JSON exactly if Python reads the text.
pub(super) fn rewritten(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut json, mut copied, mut at, mut values) = (String::new(), 0, 0, 0);
    while let Some(&first) = bytes.get(at) {
        // Tokens begin and end at ASCII characters, so the text may be cut there.
        let length = match first {
            b'"' => string_length(&bytes[at..])?,
            b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => word_length(&bytes[at..]),
            _ => {
                at += 1;
                continue;
            }
        };
        let token = &text[at..at + length];
        let start = at;
        at += length;
        let is_key = || bytes[at..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
        let new = match first {
            b'"' if !has_half_pair(token) => continue,
            // No field that is looked up has a backslash in its name, so this name is never read.
            b'"' if is_key() => json!(token[1..length - 1]),
            b'"' => json!({ KEY: format!("{}, which has half of a surrogate pair", cut_to(token, MAX_CHARS)) }),
            _ if ["NaN", "Infinity", "-Infinity"].contains(&token) || is_beyond_f64(token) => {
                json!({ KEY: cut_to(token, MAX_CHARS) })
            }
            _ => continue,
        };
        values += 1;
        if values > MAX_VALUES {
            return None;
        }
        json.push_str(&text[copied..start]);
        json.push_str(&new.to_string());
        copied = at;
    }
    if values == 0 {
        return None;
    }
    json.push_str(&text[copied..]);
    Some(json)
}

/// Returns the length in bytes of the string at the start, with its quotes; `None` if it does not end.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the length in bytes of the number or name at the start.
fn word_length(text: &[u8]) -> usize {
    let ends = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+-._".contains(byte);
    text.iter().position(ends).unwrap_or(text.len())
}

/// Returns whether a string has an escaped surrogate that belongs to no pair.
fn has_half_pair(string: &str) -> bool {
    let mut rest = string;
    while let Some(escape) = rest.find('\\') {
        rest = &rest[escape..];
        let length = match surrogate(rest) {
            // An escape has two bytes, or six with a code unit, whose digits are no backslashes.
            None => 2,
            Some(0xd800..=0xdbff) if matches!(rest.get(6..).and_then(surrogate), Some(0xdc00..)) => 12,
            Some(_) => return true,
        };
        let Some(after) = rest.get(length..) else { return false };
        rest = after;
    }
    false
}

/// Returns the surrogate at the start, which is spelled `\uXXXX`.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..0xe000).contains(unit))
}

/// Returns whether a token is a JSON number that is infinite as f64.
fn is_beyond_f64(token: &str) -> bool {
    token.parse().is_ok_and(f64::is_infinite) && serde_json::from_str::<IgnoredAny>(token).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the object that stands for a value.
    fn stands_for(spelling: &str) -> Value {
        json!({ KEY: spelling })
    }

    fn read(text: &str) -> Option<Value> {
        serde_json::from_str(&rewritten(text)?).ok()
    }

    #[test]
    fn values_that_python_alone_reads_are_held() {
        // `json.loads` of Python 3.11 reads each text.
        let long = "9".repeat(400);
        for (text, spelling) in [
            ("NaN", "NaN"),
            (" Infinity\n", "Infinity"),
            ("-Infinity", "-Infinity"),
            ("1e400", "1e400"),
            ("-1.5E+999", "-1.5E+999"),
            (&long, "99999999999999999999…"),
            (r#""\ud800""#, r#""\ud800", which has half of a surrogate pair"#),
            (r#""\uDC00\uD800""#, r#""\uDC00\uD800", which has half of a surrogate pair"#),
            (r#""\\\ud83d\ude00\ud83d""#, r#""\\\ud83d\ude00\ud83…, which has half of a surrogate pair"#),
        ] {
            assert_eq!(read(text), Some(stands_for(spelling)), "{text}");
            let nested = format!(r#"{{"a": [1, {text}], "é NaN \" 1e400": {text}}}"#);
            let expected = json!({"a": [1, stands_for(spelling)], "é NaN \" 1e400": stands_for(spelling)});
            assert_eq!(read(&nested), Some(expected), "{nested}");
        }
        assert_eq!(read(r#"{"\ud800" : NaN}"#), Some(json!({r"\ud800": stands_for("NaN")})));
    }

    #[test]
    fn json_is_left_alone() {
        for text in ["{}", r#""NaN""#, r#"["\ud83d\ude00", "\\ud800", "\n", -0, 1e308, 1e-400]"#, r#""\"#, r#""a"#, ""]
        {
            assert_eq!(rewritten(text), None, "{text}");
        }
    }

    #[test]
    fn text_that_python_refuses_stays_invalid() {
        for text in [
            "nan",
            "-NaN",
            "+Infinity",
            "inf",
            "-inf",
            "-infinity",
            "NaNs",
            "1NaN",
            "01e400",
            "1e400x",
            ".1e999",
            "+1e400",
            "{NaN: 1}",
            "{1e400: 1}",
            "[NaN,]",
            "NaN NaN",
            r#""\ud800"1"#,
            r#"["\ud800" "\ud800"]"#,
            "é[NaN",
            "NaNé",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(rewritten(&format!("[{}1]", "NaN,".repeat(MAX_VALUES + 1))), None);
    }
}
