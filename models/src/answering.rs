//! What is asked of an answer, and an answer as its tokens come: the text that they make, and where it ends.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::sampling::{Asked, History, Logprobs, Sampler, SamplingParams};
use crate::stop::{StopStrings, TextStream};
use crate::tokenizer::Tokenizer;

/// What to generate and when to stop.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// The most tokens of prompt and answer together, the `max_length` of `generation_config.json`. A prompt that is as
    /// long is refused. `None` leaves the bound to `max_new_tokens`.
    pub max_length: Option<usize>,
    /// No end-of-sequence token comes before so many others. A stop text may.
    pub min_new_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Texts that end the answer; they are not part of it. They are searched in the text with special tokens, which the
    /// answer leaves out: `<|im_end|>` may be one, and none is found across a token that is left out.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens, as benchmarks do.
    pub ignore_eos: bool,
    /// Report each token's log probability, and those of this many of the most probable. The logits of each step then
    /// come to the host, also from a device that draws itself.
    pub logprobs: Option<usize>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            max_length: None,
            min_new_tokens: 0,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token that completes no stop text.
    Eos,
    /// A stop text, which an end-of-sequence token may be or complete.
    Stop,
    /// As many tokens as were asked for, or the end of the context.
    Length,
    /// The callback asked to end.
    Cancelled,
}

impl std::fmt::Display for Finish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        })
    }
}

impl GenerateOptions {
    /// Refuses what no model can do.
    ///
    /// # Errors
    /// [`Error::Input`] for sampling parameters outside their ranges, and for an empty stop text.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        StopStrings::new(self.stop.iter().map(String::as_str)).map(drop)
    }

    /// These options for a prompt of `prompt_tokens`: `max_new_tokens` is at most what `max_length` leaves for the answer.
    ///
    /// ```
    /// use sinew_models::GenerateOptions;
    ///
    /// let options = GenerateOptions { max_length: Some(30), ..GenerateOptions::default() };
    /// assert_eq!(options.clone().for_prompt(10)?.max_new_tokens, 20);
    /// assert!(options.for_prompt(30).is_err());
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::MaxLength`] for a prompt of `max_length` tokens or more, which transformers refuses as well.
    pub fn for_prompt(self, prompt_tokens: usize) -> Result<Self> {
        let Some(max_length) = self.max_length else { return Ok(self) };
        match max_length.checked_sub(prompt_tokens) {
            None | Some(0) => Err(Error::MaxLength { max_length, prompt_tokens }),
            Some(left) => Ok(Self { max_new_tokens: self.max_new_tokens.min(left), ..self }),
        }
    }
}

/// What an answer needs beside the model: how its tokens are drawn, the text that they make, and when it is whole.
#[derive(Debug, Clone)]
pub(crate) struct Answering {
    sampler: Sampler,
    logprobs: Option<usize>,
    text: Option<TextStream<Arc<Tokenizer>>>,
    /// Tokens that end it.
    ends: Vec<u32>,
    /// The most tokens.
    most: usize,
}

/// What a token adds to an answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Whether the token is part of the answer; one that ends it is not.
    pub token: bool,
    /// Text that can be shown now.
    pub text: String,
    /// Why the answer is whole, if it is.
    pub finish: Option<Finish>,
}

impl Answering {
    /// The beginning of an answer that ends with one of the tokens `eos`, with text where there is a tokenizer.
    ///
    /// # Errors
    /// Options out of their ranges, or stop texts where there is no tokenizer to find them.
    pub(crate) fn new(tokenizer: Option<Arc<Tokenizer>>, eos: &[u32], options: &GenerateOptions) -> Result<Self> {
        let ends = if options.ignore_eos { Vec::new() } else { eos.to_vec() };
        let mut sampling = options.sampling.clone();
        if options.min_new_tokens > 0 {
            sampling.not_before.extend(ends.iter().map(|&id| (id, options.min_new_tokens)));
        }
        let stops = StopStrings::new(options.stop.iter().map(String::as_str))?;
        if tokenizer.is_none() && !options.stop.is_empty() {
            return Err(Error::Input("stop texts are found by a tokenizer, and the model has none".to_owned()));
        }
        Ok(Self {
            sampler: Sampler::new(sampling)?,
            logprobs: options.logprobs,
            text: tokenizer.map(|tokenizer| TextStream::new(tokenizer, true, stops)),
            ends,
            most: options.max_new_tokens,
        })
    }

    /// How many of the most probable tokens are reported with each, whose logits the host has to see for that.
    pub(crate) fn logprobs(&self) -> Option<usize> {
        self.logprobs
    }

    /// What is asked of a device that draws itself for the token after so many; nothing where the host has to see the
    /// logits.
    pub(crate) fn ask(&mut self, generated: usize) -> Option<Asked> {
        self.sampler.ask(generated)
    }

    /// The next token, the one that a device has drawn or else one of `logits`, and its log probability if that is wanted.
    ///
    /// # Errors
    /// Logits of which none is the largest.
    pub(crate) fn choose(
        &mut self,
        drawn: Option<u32>,
        logits: &[f32],
        history: History<'_>,
    ) -> Result<(u32, Option<Logprobs>)> {
        let token = match drawn {
            Some(token) => {
                self.sampler.took();
                token
            }
            None => self.sampler.sample(logits, history)?,
        };
        Ok((token, self.logprobs.map(|most| Logprobs::of(logits, token, most))))
    }

    /// Takes a token, which is the answer's of number `count`, from 1 on. `last` says that there is no room for another.
    ///
    /// # Errors
    /// A token that the tokenizer cannot decode.
    pub(crate) fn take(&mut self, token: u32, count: usize, last: bool) -> Result<Piece> {
        if self.ends.contains(&token) {
            let (text, stopped) = self.rest(Some(token))?;
            return Ok(Piece { token: false, text, finish: Some(if stopped { Finish::Stop } else { Finish::Eos }) });
        }
        let step = self.text.as_mut().map(|text| text.push(token)).transpose()?.unwrap_or_default();
        let mut piece = Piece { token: true, text: step.text, finish: None };
        if step.stopped_by.is_some() {
            piece.finish = Some(Finish::Stop);
        } else if last || count >= self.most {
            let (text, stopped) = self.rest(None)?;
            piece.text.push_str(&text);
            piece.finish = Some(if stopped { Finish::Stop } else { Finish::Length });
        }
        Ok(piece)
    }

    /// The text that was held back, and whether a stop text ends it, which the token `end` may complete.
    fn rest(&mut self, end: Option<u32>) -> Result<(String, bool)> {
        let Some(text) = &mut self.text else { return Ok((String::new(), false)) };
        let rest = match end {
            Some(end) => text.finish_with(end)?,
            None => text.finish()?,
        };
        Ok((rest.text, rest.stopped_by.is_some()))
    }
}
