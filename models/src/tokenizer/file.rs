//! A `tokenizer.json`, walked before the `tokenizers` crate sees any of it.
//!
//! That crate does what it is told: a short text becomes gigabytes under a dozen replacements of one letter by four, or
//! under a template that names a thousand special tokens a thousand times. So the file is walked once, and refused where
//! it asks for more time or memory than any real tokenizer does. What is small then goes to the crate as it is; the
//! vocabulary, whose tokens remain where they stand in the file, goes through the crate's builders, without the tree of
//! values that reading all of it costs there.

mod growth;
mod model;
mod part;
mod regex;

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use growth::{around, growth};
use model::Model;
use part::Part;

/// Tokens beside the vocabulary. Gemma has 6,400, and models of speech have tens of thousands.
const MAX_ADDED: usize = 1 << 17;
/// Bytes of one such token, as a text of which no part is looked up.
const MAX_ADDED_BYTES: usize = 1 << 10;
/// Bytes of all of them.
const MAX_ALL_ADDED_BYTES: usize = 4 << 20;
/// States of the automatons that find them, of which each takes two microseconds and 170 bytes: one for each byte that a
/// token has after what it shares with another. The 66,000 tokens of a model of speech take 200,000.
const MAX_STATES: usize = 1 << 19;
/// What one byte may become.
const MAX_GROWTH: usize = 1 << 10;
/// Special tokens around a text.
const MAX_AROUND: usize = 1 << 10;

/// What a tokenizer may do to a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Into how many tokens an added token falls at most, or a word that is one token while it is whole.
    pub falls_into: usize,
    /// How many times as long replacements may make a text, other than those of Unicode's normal forms and of maps of
    /// characters, which are rare in a text.
    pub growth: usize,
}

/// What a file holds.
pub(super) struct TokenizerFile<'de> {
    /// What is small: all but the next two.
    parts: Map<String, Value>,
    model: Model<'de>,
    added: Vec<AddedToken>,
    pub reach: Reach,
}

impl<'de> TokenizerFile<'de> {
    /// Walks a file, and refuses what would take more time or memory than any real tokenizer does.
    pub fn read(json: &'de [u8]) -> serde_json::Result<Self> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let file = reader.deserialize_map(File)?;
        reader.end()?;
        Ok(file)
    }

    /// The crate's tokenizer.
    pub fn build(mut self) -> tokenizers::Result<Tokenizer> {
        self.parts.insert("model".to_owned(), self.model.without_tokens());
        let mut tokenizer: Tokenizer = serde_json::from_value(self.parts.into())?;
        let model = self.model.build(tokenizer.get_model())?;
        tokenizer.with_model(model);
        tokenizer.add_tokens(&self.added);
        Ok(tokenizer)
    }
}

struct File;

impl<'de> Visitor<'de> for File {
    type Value = TokenizerFile<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TokenizerFile<'de>, A::Error> {
        let (mut parts, mut model, mut added) = (Map::new(), None, Added::default());
        while let Some(key) = map.next_key::<String>()? {
            let part = match &*key {
                "added_tokens" => {
                    added = map.next_value()?;
                    Value::Array(Vec::new())
                }
                "model" => {
                    model = Some(map.next_value()?);
                    Value::Null
                }
                "version" | "truncation" | "padding" | "normalizer" | "pre_tokenizer" | "post_processor"
                | "decoder" => map.next_value_seed(Part::default().seed(false))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            part::insert(&mut parts, key, part)?;
        }
        let model: Model<'de> = model.ok_or_else(|| Error::missing_field("model"))?;
        let part = |name| parts.get(name).unwrap_or(&Value::Null);
        let growth = check_parts(part, &added).map_err(Error::custom)?;
        let reach = Reach { falls_into: added.longest.max(model.longest_word()), growth };
        Ok(TokenizerFile { parts, model, added: added.tokens, reach })
    }
}

/// Refuses steps that make too much of a text. How many times as long they may make one, as [`Reach`] has it.
fn check_parts<'a>(part: impl Fn(&'static str) -> &'a Value, added: &Added) -> Result<usize, String> {
    let grown = |name, bytes, what: &str| match growth(part(name), bytes, true)? {
        bytes if bytes > MAX_GROWTH => Err(format!("the {what} makes up to {bytes} bytes of one")),
        bytes => Ok(bytes),
    };
    let steps = ["normalizer", "pre_tokenizer", "decoder", "post_processor"];
    let size = steps.into_iter().fold(0, |size, name| regex::size(part(name)).saturating_add(size));
    if size > regex::MAX_SIZE {
        return Err(format!(
            "its regular expressions have {size} letters and classes, when what repeats is written out"
        ));
    }
    let normalized = grown("normalizer", 1, "normalizer")?;
    grown("pre_tokenizer", normalized, "pre_tokenizer, after the normalizer,")?;
    grown("decoder", 1, "decoder")?;
    let tokens = around(part("post_processor"))?;
    if tokens > MAX_AROUND {
        return Err(format!("the post_processor puts {tokens} special tokens around a text"));
    }
    let states = added.states(|bytes| growth(part("normalizer"), bytes, true))?;
    if states > MAX_STATES {
        return Err(format!("the added_tokens need up to {states} states to be found"));
    }
    /// A text, of which a prefix is a small part.
    const TEXT: usize = 4096;
    let mut steps = ["normalizer", "pre_tokenizer"].into_iter();
    let replaced = steps.try_fold(TEXT, |bytes, name| growth(part(name), bytes, false))?;
    Ok(replaced.div_ceil(TEXT))
}

/// The bytes of tokens, less those that one has in common with another at the beginning.
fn states<'a>(tokens: impl Iterator<Item = &'a str>) -> usize {
    let mut tokens: Vec<&[u8]> = tokens.map(str::as_bytes).collect();
    tokens.sort_unstable();
    let mut before: &[u8] = &[];
    let new = tokens.into_iter().map(|token| {
        let shared = before.iter().zip(token).take_while(|(a, b)| a == b).count();
        before = token;
        token.len() - shared
    });
    new.sum()
}

/// The added tokens.
#[derive(Default)]
struct Added {
    tokens: Vec<AddedToken>,
    /// The bytes of the longest.
    longest: usize,
}

impl Added {
    /// The states of the two automatons that find them: those that stand in a text as it is, and those in what the
    /// normalizer makes of it, where they are as long as it may make one of middle length.
    fn states(&self, growth: impl Fn(usize) -> Result<usize, String>) -> Result<usize, String> {
        let found = |normalized| {
            let tokens = self.tokens.iter().filter(move |token| token.normalized == normalized);
            tokens.map(|token| token.content.as_str())
        };
        let length = found(true).map(str::len).sum::<usize>().div_ceil(found(true).count().max(1)).max(1);
        let longer = growth(length)?.div_ceil(length);
        Ok(states(found(false)) + states(found(true)).saturating_mul(longer))
    }
}

impl<'de> Deserialize<'de> for Added {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Token {
            /// The crate gives it another where the vocabulary does.
            #[serde(rename = "id")]
            _id: u32,
            #[serde(flatten)]
            token: AddedToken,
        }
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Added;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Added, A::Error> {
                let (mut added, mut all) = (Added::default(), 0);
                while let Some(Token { token, .. }) = list.next_element()? {
                    let bytes = token.content.len();
                    all += bytes;
                    if added.tokens.len() == MAX_ADDED || all > MAX_ALL_ADDED_BYTES {
                        let limits = format!("{MAX_ADDED} added_tokens or {MAX_ALL_ADDED_BYTES} bytes of them");
                        return Err(Error::custom(format!("more than {limits}")));
                    }
                    if bytes > MAX_ADDED_BYTES {
                        return Err(Error::custom(format!("one of the added_tokens has {bytes} bytes")));
                    }
                    added.longest = added.longest.max(bytes);
                    added.tokens.push(token);
                }
                Ok(added)
            }
        }
        deserializer.deserialize_seq(Tokens)
    }
}
