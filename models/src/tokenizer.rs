//! Text to token ids and back, and what a folder says about the texts that its model takes.
//!
//! The `tokenizers` crate does the work. Some `tokenizer.json` files have truncation and padding switched on: as in
//! transformers, the caller decides about lengths, and of these the file says only which end of a text is cut.

mod class;
mod config;
mod file;

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{Encoding, PostProcessor, Tokenizer as Inner, TruncationDirection};

use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::json::{Fields, as_count, as_number, brief};
use config::Declared;
pub(crate) use config::template_tokens;
use file::TokenizerFile;

/// Tokens that a cut may change besides those of an added token or a word that it goes through: the last of what a model
/// merges without regard to words.
const UNSETTLED: usize = 128;

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
    /// Tokens at the end of a part of a text that may be others in the whole text.
    unsettled: usize,
    /// How many times as long a text may become before it is tokenized.
    growth: usize,
    /// Whether texts that are too long lose their beginning.
    cuts_begin: bool,
}

impl Tokenizer {
    pub(crate) fn read(documents: &Documents) -> Result<Option<Self>> {
        let Some(text) = documents.text_if_present(FileName::Tokenizer)? else { return Ok(None) };
        // The configs are small, so that an error in one of them is found first.
        let declared = Declared::read(documents)?;
        let file = documents.path_of(FileName::Tokenizer)?.display().to_string();
        Self::parse(text.as_bytes(), &file, &declared).map(Some)
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when it is no tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes, FileName::Tokenizer.as_str(), &Declared::default())
    }

    fn parse(bytes: &[u8], file: &str, declared: &Declared) -> Result<Self> {
        let invalid = || format!("{file} is not a valid tokenizer");
        let walked = TokenizerFile::read(bytes, declared);
        let walked = walked.map_err(|source| Error::Tokenizer { what: invalid(), source: source.into() })?;
        let reach = walked.reach;
        let mut inner = guarded(invalid, || walked.build(declared))?;
        let cuts_begin = declared.cuts_begin.unwrap_or_else(|| {
            inner.get_truncation().is_some_and(|truncation| truncation.direction == TruncationDirection::Left)
        });
        inner.with_padding(None);
        guarded(|| format!("cannot turn off the truncation in {file}"), || inner.with_truncation(None).map(|_| ()))?;
        Ok(Self { inner, unsettled: UNSETTLED + reach.falls_into, growth: reach.growth, cuts_begin })
    }

    /// The tokenizer of texts in lower case. Added tokens that stand in a text as they are stay what they are.
    ///
    /// A step before all others turns each character alone, like in sentence-transformers: `Σ` becomes `σ` at the end of
    /// a word, too.
    pub(crate) fn in_lower_case(&self) -> Self {
        let mut lower = self.clone();
        let mut steps = match self.inner.get_normalizer() {
            None => Vec::new(),
            Some(NormalizerWrapper::Sequence(steps)) => steps.as_ref().to_vec(),
            Some(step) => vec![step.clone()],
        };
        if !steps.iter().any(|step| matches!(step, NormalizerWrapper::Lowercase(_))) {
            steps.insert(0, Lowercase.into());
            lower.inner.with_normalizer(Some(Sequence::new(steps)));
        }
        lower
    }

    /// The tokens of `text`, with the special ones that the model expects around a text (`[CLS]`, `<s>`) if
    /// `add_special` is set. Special tokens that are spelled out in the text are recognised either way, unless
    /// `tokenizer_config.json` has `split_special_tokens`.
    ///
    /// # Errors
    ///
    /// [`Error::Tokenizer`] when the tokenizer refuses the text, such as for a word that it has no token for.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.ids(self.encoding(text)?, add_special)
    }

    /// As [`encode`](Self::encode) with special tokens, leaving out the end of the text where all would be more than
    /// `max_tokens`; or its beginning, where `truncation_side` in `tokenizer_config.json` is `left`, or, without it, the
    /// direction of `truncation` in `tokenizer.json` is `Left`. The special tokens
    /// stay: `[CLS] a b c d [SEP]` becomes `[CLS] a b [SEP]`. No more of a long text is tokenized than these tokens take.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode), and [`Error::Input`] when not even the special tokens fit.
    pub fn encode_within(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>> {
        let special = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        let Some(room) = max_tokens.checked_sub(special) else {
            return Err(Error::Input(format!(
                "a limit of {max_tokens} tokens leaves no room beside {special} special tokens"
            )));
        };
        let (mut bare, side) = match self.cuts_begin {
            false => (self.beginning(text, room, settled)?, TruncationDirection::Right),
            true => (self.encoding(text)?, TruncationDirection::Left),
        };
        bare.truncate(room, 0, side);
        self.ids(bare, true)
    }

    /// As [`encode`](Self::encode), where these are no more than `max_tokens`; `None` where they are more, which takes
    /// no more of a long text to find out than `max_tokens` take: a text is taken to have no fewer tokens than a beginning
    /// of it has, but for the last.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn encode_fitting(&self, text: &str, add_special: bool, max_tokens: usize) -> Result<Option<Vec<u32>>> {
        let bare = self.beginning(text, max_tokens, Encoding::len)?;
        if bare.len() > max_tokens {
            return Ok(None);
        }
        let ids = self.ids(bare, add_special)?;
        Ok((ids.len() <= max_tokens).then_some(ids))
    }

    /// The tokens of `text`, or of a beginning of it that has more than `max_tokens` of those that `counted` counts.
    ///
    /// How much text a token covers is not known: a word that is not in the vocabulary is one token however long it is,
    /// and blanks may be none. So the beginning grows until it has enough of them, and some to spare: where it is cut, it
    /// may have tokens that the text has not.
    fn beginning(&self, text: &str, max_tokens: usize, counted: fn(&Encoding) -> usize) -> Result<Encoding> {
        /// Most texts have fewer bytes in a token.
        const TOKEN_BYTES: usize = 8;
        let enough = max_tokens.saturating_add(self.unsettled);
        let mut bytes = enough.saturating_mul(TOKEN_BYTES);
        while bytes < text.len() {
            let start = cut(text, bytes);
            self.check_growth(start)?;
            // What is refused may be a word that was cut, and the whole text fine. Only this slower way numbers words.
            let encoding = guarded(|| "cannot tokenize a beginning".to_owned(), || self.inner.encode(start, false));
            if let Some(encoding) = encoding.ok().filter(|encoding| counted(encoding) > enough) {
                return Ok(encoding);
            }
            bytes = bytes.saturating_mul(4);
        }
        self.encoding(text)
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

    /// Without special tokens around the text.
    fn encoding(&self, text: &str) -> Result<Encoding> {
        self.check_growth(text)?;
        guarded(|| format!("cannot tokenize a text of {} bytes", text.len()), || self.inner.encode_fast(text, false))
    }

    /// Refuses what a normalizer of many replacements would make too long. Usual ones put three bytes for a blank.
    fn check_growth(&self, text: &str) -> Result<()> {
        const USUAL: usize = 4;
        const MAX_BYTES: usize = 3 << 20;
        let bytes = text.len().saturating_mul(self.growth);
        if self.growth <= USUAL || bytes <= MAX_BYTES {
            return Ok(());
        }
        let what = format!("cannot tokenize a text of {} bytes", text.len());
        Err(Error::Tokenizer { what, source: format!("its tokenizer may make {bytes} of them").into() })
    }

    fn ids(&self, bare: Encoding, add_special: bool) -> Result<Vec<u32>> {
        let encoding = match self.inner.get_post_processor() {
            Some(processor) if add_special => {
                guarded(|| "cannot add the special tokens".to_owned(), || processor.process(bare, None, true))?
            }
            _ => bare,
        };
        Ok(encoding.get_ids().to_vec())
    }
}

/// The number of tokens before the last word: they do not depend on how that goes on, while a word's own tokens, the most
/// probable row of all, may change from its first.
fn settled(encoding: &Encoding) -> usize {
    let words = encoding.get_word_ids();
    words.iter().rposition(|word| word != words.last().unwrap_or(&None)).map_or(0, |last| last + 1)
}

/// A beginning of `text` of about `bytes` bytes, to the end of a word where there is one in its second half, else to a
/// blank.
fn cut(text: &str, bytes: usize) -> &str {
    let start = &text[..text.floor_char_boundary(bytes)];
    let words = start.rfind(char::is_whitespace).map_or("", |end| &start[..end]);
    [words.trim_end(), words].into_iter().find(|words| words.len() > bytes / 2).unwrap_or(start)
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
    pub(crate) fn read(documents: &Documents) -> Result<Self> {
        let file = FileName::TokenizerConfig;
        let tokenizer =
            documents.json_if_present(file)?.map(|value| Fields::of(value, file.as_str(), "")).transpose()?;
        Ok(Self {
            model_max_length: read_limit(tokenizer, "model_max_length")?,
            max_seq_length: read_limit(documents.sentence_config()?, "max_seq_length")?,
        })
    }

    /// The limit for a model with `max_position_embeddings`, as sentence-transformers takes it: `max_seq_length` if
    /// there is one, else `model_max_length`, and never more positions than the model has.
    pub fn limit(&self, max_position_embeddings: usize) -> usize {
        self.max_seq_length.or(self.model_max_length).unwrap_or(max_position_embeddings).min(max_position_embeddings)
    }
}

fn read_limit(fields: Option<Fields<'_>>, field: &str) -> Result<Option<usize>> {
    let Some(fields) = fields else { return Ok(None) };
    match fields.get(field) {
        None => Ok(None),
        Some(limit) => match as_number(limit) {
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
