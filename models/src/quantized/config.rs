//! Fields that the configs of several formats have.

use serde_json::{Map, Value};

use super::bits::Bits;
use super::patterns::{Budget, Patterns};
use crate::config::fields::MAX_SIZE;
use crate::error::{Error, Result, shortened};
use crate::json::{Fields, as_count, brief};

/// Bits of a value: more than any format has.
pub(super) const MAX_BITS: usize = 64;

pub(super) fn unsupported(fields: &Fields<'_>, name: &str, found: &str, supported: &str) -> Error {
    let what = fields.problem(name, &shortened(found)).to_string();
    Error::Unsupported { what, supported: supported.to_owned() }
}

/// The text of a field in lower case, which must be one of those that are `known`; `default` where it is not there.
pub(super) fn expect(fields: &Fields<'_>, name: &str, default: &str, known: &[&str]) -> Result<String> {
    let found = fields.text(name)?.unwrap_or(default).to_ascii_lowercase();
    match known.contains(&found.as_str()) {
        true => Ok(found),
        false => Err(unsupported(fields, name, &found, &known.join(", "))),
    }
}

/// Bits of a value: 4 or 8.
pub(super) fn bits(fields: &Fields<'_>, name: &str) -> Result<Option<Bits>> {
    let Some(count) = fields.count(name, MAX_BITS)? else { return Ok(None) };
    match Bits::of(count) {
        Some(bits) => Ok(Some(bits)),
        None => Err(unsupported(fields, name, &count.to_string(), "4, 8")),
    }
}

/// Columns of a group: `Some(None)` where -1 says that a row is one.
pub(super) fn group_size(fields: &Fields<'_>, name: &str) -> Result<Option<Option<usize>>> {
    if fields.get(name).and_then(Value::as_i64) == Some(-1) {
        return Ok(Some(None));
    }
    Ok(fields.size(name, MAX_SIZE)?.map(Some))
}

/// `[rows, columns]` of blocks, or `"128x128"`.
pub(super) fn block_size(fields: &Fields<'_>, name: &str) -> Result<Option<[usize; 2]>> {
    let sizes: Vec<Option<usize>> = match fields.get(name) {
        None => return Ok(None),
        Some(Value::Array(sizes)) => sizes.iter().take(3).map(as_count).collect(),
        Some(Value::String(text)) => text.split('x').take(3).map(|size| size.parse().ok()).collect(),
        Some(_) => Vec::new(),
    };
    match *sizes {
        [Some(rows), Some(columns)] if (1..=MAX_SIZE).contains(&rows) && (1..=MAX_SIZE).contains(&columns) => {
            Ok(Some([rows, columns]))
        }
        _ => {
            let found = fields.get(name).map(brief).unwrap_or_default();
            Err(fields.problem(name, &format!("must be two sizes, found {found}")))
        }
    }
}

/// Refuses another value than `null`, an empty object, or one that says nothing.
pub(super) fn refuse(
    fields: &Fields<'_>,
    name: &str,
    says_nothing: impl Fn(&Map<String, Value>) -> bool,
) -> Result<()> {
    match fields.get(name) {
        None => Ok(()),
        Some(Value::Object(map)) if map.is_empty() || says_nothing(map) => Ok(()),
        Some(value) => Err(unsupported(fields, name, &brief(value), "checkpoints without")),
    }
}

pub(super) fn patterns(fields: &Fields<'_>, name: &str, budget: &mut Budget) -> Result<Patterns> {
    let problem = |problem: &str| fields.problem(name, problem);
    let no_text = |value: &Value| problem(&format!("must hold strings, has {}", brief(value)));
    let texts = fields.list(name)?.unwrap_or_default().iter();
    Patterns::read(texts.map(|value| value.as_str().ok_or_else(|| no_text(value))), budget, problem)
}
