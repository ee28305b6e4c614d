//! What Python's `json` reads and JSON does not have: `NaN` and `Infinity`, numbers beyond f64, and halves of surrogate
//! pairs. Python programs write such files, and read them back.
//!
//! A [`Value`] holds none of these. The text is rewritten, so that an object with one reserved key stands for each: no
//! reader takes it for a number or a string, and messages show what the file has.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The key of objects that stand for a value.
const KEY: &str = "\u{0}python";
/// Values that are rewritten at most: the objects are longer than what they stand for.
const MAX_VALUES: usize = 1 << 12;
/// Characters of a value that its object keeps.
const MAX_CHARS: usize = 20;

/// How the file spells the value that an object stands for; `None` for every other value.
pub(super) fn spelling(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(KEY)?.as_str()
}

/// The text in JSON; `None` where it has nothing that Python alone reads, or more than [`MAX_VALUES`] of it.
///
/// The result is valid exactly where Python reads the text.
pub(super) fn rewritten(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut json, mut copied, mut at, mut values) = (String::new(), 0, 0, 0);
    while let Some(&first) = bytes.get(at) {
        // Tokens begin and end at ASCII, where a text may be cut.
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
            // A field that nothing asks for: no name of one has a backslash.
            b'"' if is_key() => json!(token[1..length - 1]),
            b'"' => json!({ KEY: format!("{}, which has half of a surrogate pair", shortened(token)) }),
            _ if ["NaN", "Infinity", "-Infinity"].contains(&token) || is_beyond_f64(token) => {
                json!({ KEY: shortened(token) })
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

/// Bytes of the string that a text begins with, its quotes included; `None` where it does not end.
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

/// Bytes of the number or name that a text begins with.
fn word_length(text: &[u8]) -> usize {
    let ends = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"+-._".contains(byte);
    text.iter().position(ends).unwrap_or(text.len())
}

/// Whether a string has an escaped surrogate that is not the first or second of a pair.
fn has_half_pair(string: &str) -> bool {
    let mut rest = string;
    while let Some(escape) = rest.find('\\') {
        rest = &rest[escape..];
        let length = match surrogate(rest) {
            // An escape has two bytes, or six with a code unit; those of a unit are no backslashes.
            None => 2,
            Some(0xd800..=0xdbff) if matches!(rest.get(6..).and_then(surrogate), Some(0xdc00..)) => 12,
            Some(_) => return true,
        };
        let Some(after) = rest.get(length..) else { return false };
        rest = after;
    }
    false
}

/// The surrogate that a text begins with, as `\uXXXX`.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..0xe000).contains(unit))
}

/// Whether a token is a number of JSON that is infinite as f64.
fn is_beyond_f64(token: &str) -> bool {
    token.parse().is_ok_and(f64::is_infinite) && serde_json::from_str::<IgnoredAny>(token).is_ok()
}

fn shortened(token: &str) -> String {
    match token.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &token[..end]),
        None => token.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands for a value.
    fn stands_for(spelling: &str) -> Value {
        json!({ KEY: spelling })
    }

    fn read(text: &str) -> Option<Value> {
        serde_json::from_str(&rewritten(text)?).ok()
    }

    #[test]
    fn values_that_python_alone_reads_are_held() {
        // Each is read by json.loads of Python 3.11.
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
