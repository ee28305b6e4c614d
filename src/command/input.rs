//! What commands read: token ids, and lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

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

/// The longest line that is read as one text: some ten times what the longest contexts of embedding models take.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A file of texts, one on each line; `-` is standard input.
pub struct Lines<'a> {
    file: &'a Path,
    input: Box<dyn BufRead>,
}

impl<'a> Lines<'a> {
    pub fn open(file: &'a Path) -> Outcome<Self> {
        let input: Box<dyn BufRead> = match file == Path::new("-") {
            true => Box::new(io::stdin().lock()),
            false => Box::new(BufReader::new(File::open(file).map_err(|error| unreadable(file, &error))?)),
        };
        Ok(Self { file, input })
    }

    /// The next one; none at the end.
    pub fn next(&mut self) -> Outcome<Option<String>> {
        read_line(&mut *self.input, MAX_LINE_BYTES).map_err(|error| unreadable(self.file, &*error).into())
    }
}

fn unreadable(file: &Path, error: &dyn std::error::Error) -> String {
    format!("cannot read {}: {error}", file.display())
}
