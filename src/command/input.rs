//! What commands read: token ids, and lines.

use std::io::{BufRead, Read};

use super::Outcome;

/// Token ids between commas.
pub fn parse_tokens(text: &str) -> Result<Tokens, String> {
    if text.trim().is_empty() {
        return Ok(Tokens(Vec::new()));
    }
    let parsed = text
        .split(',')
        .map(str::trim)
        .map(|part| part.parse::<u32>().map_err(|_| format!("`{part}` is not a token id")));
    Ok(Tokens(parsed.collect::<Result<_, _>>()?))
}

/// A list of tokens as one argument.
#[derive(Debug, Clone)]
pub struct Tokens(pub Vec<u32>);

/// The next line of `input`, without its end; `None` where there is none. What goes on for more than `max` bytes with no
/// one, as a device may without end, is an error.
pub fn read_line(input: &mut dyn BufRead, max: u64) -> Outcome<Option<String>> {
    let mut line = Vec::new();
    Read::take(input, max + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 > max {
        return Err(format!("a line has more than {} MiB", max >> 20).into());
    }
    let mut line = String::from_utf8(line).map_err(|_| "a line is not UTF-8")?;
    for end in ['\n', '\r'] {
        if line.ends_with(end) {
            line.pop();
        }
    }
    Ok(Some(line))
}
