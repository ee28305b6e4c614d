//! What the steps of a tokenizer make of a text: how long it may become, and how many tokens are put around it.

use serde_json::{Map, Value};

use crate::json::brief;

pub(super) const CHARSMAP: &str = "precompiled_charsmap";

/// NFKC and NFKD make 33 bytes of the three of U+FDFA; NFC and NFD three of one.
const NFK_GROWTH: usize = 11;
const NF_GROWTH: usize = 3;

/// The fields of a step. The crate also reads steps that are lists of values without names; nobody writes those.
fn fields(step: &Value) -> Result<Option<&Map<String, Value>>, String> {
    match step {
        Value::Null => Ok(None),
        Value::Object(fields) => Ok(Some(fields)),
        other => Err(format!("a step is no object: {}", brief(other))),
    }
}

/// The steps of a normalizer. BERT's does the work of six.
pub(super) fn steps(part: &Value) -> usize {
    match (part.get("normalizers").and_then(Value::as_array), part.get("type").and_then(Value::as_str)) {
        (Some(parts), _) => parts.iter().map(steps).sum(),
        (None, Some("BertNormalizer")) => 6,
        (None, _) => usize::from(part.is_object()),
    }
}

/// The bytes that `bytes` bytes may become in a part of the file, of which every object may be a step; without `maps`,
/// those that normal forms and maps of characters leave alone.
pub(super) fn growth(step: &Value, bytes: usize, maps: bool) -> Result<usize, String> {
    let Some(fields) = fields(step)? else { return Ok(bytes) };
    let text = |name| fields.get(name).and_then(Value::as_str);
    let mut bytes = bytes;
    for list in ["normalizers", "pretokenizers", "decoders"] {
        for step in fields.get(list).and_then(Value::as_array).into_iter().flatten() {
            bytes = growth(step, bytes, maps)?;
        }
    }
    if let Some(prefix) = text("prepend") {
        bytes = bytes.saturating_add(prefix.len());
    }
    if let Some((pattern, content)) = fields.get("pattern").zip(text("content")) {
        bytes = bytes.saturating_mul(match pattern.get("String").and_then(Value::as_str) {
            Some(replaced) if !replaced.is_empty() => content.len().div_ceil(replaced.len()).max(1),
            // It may match what is empty, which is beside every byte.
            _ => content.len() + 1,
        });
    }
    if let Some(map) = text(CHARSMAP) {
        let longest = longest_in_charsmap(map)?;
        bytes = bytes.saturating_mul(if maps { longest } else { 1 });
    }
    bytes = bytes.saturating_mul(match text("type") {
        Some("NFKC" | "NFKD") if maps => NFK_GROWTH,
        Some("NFC" | "NFD") if maps => NF_GROWTH,
        _ => 1,
    });
    // A decoder puts blanks there.
    for name in ["suffix", "word_delimiter_token"] {
        if text(name) == Some("") {
            bytes = bytes.saturating_mul(2).saturating_add(1);
        }
    }
    let names = |name| fields.contains_key(name);
    if text("type") == Some("ByteLevel") || names("trim_offsets") {
        // A byte is a character of up to two, and a blank may come before all.
        bytes = bytes.saturating_add(1).saturating_mul(2);
    } else if names("replacement") || names("str_rep") {
        // A character for each blank, and one before all.
        bytes = bytes.saturating_add(1).saturating_mul(4);
    }
    Ok(bytes)
}

/// The longest text that a map of characters has for one. The crate allocates what the map says that its trie takes.
fn longest_in_charsmap(map: &str) -> Result<usize, String> {
    let map = base64::decode(map).unwrap_or_default();
    let texts = map.split_first_chunk().and_then(|(size, rest)| rest.get(u32::from_le_bytes(*size) as usize..));
    let Some(texts) = texts else { return Err(format!("{CHARSMAP} says more than its {} bytes hold", map.len())) };
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1))
}

/// The special tokens that a post-processor puts around a text, of which there has to be one.
pub(super) fn around(step: &Value) -> Result<usize, String> {
    let Some(fields) = fields(step)? else { return Ok(0) };
    let list = |name| fields.get(name).and_then(Value::as_array).into_iter().flatten();
    let mut tokens = 0usize;
    for step in list("processors") {
        tokens = tokens.saturating_add(around(step)?);
    }
    let special = fields.get("special_tokens").and_then(Value::as_object);
    let ids = |name: &str| special?.get(name)?.get("ids")?.as_array().map(Vec::len);
    for template in ["single", "pair"] {
        let mut texts = 0;
        for piece in list(template) {
            let name = |kind: &str| piece.get(kind)?.get("id")?.as_str();
            match (name("SpecialToken"), name("Sequence")) {
                (Some(name), None) => {
                    let ids = ids(name).ok_or_else(|| format!("the template `{template}` has a token without ids"))?;
                    tokens = tokens.saturating_add(ids);
                }
                (None, Some(name)) => texts += usize::from(name == "A"),
                _ => return Err(format!("the template `{template}` has {}", brief(piece))),
            }
        }
        if texts > 1 {
            return Err(format!("the template `{template}` has the text {texts} times"));
        }
    }
    Ok(tokens)
}
