//! What a `tokenizer.json` may ask for.
//!
//! The `tokenizers` crate does what it is told: a short text becomes gigabytes under a dozen replacements of one letter
//! by four, or under a template that names a thousand special tokens a thousand times. So the file is walked before that
//! crate sees it, once and without keeping more than its small parts.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::files::brief;

/// Tokens in a vocabulary, and merges. The largest published ones are Gemma 3's, 262,144 and 514,906; it takes the crate
/// up to two seconds and 290 MB to find that as many contradict each other.
const MAX_ENTRIES: usize = 5 << 17;
/// Tokens beside the vocabulary. Gemma has 6,400, and models of speech have tens of thousands.
const MAX_ADDED: usize = 1 << 17;
/// Bytes of one such token, as a text of which no part is looked up.
const MAX_ADDED_BYTES: usize = 1 << 10;
/// Bytes of all of them.
const MAX_ALL_ADDED_BYTES: usize = 4 << 20;
/// States of the automatons that find them, of which each takes two microseconds and 170 bytes: one for each byte that a
/// token has after what it shares with another. The 66,000 tokens of a model of speech take 200,000.
const MAX_STATES: usize = 1 << 19;
/// Values in each of the other parts, and the bytes of their strings; there are maps of characters of 400 KiB.
const MAX_VALUES: usize = 4096;
const MAX_PART_BYTES: usize = 4 << 20;
/// Bytes of one string there, but for those maps.
const MAX_STRING_BYTES: usize = 4 << 10;
/// Bytes of a token in a vocabulary, and of one that a trie holds, in which each byte may be a step of its own.
const MAX_TOKEN_BYTES: usize = 1 << 10;
const MAX_PIECE_BYTES: usize = 1 << 8;
/// Bytes of all that a trie holds, and its states, of which each takes 340 bytes: twice those of the largest vocabularies.
const MAX_PIECES_BYTES: usize = 16 << 20;
const MAX_PIECE_STATES: usize = 1 << 21;
/// What one byte may become.
const MAX_GROWTH: usize = 1 << 10;
/// NFKC and NFKD make 33 bytes of the three of U+FDFA; NFC and NFD three of one.
const NFK_GROWTH: usize = 11;
const NF_GROWTH: usize = 3;
/// Special tokens around a text.
const MAX_AROUND: usize = 1 << 10;
/// Characters of a word in WordPiece, which tries every part of it, and bytes of what it puts before a part.
const MAX_WORD_CHARS: usize = 1 << 8;
const MAX_PREFIX_BYTES: usize = 1 << 6;

const CHARSMAP: &str = "precompiled_charsmap";

/// What a tokenizer may do to a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Into how many tokens an added token falls at most, or a word that is one token while it is whole.
    pub falls_into: usize,
    /// How many times as long replacements may make a text, other than those of Unicode's normal forms and of maps of
    /// characters, which are rare in a text.
    pub growth: usize,
}

/// Walks a file, and refuses what would take more time or memory than any real tokenizer does.
pub(super) fn check(json: &[u8]) -> serde_json::Result<Reach> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let reach = reader.deserialize_map(File)?;
    reader.end()?;
    Ok(reach)
}

struct File;

impl<'de> Visitor<'de> for File {
    type Value = Reach;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Reach, A::Error> {
        let (mut added, mut word) = (Added::default(), 0);
        let [mut normalizer, mut pre_tokenizer] = [Value::Null, Value::Null];
        let grown = |part: &Value, bytes, what: &str| match growth(part, bytes, true).map_err(Error::custom)? {
            bytes if bytes > MAX_GROWTH => Err(Error::custom(format!("the {what} makes up to {bytes} bytes of one"))),
            bytes => Ok(bytes),
        };
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "added_tokens" => added = map.next_value()?,
                "model" => word = map.next_value_seed(Model)?,
                "normalizer" => normalizer = map.next_value_seed(Part::default().seed(false))?,
                "pre_tokenizer" => pre_tokenizer = map.next_value_seed(Part::default().seed(false))?,
                "decoder" => drop(grown(&map.next_value_seed(Part::default().seed(false))?, 1, &key)?),
                "post_processor" => {
                    let part = map.next_value_seed(Part::default().seed(false))?;
                    let tokens = around(&part).map_err(Error::custom)?;
                    if tokens > MAX_AROUND {
                        return Err(Error::custom(format!("the {key} puts {tokens} special tokens around a text")));
                    }
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let normalized = grown(&normalizer, 1, "normalizer")?;
        grown(&pre_tokenizer, normalized, "pre_tokenizer, after the normalizer,")?;
        // As long as the normalizer may make a token of middle length.
        let length =
            added.normalized.iter().map(String::len).sum::<usize>().div_ceil(added.normalized.len().max(1)).max(1);
        let longer = growth(&normalizer, length, true).map_err(Error::custom)?.div_ceil(length);
        let states = states(&mut added.plain) + states(&mut added.normalized).saturating_mul(longer);
        if states > MAX_STATES {
            return Err(Error::custom(format!("the added_tokens need up to {states} states to be found")));
        }
        /// A text, of which a prefix is a small part.
        const TEXT: usize = 4096;
        let replaced =
            [&normalizer, &pre_tokenizer].into_iter().try_fold(TEXT, |bytes, part| growth(part, bytes, false));
        let growth = replaced.map_err(Error::custom)?.div_ceil(TEXT);
        Ok(Reach { falls_into: added.longest.max(word), growth })
    }
}

/// The fields of a step. The crate also reads steps that are lists of values without names; nobody writes those.
fn fields(step: &Value) -> Result<Option<&Map<String, Value>>, String> {
    match step {
        Value::Null => Ok(None),
        Value::Object(fields) => Ok(Some(fields)),
        other => Err(format!("a step is no object: {}", brief(other))),
    }
}

/// The bytes that `bytes` bytes may become in a part of the file, of which every object may be a step; without `maps`,
/// those that normal forms and maps of characters leave alone.
fn growth(step: &Value, bytes: usize, maps: bool) -> Result<usize, String> {
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
fn around(step: &Value) -> Result<usize, String> {
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

/// The bytes of tokens, less those that one has in common with another at the beginning.
fn states(tokens: &mut [String]) -> usize {
    tokens.sort_unstable();
    let mut before: &[u8] = &[];
    let new = tokens.iter().map(|token| {
        let shared = before.iter().zip(token.as_bytes()).take_while(|(a, b)| a == b).count();
        before = token.as_bytes();
        token.len() - shared
    });
    new.sum()
}

/// The added tokens: those that are found in a text as it is, and those in what the normalizer makes of it.
#[derive(Default)]
struct Added {
    plain: Vec<String>,
    normalized: Vec<String>,
    longest: usize,
}

impl<'de> Deserialize<'de> for Added {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Token {
            content: String,
            #[serde(default)]
            normalized: bool,
        }
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Added;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Added, A::Error> {
                let (mut added, mut all) = (Added::default(), 0);
                while let Some(Token { content, normalized }) = list.next_element()? {
                    let bytes = content.len();
                    all += bytes;
                    if added.plain.len() + added.normalized.len() == MAX_ADDED || all > MAX_ALL_ADDED_BYTES {
                        let limits = format!("{MAX_ADDED} added_tokens or {MAX_ALL_ADDED_BYTES} bytes of them");
                        return Err(Error::custom(format!("more than {limits}")));
                    }
                    if bytes > MAX_ADDED_BYTES {
                        return Err(Error::custom(format!("one of the added_tokens has {bytes} bytes")));
                    }
                    added.longest = added.longest.max(bytes);
                    if normalized { &mut added.normalized } else { &mut added.plain }.push(content);
                }
                Ok(added)
            }
        }
        deserializer.deserialize_seq(Tokens)
    }
}

/// The model: a vocabulary, merges where it has them, and what little else there is.
struct Model;

impl<'de> DeserializeSeed<'de> for Model {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Model {
    /// The characters of the longest word that is looked at.
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let (part, mut word) = (Part::default(), 0);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "vocab" | "merges" => {
                    let mut pieces = map.next_value::<Option<Entries>>()?.unwrap_or_default().pieces;
                    let states = states(&mut pieces);
                    if states > MAX_PIECE_STATES {
                        return Err(Error::custom(format!("the {key} needs {states} states to be found")));
                    }
                }
                _ => {
                    let value = map.next_value_seed(part.seed(false))?;
                    if key == "continuing_subword_prefix" && value.as_str().is_some_and(|p| p.len() > MAX_PREFIX_BYTES)
                    {
                        return Err(Error::custom(format!("{key} has more than {MAX_PREFIX_BYTES} bytes")));
                    }
                    if key == "max_input_chars_per_word" {
                        word = value.as_u64().and_then(|n| n.try_into().ok()).unwrap_or(usize::MAX);
                        if word > MAX_WORD_CHARS {
                            return Err(Error::custom(format!("{key} is {value}, expected up to {MAX_WORD_CHARS}")));
                        }
                    }
                }
            }
        }
        Ok(word)
    }
}

/// A vocabulary, `{"a": 0}` or `[["a", -1.5]]`, or merges, `["a b"]` or `[["a", "b"]]`.
#[derive(Default)]
struct Entries {
    /// Tokens with a score: those of Unigram, which holds them in a trie.
    pieces: Vec<String>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tokens or merges")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut count = 0;
                while let Some((token, _)) = map.next_entry::<String, u32>()? {
                    count_entry(&mut count)?;
                    check_length(&token, MAX_TOKEN_BYTES)?;
                }
                Ok(Entries::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
                let (mut count, mut bytes, mut pieces) = (0, 0, Vec::new());
                while let Some(entry) = list.next_element::<Entry>()? {
                    count_entry(&mut count)?;
                    let Entry::Piece(piece) = entry else { continue };
                    check_length(&piece, MAX_PIECE_BYTES)?;
                    bytes += piece.len();
                    if bytes > MAX_PIECES_BYTES {
                        return Err(Error::custom(format!("more than {MAX_PIECES_BYTES} bytes of tokens")));
                    }
                    pieces.push(piece);
                }
                Ok(Entries { pieces })
            }
        }
        deserializer.deserialize_any(Any)
    }
}

fn count_entry<E: Error>(count: &mut usize) -> Result<(), E> {
    *count += 1;
    match *count > MAX_ENTRIES {
        true => Err(E::custom(format!("more than {MAX_ENTRIES} tokens or merges"))),
        false => Ok(()),
    }
}

fn check_length<E: Error>(token: &str, most: usize) -> Result<(), E> {
    match token.len() {
        bytes if bytes > most => Err(E::custom(format!("a token of {bytes} bytes"))),
        _ => Ok(()),
    }
}

/// One of a list.
enum Entry {
    /// A string, or two.
    Merge,
    /// A token and its score.
    Piece(String),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token with its score, or a merge")
            }

            fn visit_str<E: Error>(self, merge: &str) -> Result<Entry, E> {
                check_length(merge, 2 * MAX_TOKEN_BYTES).map(|()| Entry::Merge)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Entry, A::Error> {
                let first = pair.next_element::<String>()?;
                let second = pair.next_element_seed(Part::default().seed(false))?;
                match (first, second, pair.next_element::<IgnoredAny>()?) {
                    (Some(piece), Some(Value::Number(_)), None) => Ok(Entry::Piece(piece)),
                    (Some(half), Some(Value::String(_)), None) => {
                        check_length(&half, MAX_TOKEN_BYTES).map(|()| Entry::Merge)
                    }
                    _ => Err(Error::custom("not two values, a token and its score or the halves of a merge")),
                }
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// How much more a part of the file may hold.
struct Part {
    values: Cell<usize>,
    bytes: Cell<usize>,
}

impl Default for Part {
    fn default() -> Self {
        Self { values: Cell::new(MAX_VALUES), bytes: Cell::new(MAX_PART_BYTES) }
    }
}

impl Part {
    fn seed(&self, long: bool) -> Bounded<'_> {
        Bounded { part: self, long }
    }

    fn take<E: Error>(&self, values: usize, bytes: usize) -> Result<(), E> {
        let left = |cell: &Cell<usize>, n| cell.get().checked_sub(n).map(|left| cell.set(left));
        match left(&self.values, values).and(left(&self.bytes, bytes)) {
            Some(()) => Ok(()),
            None => Err(E::custom(format!("a part has more than {MAX_VALUES} values or {MAX_PART_BYTES} bytes"))),
        }
    }
}

/// A value in a part.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    part: &'a Part,
    /// Whether strings may be long.
    long: bool,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.part.take(1, 0).map(|()| value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        if !self.long && text.len() > MAX_STRING_BYTES {
            return Err(E::custom(format!("a string of {} bytes", text.len())));
        }
        self.part.take(1, text.len()).map(|()| text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.part.take(1, 0)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.part.take(1, 0)?;
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            self.part.take(1, key.len())?;
            let value = map.next_value_seed(self.part.seed(key == CHARSMAP))?;
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}
