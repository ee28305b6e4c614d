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
mod ruby;

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use tokenizers::{AddedToken, Tokenizer};

use super::class::{self, Kinds};
use super::config::Declared;
use crate::json::brief;
use growth::{around, growth, steps};
use model::Model;
use part::Part;
use regex::Cost;

/// Tokens beside the vocabulary. Gemma has 6,400, and models of speech have tens of thousands.
const MAX_ADDED: usize = 1 << 17;
/// Bytes of one such token, as a text of which no part is looked up.
const MAX_ADDED_BYTES: usize = 1 << 10;
/// Bytes of all of them.
const MAX_ALL_ADDED_BYTES: usize = 4 << 20;
/// States of the automatons that find them, of which each takes two microseconds and 170 bytes: one for each byte that a
/// token has after what it shares with another. The 66,000 tokens of a model of speech take 200,000.
const MAX_STATES: usize = 1 << 19;
/// Bytes of added tokens that the steps of a normalizer go through, of which each takes 30 nanoseconds. The 66,000 tokens
/// of a model of speech take 3 million in one step, and 8 million in three.
const MAX_NORMALIZING: usize = 3 << 22;
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
    added: Added,
    /// The kinds of the steps of each part, as [`class::kinds`] lists them.
    kinds: Kinds,
    pub reach: Reach,
}

impl<'de> TokenizerFile<'de> {
    /// Walks a file, and refuses what would take more time or memory than any real tokenizer does. Other files have
    /// `declared` tokens besides its own.
    pub fn read(json: &'de [u8], declared: &Declared) -> serde_json::Result<Self> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let file = reader.deserialize_map(File { declared })?;
        reader.end()?;
        Ok(file)
    }

    /// The crate's tokenizer, which follows what is `declared`.
    pub fn build(mut self, declared: &Declared) -> tokenizers::Result<Tokenizer> {
        self.parts.insert("model".to_owned(), self.model.without_tokens());
        let mut tokenizer: Tokenizer = serde_json::from_value(self.parts.into())?;
        let model = self.model.build(tokenizer.get_model())?;
        tokenizer.with_model(model);
        let (own, new) = self.added.tokens.split_at(self.added.own);
        tokenizer.add_tokens(own);
        // Each addition prepares the search for all of them again.
        if !new.is_empty() {
            tokenizer.add_tokens(new);
        }
        warn_of_other_ids(&self.added.declared, &tokenizer);
        declared.follow(&mut tokenizer, &self.kinds)?;
        Ok(tokenizer)
    }
}

/// Warns if tokens get other ids than the files beside `tokenizer.json` say. transformers 5 gives them the next ids in
/// the order of the stated ones.
fn warn_of_other_ids(declared: &[(u32, String)], tokenizer: &Tokenizer) {
    let given = |token: &str| tokenizer.token_to_id(token);
    let mut others = declared.iter().filter(|(id, token)| given(token) != Some(*id));
    if let Some((id, token)) = others.next() {
        tracing::warn!(
            "tokenizer.json gives {} the id {}, where the files beside it say {id}; {} other tokens differ too: Sinew \
             follows tokenizer.json, as transformers 5 does",
            brief(&json!(token)),
            given(token).map_or("none".to_owned(), |id| id.to_string()),
            others.count(),
        );
    }
}

struct File<'a> {
    declared: &'a Declared,
}

impl<'de> Visitor<'de> for File<'_> {
    type Value = TokenizerFile<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tokenizer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TokenizerFile<'de>, A::Error> {
        let (mut parts, mut model, mut added) = (Map::new(), None, Added::default());
        let mut kinds = Kinds::new();
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
                | "decoder" => {
                    let mut part = map.next_value_seed(Part::default().seed(false))?;
                    kinds.insert(key.clone(), class::kinds(&part));
                    ruby::translate(&mut part).map_err(Error::custom)?;
                    part
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            part::insert(&mut parts, key, part)?;
        }
        let model: Model<'de> = model.ok_or_else(|| Error::missing_field("model"))?;
        let part = |name| parts.get(name).unwrap_or(&Value::Null);
        let pad = part("padding").get("pad_token").and_then(Value::as_str);
        added.declare(self.declared, &kinds, pad, |token| model.contains(token)).map_err(Error::custom)?;
        let growth = check_parts(part, &added).map_err(Error::custom)?;
        let reach = Reach { falls_into: added.longest.max(model.longest_word()), growth };
        Ok(TokenizerFile { parts, model, added, kinds, reach })
    }
}

/// Refuses steps that make too much of a text. How many times as long they may make one, as [`Reach`] has it.
fn check_parts<'a>(part: impl Fn(&'static str) -> &'a Value, added: &Added) -> Result<usize, String> {
    let grown = |name, bytes, what: &str| match growth(part(name), bytes, true)? {
        bytes if bytes > MAX_GROWTH => Err(format!("the {what} makes up to {bytes} bytes of one")),
        bytes => Ok(bytes),
    };
    check_regexes(&part)?;
    let normalized = grown("normalizer", 1, "normalizer")?;
    grown("pre_tokenizer", normalized, "pre_tokenizer, after the normalizer,")?;
    grown("decoder", 1, "decoder")?;
    let tokens = around(part("post_processor"))?;
    if tokens > MAX_AROUND {
        return Err(format!("the post_processor puts {tokens} special tokens around a text"));
    }
    let longer = added.grown(|bytes| growth(part("normalizer"), bytes, true))?;
    let states = added.states(longer);
    if states > MAX_STATES {
        return Err(format!("the added_tokens need up to {states} states to be found"));
    }
    let work = added.normalizing(longer, steps(part("normalizer")), Cost::of(part("normalizer")));
    if work > MAX_NORMALIZING {
        return Err(format!("the normalizer takes too long over the added_tokens: {work} steps"));
    }
    /// A text, of which a prefix is a small part.
    const TEXT: usize = 4096;
    let mut both = ["normalizer", "pre_tokenizer"].into_iter();
    let replaced = both.try_fold(TEXT, |bytes, name| growth(part(name), bytes, false))?;
    Ok(replaced.div_ceil(TEXT))
}

/// Refuses expressions that take long to compile, or to match.
fn check_regexes<'a>(part: impl Fn(&'static str) -> &'a Value) -> Result<(), String> {
    let cost = |names: [&'static str; 2]| Cost::all(names.into_iter().map(|name| Cost::of(part(name))));
    let (before, after) = (cost(["normalizer", "pre_tokenizer"]), cost(["decoder", "post_processor"]));
    let size = before.size.saturating_add(after.size);
    if size > regex::MAX_SIZE {
        return Err(format!(
            "its regular expressions have {size} letters and classes, when what repeats is written out"
        ));
    }
    for (what, ways, most) in [
        ("normalizer and pre_tokenizer", before.ways, regex::MAX_WAYS),
        ("decoder and post_processor", after.ways, regex::MAX_DECODER_WAYS),
    ] {
        if ways > most {
            return Err(format!("the regular expressions of its {what} match in too many ways"));
        }
    }
    Ok(())
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
    /// How many of them are in the file; those that other files declare follow.
    own: usize,
    /// The bytes of the longest, and of all.
    longest: usize,
    bytes: usize,
    /// Tokens that are not in this file, with the ids that other files say.
    declared: Vec<(u32, String)>,
}

impl Added {
    fn push(&mut self, token: AddedToken) -> Result<(), String> {
        let bytes = token.content.len();
        self.bytes += bytes;
        if self.tokens.len() == MAX_ADDED || self.bytes > MAX_ALL_ADDED_BYTES {
            return Err(format!("more than {MAX_ADDED} added_tokens or {MAX_ALL_ADDED_BYTES} bytes of them"));
        }
        if bytes > MAX_ADDED_BYTES {
            return Err(format!("one of the added_tokens has {bytes} bytes"));
        }
        self.longest = self.longest.max(bytes);
        self.tokens.push(token);
        Ok(())
    }

    /// Adds tokens that other files declare. What they say of a token goes before what its own file says. A default of a
    /// class counts where the vocabulary has it, which `in_vocab` says; transformers would give it a new id. `pad` is the
    /// token of the file's padding.
    fn declare(
        &mut self,
        declared: &Declared,
        kinds: &Kinds,
        pad: Option<&str>,
        in_vocab: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        self.own = self.tokens.len();
        let mut known: HashMap<_, _> = self.tokens.iter().map(|token| (&*token.content, token)).collect();
        let mut new = Vec::new();
        for (id, token) in &declared.added {
            match known.get(&*token.content) {
                Some(same) if *same == token => continue,
                Some(_) => {}
                None => self.declared.push((*id, token.content.clone())),
            }
            known.insert(&token.content, token);
            new.push(token.clone());
        }
        for (id, token) in &declared.legacy {
            if !known.contains_key(&*token.content) {
                self.declared.push((*id, token.content.clone()));
                known.insert(&token.content, token);
                new.push(token.clone());
            }
        }
        // A token with a name is special. It keeps its other flags where it is in one of the lists so far, and has those
        // that are said last where it is not.
        let defaults = declared.defaults(kinds).map(|(_, text)| AddedToken::from(*text, true));
        let defaults: Vec<_> =
            defaults.filter(|token| known.contains_key(&*token.content) || in_vocab(&token.content)).collect();
        let pad = pad.filter(|_| declared.takes_pad_token(kinds)).map(|text| AddedToken::from(text, true));
        let named = declared.named_and(pad.as_ref()).chain(&defaults);
        let mut said: HashMap<&str, AddedToken> = HashMap::new();
        let mut say = |text, token: AddedToken| {
            let same = said.get(text).or_else(|| known.get(text).copied()) == Some(&token);
            if !same && !token.content.is_empty() {
                said.insert(text, token.clone());
                new.push(token);
            }
        };
        for token in named.clone() {
            say(&token.content, known.get(&*token.content).map_or(token, |known| known).clone().special(true));
        }
        for token in declared.extra.iter().filter(|token| !known.contains_key(&*token.content)) {
            say(&token.content, token.clone());
        }
        if declared.forgets_flags(kinds) {
            for token in named.chain(&declared.extra) {
                say(&token.content, AddedToken::from(&*token.content, true));
            }
        }
        new.into_iter().try_for_each(|token| self.push(token))
    }

    /// Those that stand in a text as it is, or those in what the normalizer makes of it.
    fn found(&self, normalized: bool) -> impl Iterator<Item = &str> {
        let tokens = self.tokens.iter().filter(move |token| token.normalized == normalized);
        tokens.map(|token| token.content.as_str())
    }

    /// How many times as long the normalizer may make those that it changes, as one of middle length.
    fn grown(&self, growth: impl Fn(usize) -> Result<usize, String>) -> Result<usize, String> {
        let bytes = self.found(true).map(str::len).sum::<usize>();
        let length = bytes.div_ceil(self.found(true).count().max(1)).max(1);
        Ok(growth(length)?.div_ceil(length))
    }

    /// The states of the two automatons that find them, in which some are `longer` times as long.
    fn states(&self, longer: usize) -> usize {
        states(self.found(false)) + states(self.found(true)).saturating_mul(longer)
    }

    /// What it takes to normalize them, in bytes that a step goes through.
    fn normalizing(&self, longer: usize, steps: usize, regexes: Cost) -> usize {
        /// What a step takes before it has seen a byte.
        const STEP: usize = 16;
        /// Bytes that a class matches while a step goes through one.
        const MATCHED: usize = 8;
        let tokens = self.found(true).map(|token| {
            let bytes = token.len().saturating_mul(longer);
            let matched = bytes.saturating_mul(regexes.far).saturating_add(regex::classes(regexes.size));
            steps.saturating_mul(bytes + STEP).saturating_add(bytes.saturating_mul(matched) / MATCHED)
        });
        tokens.fold(0, usize::saturating_add)
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
                let mut added = Added::default();
                while let Some(Token { token, .. }) = list.next_element()? {
                    added.push(token).map_err(Error::custom)?;
                }
                Ok(added)
            }
        }
        deserializer.deserialize_seq(Tokens)
    }
}
