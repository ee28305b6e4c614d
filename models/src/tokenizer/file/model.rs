//! The model in a `tokenizer.json`: a vocabulary, merges where it has them, and what little else there is.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::{self, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;

use super::part::{self, Part};
use super::states;
use crate::json::brief;

/// Tokens in a vocabulary, and merges. The largest published ones that are not Unigram's are Gemma 3's, 262,144 and
/// 514,906.
const MAX_ENTRIES: usize = 5 << 17;
/// The pieces of Unigram: XLM-V has 901,629.
const MAX_PIECES: usize = 1 << 20;
/// Bytes of a token in a vocabulary, and of one that a trie holds, in which each byte may be a step of its own.
const MAX_TOKEN_BYTES: usize = 1 << 10;
const MAX_PIECE_BYTES: usize = 1 << 8;
/// Bytes of all that a trie holds, and its states, of which each takes 340 bytes.
const MAX_PIECES_BYTES: usize = 16 << 20;
const MAX_PIECE_STATES: usize = 1 << 22;
/// Characters of a word in WordPiece, which tries every part of it, and bytes of what it puts before a part.
const MAX_WORD_CHARS: usize = 1 << 8;
const MAX_PREFIX_BYTES: usize = 1 << 6;

/// A text, which stands in the file unless something in it is escaped.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A model.
pub(super) struct Model<'de> {
    /// All but the vocabulary and the merges.
    options: Map<String, Value>,
    vocab: Option<Vocab<'de>>,
    merges: Option<Merges<'de>>,
}

impl Model<'_> {
    /// The characters of the longest word that is looked at.
    pub fn longest_word(&self) -> usize {
        self.options.get("max_input_chars_per_word").and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// Tells if the vocabulary has a token.
    pub fn contains(&self, token: &str) -> bool {
        match &self.vocab {
            None => false,
            Some(Vocab::Ids(ids)) => ids.contains_key(&Text(token.into())),
            Some(Vocab::Scores(pieces)) => pieces.iter().any(|(piece, _)| piece.0 == token),
        }
    }

    /// That Unigram, which tokenizes a text whole or not at all, has a token for a letter that it does not know.
    fn check_unknown(&self) -> Result<(), &'static str> {
        let option = |name| self.options.get(name).unwrap_or(&Value::Null);
        // The oldest files do not say which model theirs is.
        let unigram =
            matches!(self.vocab, Some(Vocab::Scores(_))) && [&Value::Null, &json!("Unigram")].contains(&option("type"));
        let knows = !option("unk_id").is_null() || *option("byte_fallback") == json!(true);
        match unigram && !knows {
            true => Err("the model has no unk_id and no byte_fallback, for letters that it has no token for"),
            false => Ok(()),
        }
    }

    /// The model as a file would have it, without its tokens.
    pub fn without_tokens(&self) -> Value {
        let mut model = self.options.clone();
        let vocab = match &self.vocab {
            None => None,
            Some(Vocab::Ids(_)) => Some(json!({})),
            // A trie has the unknown token at least.
            Some(Vocab::Scores(pieces)) => {
                let known = |id: &u64| *id < pieces.len() as u64;
                if let Some(unknown) = model.get_mut("unk_id").filter(|id| id.as_u64().as_ref().is_some_and(known)) {
                    *unknown = 0.into();
                }
                Some(pieces.iter().take(1).map(|(_, score)| json!(["", score])).collect())
            }
        };
        model.extend(vocab.map(|vocab| ("vocab".to_owned(), vocab)));
        model.extend(self.merges.iter().map(|_| ("merges".to_owned(), json!([]))));
        model.into()
    }

    /// The model, with the options of one without tokens.
    pub fn build(self, options: &ModelWrapper) -> tokenizers::Result<ModelWrapper> {
        fn owned(ids: HashMap<Text<'_>, u32>) -> bpe::Vocab {
            ids.into_iter().map(|(token, id)| (token.0.into_owned(), id)).collect()
        }
        match (options, self.vocab) {
            (ModelWrapper::BPE(options), Some(Vocab::Ids(ids))) => {
                let Merges(merges) = self.merges.unwrap_or_default();
                check_merges(&merges, &ids, options.continuing_subword_prefix.as_deref().unwrap_or_default())?;
                let merges = merges.into_iter().map(|(first, second)| (first.0.into_owned(), second.0.into_owned()));
                let mut builder = BPE::builder()
                    .vocab_and_merges(owned(ids), merges.collect())
                    .fuse_unk(options.fuse_unk)
                    .byte_fallback(options.byte_fallback)
                    .ignore_merges(options.ignore_merges);
                if let Some(dropout) = options.dropout {
                    builder = builder.dropout(dropout);
                }
                if let Some(unknown) = &options.unk_token {
                    builder = builder.unk_token(unknown.clone());
                }
                if let Some(prefix) = &options.continuing_subword_prefix {
                    builder = builder.continuing_subword_prefix(prefix.clone());
                }
                if let Some(suffix) = &options.end_of_word_suffix {
                    builder = builder.end_of_word_suffix(suffix.clone());
                }
                Ok(builder.build()?.into())
            }
            (ModelWrapper::WordPiece(options), Some(Vocab::Ids(ids))) => {
                let unknown = &options.unk_token;
                if !ids.contains_key(&Text(unknown.into())) {
                    return Err(format!("its unk_token {} is not in its vocabulary", brief(&json!(unknown))).into());
                }
                let model = WordPiece::builder()
                    .vocab(owned(ids))
                    .unk_token(unknown.clone())
                    .continuing_subword_prefix(options.continuing_subword_prefix.clone())
                    .max_input_chars_per_word(options.max_input_chars_per_word)
                    .build()?;
                Ok(model.into())
            }
            (ModelWrapper::WordLevel(options), Some(Vocab::Ids(ids))) => {
                Ok(WordLevel::builder().vocab(owned(ids)).unk_token(options.unk_token.clone()).build()?.into())
            }
            (ModelWrapper::Unigram(options), Some(Vocab::Scores(pieces))) => {
                let unknown = self.options.get("unk_id").and_then(Value::as_u64).map(|id| id as usize);
                let pieces = pieces.into_iter().map(|(piece, score)| (piece.0.into_owned(), score));
                Ok(Unigram::from(pieces.collect(), unknown, options.byte_fallback())?.into())
            }
            _ => Err("its vocabulary is of another model".into()),
        }
    }
}

/// That what is merged, and what comes of it, is in the vocabulary.
fn check_merges(merges: &[(Text<'_>, Text<'_>)], ids: &HashMap<Text<'_>, u32>, prefix: &str) -> Result<(), String> {
    let mut merged = String::new();
    for (first, second) in merges {
        let [first, second] = [first, second].map(|half| &*half.0);
        merged.clear();
        merged.push_str(first);
        merged.push_str(second.get(prefix.len()..).ok_or_else(|| {
            format!("what follows in a merge, {}, is shorter than what is put before it", brief(&json!(second)))
        })?);
        if let Some(token) =
            [first, second, &merged].into_iter().find(|token| !ids.contains_key(&Text((*token).into())))
        {
            return Err(format!("its merges need the token {}, which is not in its vocabulary", brief(&json!(token))));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Model<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Model<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Model<'de>, A::Error> {
                let twice = |key: &str| Err(A::Error::custom(format!("the model has two {key}")));
                let (part, mut model) = (Part::default(), Model { options: Map::new(), vocab: None, merges: None });
                while let Some(key) = map.next_key::<String>()? {
                    match &*key {
                        "vocab" if model.vocab.is_some() => return twice(&key),
                        "merges" if model.merges.is_some() => return twice(&key),
                        "vocab" => model.vocab = map.next_value()?,
                        "merges" => model.merges = map.next_value()?,
                        _ => {
                            let value = map.next_value_seed(part.seed(false))?;
                            check_option(&key, &value).map_err(Error::custom)?;
                            part::insert(&mut model.options, key, value)?;
                        }
                    }
                }
                model.check_unknown().map_err(Error::custom)?;
                Ok(model)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn check_option(name: &str, value: &Value) -> Result<(), String> {
    match name {
        "continuing_subword_prefix" if value.as_str().is_some_and(|prefix| prefix.len() > MAX_PREFIX_BYTES) => {
            Err(format!("{name} has more than {MAX_PREFIX_BYTES} bytes"))
        }
        "max_input_chars_per_word" if value.as_u64().is_none_or(|chars| chars > MAX_WORD_CHARS as u64) => {
            Err(format!("{name} is {}, expected up to {MAX_WORD_CHARS}", brief(value)))
        }
        _ => Ok(()),
    }
}

/// A vocabulary.
enum Vocab<'de> {
    /// `{"a": 0}`.
    Ids(HashMap<Text<'de>, u32>),
    /// `[["a", -1.5]]`: the pieces of Unigram, which holds them in a trie.
    Scores(Vec<(Text<'de>, f64)>),
}

impl<'de> Deserialize<'de> for Vocab<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab<'de>, A::Error> {
                let (mut ids, mut count) = (HashMap::new(), 0);
                while let Some((token, id)) = map.next_entry::<Text<'de>, u32>()? {
                    count_entry(&mut count, MAX_ENTRIES)?;
                    check_length(&token, MAX_TOKEN_BYTES)?;
                    ids.insert(token, id);
                }
                Ok(Vocab::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab<'de>, A::Error> {
                let (mut pieces, mut count, mut bytes) = (Vec::new(), 0, 0);
                while let Some((piece, score)) = list.next_element::<(Text<'de>, f64)>()? {
                    count_entry(&mut count, MAX_PIECES)?;
                    check_length(&piece, MAX_PIECE_BYTES)?;
                    bytes += piece.0.len();
                    if bytes > MAX_PIECES_BYTES {
                        return Err(Error::custom(format!("more than {MAX_PIECES_BYTES} bytes of tokens")));
                    }
                    pieces.push((piece, score));
                }
                let states = states(pieces.iter().map(|(piece, _)| &*piece.0));
                if states > MAX_PIECE_STATES {
                    return Err(Error::custom(format!("the vocab needs {states} states to be found")));
                }
                Ok(Vocab::Scores(pieces))
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

/// Merges, the most frequent first: `["a b"]` or `[["a", "b"]]`.
#[derive(Default)]
struct Merges<'de>(Vec<(Text<'de>, Text<'de>)>);

impl<'de> Deserialize<'de> for Merges<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Merges<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges<'de>, A::Error> {
                let (mut merges, mut count, mut lines) = (Vec::new(), 0, None);
                while let Some(Merge { halves, line }) = list.next_element()? {
                    count_entry(&mut count, MAX_ENTRIES)?;
                    if *lines.get_or_insert(line) != line {
                        return Err(Error::custom("merges are all texts, or all pairs of texts"));
                    }
                    merges.extend(halves);
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(Pairs)
    }
}

/// A merge.
struct Merge<'de> {
    /// None in the first line of a list, `#version: 0.2`.
    halves: Option<(Text<'de>, Text<'de>)>,
    /// Whether it is one text with a blank.
    line: bool,
}

impl<'de> Merge<'de> {
    /// The halves of a line, which `half` takes out of it.
    fn of_line<E: Error>(line: &str, half: impl Fn(Range<usize>) -> Cow<'de, str>) -> Result<Self, E> {
        if line.starts_with("#version") {
            return Ok(Self { halves: None, line: true });
        }
        match line.find(' ') {
            Some(blank) if !line[blank + 1..].contains(' ') => {
                Self::of([0..blank, blank + 1..line.len()].map(|range| Text(half(range))), true)
            }
            _ => Err(E::custom(format!("not the halves of a merge: {}", brief(&json!(line))))),
        }
    }

    fn of<E: Error>([first, second]: [Text<'de>; 2], line: bool) -> Result<Self, E> {
        check_length(&first, MAX_TOKEN_BYTES)?;
        check_length(&second, MAX_TOKEN_BYTES)?;
        Ok(Self { halves: Some((first, second)), line })
    }
}

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Halves;
        impl<'de> Visitor<'de> for Halves {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge, as one text or two")
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Merge<'de>, E> {
                Merge::of_line(line, |half| line[half].into())
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Merge<'de>, E> {
                Merge::of_line(line, |half| line[half].to_owned().into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge<'de>, A::Error> {
                match (pair.next_element()?, pair.next_element()?, pair.next_element::<IgnoredAny>()?) {
                    (Some(first), Some(second), None) => Merge::of([first, second], false),
                    _ => Err(Error::custom("a merge does not have two halves")),
                }
            }
        }
        deserializer.deserialize_any(Halves)
    }
}

fn count_entry<E: Error>(count: &mut usize, most: usize) -> Result<(), E> {
    *count += 1;
    match *count > most {
        true => Err(E::custom(format!("more than {most} tokens or merges"))),
        false => Ok(()),
    }
}

fn check_length<E: Error>(token: &Text<'_>, most: usize) -> Result<(), E> {
    match token.0.len() {
        bytes if bytes > most => Err(E::custom(format!("a token of {bytes} bytes"))),
        _ => Ok(()),
    }
}
