//! What can go wrong between a folder on disk and the next token.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate.
///
/// Each prints as one line that names the file, tensor or field. The cause is in
/// [`source`](StdError::source) and not repeated in the text; [`Error::one_line`] joins them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to do something with a file.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried, as it reads after "cannot".
        what: String,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// Memory or a mapped file.
    #[error(transparent)]
    Memory(#[from] sinew_memory::Error),

    /// A file that should be JSON is not.
    #[error("{file} is not valid JSON")]
    Json {
        /// The file's name or path.
        file: String,
        /// Where and why.
        source: serde_json::Error,
    },

    /// A field is missing, has the wrong type, or a value that no model can have.
    #[error("{file}: {problem}")]
    Config {
        /// The file's name or path.
        file: String,
        /// Which field, what it holds, and what was expected.
        problem: String,
    },

    /// The model is well formed, and asks for something that is not implemented.
    #[error("{what} is not supported; supported: {supported}")]
    Unsupported {
        /// What was asked for, with the field that asked.
        what: String,
        /// What would work.
        supported: String,
    },

    /// The header of a safetensors file is damaged.
    #[error("{file} has no valid safetensors header")]
    Header {
        /// The file's name or path.
        file: String,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// The files of a checkpoint are incomplete, or contradict each other.
    #[error("{file}: {problem}")]
    Checkpoint {
        /// The file's name or path.
        file: String,
        /// What is wrong with it.
        problem: String,
    },

    /// The checkpoint has no tensor of this name.
    #[error("no tensor `{name}` in {file}{}", nearest_names(nearest))]
    MissingTensor {
        /// The name that was asked for.
        name: String,
        /// The checkpoint.
        file: String,
        /// The most similar names that it does have, best first.
        nearest: Vec<String>,
    },

    /// The tokenizer cannot be read, or refused its input.
    #[error("{what}")]
    Tokenizer {
        /// What was tried.
        what: String,
        /// What the `tokenizers` crate said.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// A chat template that cannot be rendered, or that refuses the conversation.
    #[error("{file}: {problem}")]
    Template {
        /// The file that it came from.
        file: String,
        /// What is wrong, and in which line.
        problem: String,
    },

    /// A sampling parameter is out of range.
    #[error("sampling parameter {field} is {found}, expected {expected}")]
    Sampling {
        /// The field of `SamplingParams`.
        field: &'static str,
        /// Its value.
        found: String,
        /// The values that are allowed.
        expected: &'static str,
    },

    /// An operator, or the lack of a kernel for one.
    #[error(transparent)]
    Ops(#[from] sinew_ops::Error),

    /// Texts, tokens or options that the model cannot take.
    #[error("{0}")]
    Input(String),

    /// More tokens than a sequence can have.
    #[error("the prompt has more than the {context} tokens of the context")]
    TooLong {
        /// How many it can have.
        context: usize,
    },

    /// A prompt that leaves no room for an answer within `max_length`.
    #[error(
        "generation_config.json: `max_length` is {max_length} tokens of prompt and answer together, and the prompt has \
         {prompt_tokens}; say how many new tokens to generate instead (--max-new-tokens, `max_new_tokens`)"
    )]
    MaxLength {
        /// The most tokens of prompt and answer together.
        max_length: usize,
        /// The tokens of the prompt.
        prompt_tokens: usize,
    },

    /// An engine has more requests than it lets wait.
    #[error("{waiting} requests wait already; try again when some are answered")]
    Busy {
        /// How many; what has ended and is not yet told of is among them.
        waiting: usize,
    },

    /// What ended answers of an engine that were asked for as they should be: a step that failed, a cache without room, an
    /// engine that is no longer there.
    #[error("{0}")]
    Engine(String),

    /// A callback asked to end.
    #[error("cancelled")]
    Cancelled,

    /// A model that is neither here nor to be had from the hub.
    #[error("{0}")]
    Hub(String),

    /// No token can be chosen from these logits.
    #[error("cannot sample from the logits: {0}")]
    Logits(String),
}

impl Error {
    /// This error as [`one_line`] has it.
    ///
    /// ```
    /// let error = sinew_models::ModelConfig::from_json("{").unwrap_err();
    /// assert!(error.one_line().starts_with("config.json is not valid JSON: EOF while parsing"));
    /// ```
    pub fn one_line(&self) -> String {
        one_line(self)
    }

    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        Error::Io { what: what.to_owned(), path: path.to_owned(), source }
    }
}

impl From<sinew_tensor::Error> for Error {
    fn from(error: sinew_tensor::Error) -> Self {
        Self::Ops(error.into())
    }
}

/// An error and its causes in one line, each once, outermost first, with `: ` between them; [`shortened`].
///
/// ```
/// let error = std::io::Error::other("a name\nwith a break");
/// assert_eq!(sinew_models::one_line(&error), "a name with a break");
/// let error = std::io::Error::other(format!("begin {} end", "x".repeat(1 << 20)));
/// assert!(sinew_models::one_line(&error).len() < 1000);
/// ```
pub fn one_line(error: &dyn StdError) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    shortened(&line)
}

/// A text of one line as [`printable`] has it, without its middle where it is too long to be read, as a name in a
/// hostile file may be.
///
/// ```
/// assert_eq!(sinew_models::shortened("a\nname"), "a name");
/// assert!(sinew_models::shortened(&"x".repeat(1 << 20)).len() < 1000);
/// ```
pub fn shortened(text: &str) -> String {
    /// Of the beginning, which names the file, and of the end, which has the cause.
    const MAX_CHARS: usize = 400;
    let cut = |end: Option<(usize, char)>| end.map(|(at, _)| at);
    let (head, tail) = (cut(text.char_indices().nth(MAX_CHARS)), cut(text.char_indices().nth_back(MAX_CHARS - 1)));
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => printable(&format!("{} … {}", &text[..head], &text[tail..])),
        _ => printable(text),
    }
}

/// A text that a terminal may get: line breaks are blanks, and other control characters, which names in files may have,
/// are escaped.
///
/// ```
/// assert_eq!(sinew_models::printable("red: \u{1b}[31m"), r"red: \u{1b}[31m");
/// ```
pub fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// Returns a text, or its first `most` characters and `…` if it has more.
pub(crate) fn cut_to(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Names for a message: the first few of them.
pub(crate) fn first_names<T: AsRef<str>>(names: &[T]) -> String {
    const NAMED: usize = 3;
    let first: Vec<&str> = names.iter().take(NAMED).map(AsRef::as_ref).collect();
    format!("{}{}", first.join(", "), if names.len() > NAMED { ", …" } else { "" })
}

/// So many of what is called `one` where there is one.
pub(crate) fn count_of(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

fn nearest_names(nearest: &[String]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    format!("; nearest: {}", nearest.join(", "))
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
