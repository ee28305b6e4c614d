//! Text to token ids and back, and what a folder says about the texts that its model takes.
//!
//! The work is done by the `tokenizers` crate. What is added here: the truncation and padding that some
//! `tokenizer.json` files have switched on are left out, because the length of a text is the caller's business.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use serde_json::Value;
use tokenizers::{Encoding, PostProcessor, Tokenizer as Inner};

use crate::error::{Error, Result};
use crate::files::{Fields, as_count, brief};
use crate::folder::{FileName, Folder};

/// Longer limits mean none: tokenizers without a limit are saved with 1e30.
const MAX_LIMIT: usize = 1 << 31;

/// A tokenizer, from `tokenizer.json`.
///
/// ```
/// use sinew_models::Tokenizer;
///
/// let json = br#"{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
///     "pre_tokenizer": {"type": "Whitespace"}, "truncation": null, "padding": null,
///     "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "?": 2}, "unk_token": "?"}}"#;
/// let tokenizer = Tokenizer::from_bytes(json)?;
/// assert_eq!(tokenizer.encode("hello world", true)?, [0, 1]);
/// assert_eq!(tokenizer.decode(&[0, 1], true)?, "hello world");
/// assert!(tokenizer.contains(2) && !tokenizer.contains(3));
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
}

/// The ids of a text that may have been cut to fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The tokens, special ones included.
    pub ids: Vec<u32>,
    /// Whether the end of the text was left out.
    pub truncated: bool,
}

impl Tokenizer {
    pub(crate) fn read(folder: &Folder) -> Result<Option<Self>> {
        let Some(text) = folder.text_if_present(FileName::TOKENIZER)? else { return Ok(None) };
        Self::parse(text.as_bytes(), &folder.path_of(FileName::TOKENIZER).display().to_string()).map(Some)
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when it is no tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes, FileName::TOKENIZER.as_str())
    }

    fn parse(bytes: &[u8], file: &str) -> Result<Self> {
        check_charsmaps(bytes, file)?;
        let mut inner = guarded(|| format!("{file} is not a valid tokenizer"), || Inner::from_bytes(bytes))?;
        inner.with_padding(None);
        guarded(|| format!("cannot turn off the truncation in {file}"), || inner.with_truncation(None).map(|_| ()))?;
        Ok(Self { inner })
    }

    /// The tokens of `text`, with the special ones that the model expects around a text (`[CLS]`, `<s>`) if
    /// `add_special` is set. Special tokens that are spelled out in the text are recognised either way.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when the tokenizer refuses the text, such as for a word that it has no token for.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        Ok(self.encoding(text, add_special)?.get_ids().to_vec())
    }

    /// As [`encode`](Self::encode) with special tokens, leaving out the end of the text where all would be more than
    /// `max_tokens`. The special tokens stay: `[CLS] a b c d [SEP]` becomes `[CLS] a b [SEP]`.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode), and [`Error::Input`] when not even the special tokens fit.
    pub fn encode_within(&self, text: &str, max_tokens: usize) -> Result<Encoded> {
        let whole = self.encode(text, true)?;
        if whole.len() <= max_tokens {
            return Ok(Encoded { ids: whole, truncated: false });
        }
        let mut bare = self.encoding(text, false)?;
        let special = whole.len().saturating_sub(bare.len());
        let Some(room) = max_tokens.checked_sub(special) else {
            return Err(Error::Input(format!(
                "a limit of {max_tokens} tokens leaves no room beside {special} special tokens"
            )));
        };
        bare.truncate(room, 0, tokenizers::TruncationDirection::Right);
        let encoding = match self.inner.get_post_processor() {
            None => bare,
            Some(processor) => {
                guarded(|| "cannot add the special tokens".to_owned(), || processor.process(bare, None, true))?
            }
        };
        let ids = encoding.get_ids().to_vec();
        Ok(Encoded { ids, truncated: true })
    }

    /// The text of `ids`. Ids outside the vocabulary, and special tokens if `skip_special` is set, give nothing.
    /// Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guarded(|| format!("cannot decode {} tokens", ids.len()), || self.inner.decode(ids, skip_special))
    }

    /// Whether `id` is a token. Vocabularies may have gaps, and embeddings more rows than there are tokens.
    pub fn contains(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// Whether `id` is a special token, which `decode` can leave out.
    pub fn is_special(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id);
        token.is_some_and(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    /// The number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The id of the token that is spelled `token`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// How the token `id` is spelled in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn encoding(&self, text: &str, add_special: bool) -> Result<Encoding> {
        guarded(
            || format!("cannot tokenize a text of {} bytes", text.len()),
            || self.inner.encode_fast(text, add_special),
        )
    }
}

/// Refuses a `precompiled_charsmap` whose trie is said to be larger than the map itself: the `tokenizers` crate
/// allocates what it is told.
fn check_charsmaps(bytes: &[u8], file: &str) -> Result<()> {
    const NAME: &str = "precompiled_charsmap";
    let Some(text) = str::from_utf8(bytes).ok().filter(|text| text.contains(NAME)) else { return Ok(()) };
    // What is no JSON is for the parser to refuse.
    let Ok(root) = serde_json::from_str::<Value>(text) else { return Ok(()) };
    let mut rest = vec![&root];
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(values) => rest.extend(values),
            Value::Object(fields) => {
                rest.extend(fields.values());
                let Some(map) = fields.get(NAME).and_then(Value::as_str) else { continue };
                let map = base64::decode(map).unwrap_or_default();
                let fits = |&size: &[u8; 4]| u32::from_le_bytes(size) as usize <= map.len() - 4;
                if !map.first_chunk().is_some_and(fits) {
                    let problem = format!("{NAME} says more than its {} bytes hold", map.len());
                    return Err(Error::Config { file: file.to_owned(), problem });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

thread_local! {
    /// Whether panics of this thread are expected, and turned into errors.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a part of the `tokenizers` crate, which has `unwrap`s on what a `tokenizer.json` may contain. Their panics
/// become errors, and print nothing.
fn guarded<T>(what: impl Fn() -> String, run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let failed = |source| Error::Tokenizer { what: what(), source };
    match quietly(run) {
        Some(result) => result.map_err(failed),
        None => Err(failed("the tokenizers library panicked".into())),
    }
}

/// Runs what may panic over a file's contents; `None` where it does, with nothing printed.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                previous(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    // Nothing that was being changed is used after a panic: results are dropped, and the tokenizer's caches sit behind
    // locks that notice.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(outer);
    outcome.ok()
}

/// The longest texts that a model takes, in tokens with the special ones, where its folder says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextLimits {
    /// `model_max_length` in `tokenizer_config.json`.
    pub model_max_length: Option<usize>,
    /// `max_seq_length` in `sentence_bert_config.json`: what an embedding model was trained for, often less.
    pub max_seq_length: Option<usize>,
}

impl TextLimits {
    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        Ok(Self {
            model_max_length: read_limit(folder, FileName::TOKENIZER_CONFIG, "model_max_length")?,
            max_seq_length: read_limit(folder, FileName::SENTENCE_BERT_CONFIG, "max_seq_length")?,
        })
    }

    /// The limit for a model with `max_position_embeddings`, as sentence-transformers takes it: `max_seq_length` if
    /// there is one, else `model_max_length`, and never more positions than the model has.
    pub fn limit(&self, max_position_embeddings: usize) -> usize {
        self.max_seq_length.or(self.model_max_length).unwrap_or(max_position_embeddings).min(max_position_embeddings)
    }
}

fn read_limit(folder: &Folder, file: FileName, field: &str) -> Result<Option<usize>> {
    let Some(value) = folder.json_if_present(file)? else { return Ok(None) };
    let fields = Fields::of(&value, file.as_str(), "")?;
    match fields.get(field) {
        None => Ok(None),
        Some(limit) => match limit.as_f64() {
            Some(limit) if limit > MAX_LIMIT as f64 => Ok(None),
            _ => match as_count(limit).filter(|&limit| limit > 0) {
                Some(limit) => Ok(Some(limit)),
                None => Err(fields.problem(field, &format!("must be a positive integer, found {}", brief(limit)))),
            },
        },
    }
}

#[cfg(test)]
pub(crate) mod tests;
