//! What is asked of an engine, and what it tells.

use std::fmt;

use crate::answering::{Finish, GenerateOptions};
use crate::config::check_tokens;
use crate::error::count_of;
use crate::language::LanguageModel;
use crate::sampling::Logprobs;
use crate::steps::check_length;
use crate::{Error, Result};

/// The number of a request in its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// A prompt, and how it is to be answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its tokens.
    pub prompt: Vec<u32>,
    /// What to generate and when to stop.
    pub options: GenerateOptions,
    /// Answers to the same prompt, which is run once for all of them. That of number `i` draws with the seed `seed + i`.
    pub samples: usize,
    /// Those of a higher one are served first; 0 is usual.
    pub priority: i32,
    /// Requests of the same salt share what they begin with alike; those of another never do. A number that is given
    /// out, not a hash, where they must never meet.
    pub salt: u64,
    /// Whether tokens come with their text, where the model has a tokenizer.
    pub text: bool,
}

impl Request {
    /// One answer to `prompt` by the default options.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { prompt, options: GenerateOptions::default(), samples: 1, priority: 0, salt: 0, text: true }
    }
}

/// Something that happened to an answer.
#[derive(Debug)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// Which of its answers, from 0 on.
    pub sample: usize,
    /// What happened.
    pub what: Happening,
}

/// What can happen to an answer.
#[derive(Debug)]
pub enum Happening {
    /// It has one more token.
    Token {
        /// The token.
        token: u32,
        /// Text that can be shown now, in whole characters and often empty.
        text: String,
        /// How probable it was, where that was asked for.
        logprobs: Option<Logprobs>,
    },
    /// It is whole. Nothing more comes.
    Finished {
        /// Why.
        finish: Finish,
        /// Text that was held back.
        text: String,
    },
    /// It cannot be gone on with. Nothing more comes.
    Failed(Error),
}

impl Event {
    /// Whether nothing more comes of this answer.
    pub fn is_last(&self) -> bool {
        !matches!(self.what, Happening::Token { .. })
    }
}

/// What requests have to be for an engine to take them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checks {
    pub vocab_size: usize,
    pub context: usize,
    pub max_sequences: usize,
    pub cache_tokens: usize,
    pub has_tokenizer: bool,
}

impl Checks {
    /// Those of an engine with this model.
    pub fn of(model: &LanguageModel) -> Self {
        let decoder = model.decoder();
        Self {
            vocab_size: decoder.config().vocab_size,
            context: decoder.limits().context,
            max_sequences: decoder.limits().max_sequences,
            cache_tokens: model.cache().tokens(),
            has_tokenizer: model.has_tokenizer(),
        }
    }

    pub fn check(&self, request: &Request) -> Result<()> {
        let &Self { vocab_size, context, max_sequences, cache_tokens, has_tokenizer } = self;
        request.options.validate()?;
        check_length(request.prompt.len(), context)?;
        check_tokens(&request.prompt, vocab_size)?;
        request.options.clone().for_prompt(request.prompt.len())?;
        let finds_stops = has_tokenizer && request.text;
        if !request.options.stop.is_empty() && !finds_stops {
            return Err(Error::Input(
                "stop texts are found in text: the model has no tokenizer, or none is asked".into(),
            ));
        }
        if request.samples == 0 || request.samples > max_sequences {
            let (samples, most) = (request.samples, count_of(max_sequences, "sequence"));
            return Err(Error::Input(format!(
                "{samples} answers to a prompt; a step has at least 1 and at most {most}"
            )));
        }
        if request.prompt.len() > cache_tokens {
            let tokens = request.prompt.len();
            return Err(Error::Input(format!("a prompt of {tokens} tokens; the cache has room for {cache_tokens}")));
        }
        Ok(())
    }
}
