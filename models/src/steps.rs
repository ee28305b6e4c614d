//! Steps of a decoder with a head: prompts in chunks, a token of each of several sequences, or what was put together;
//! and what is wanted of their logits.

mod draw;
pub(crate) mod logits;
pub(crate) mod runner;

use std::ops::{ControlFlow, Range};

use sinew_ops::Context;

use self::logits::Logits;
use self::runner::{Runner, shrink};
use crate::cache::Sequence;
use crate::decoder::batch::Wanted;
use crate::sampling::Asked;
use crate::{DecoderConfig, Error, Result, Tokenizer};

/// A decoder on its cache, and the logits of its steps.
#[derive(Debug)]
pub(crate) struct Steps {
    pub runner: Runner,
    pub logits: Logits,
    prefill_chunk: usize,
}

impl Steps {
    /// Steps of so many tokens of a prompt at most.
    pub fn new(runner: Runner, logits: Logits, prefill_chunk: usize) -> Self {
        Self { runner, logits, prefill_chunk }
    }

    /// Takes what is wanted of the logits of some rows that the last step was asked for.
    fn take<T>(&mut self, rows: Range<usize>, take: impl FnOnce(&mut Logits, &Context) -> Result<T>) -> Result<T> {
        self.runner.head(rows, &mut self.logits)?;
        take(&mut self.logits, self.runner.staging.context())
    }

    /// Appends `tokens` to a sequence, in chunks, between two of which `go_on` says whether to go on, and takes what is
    /// wanted of the last one's logits; nothing where it is not to go on.
    ///
    /// # Errors
    /// Tokens that the sequence cannot go on with, a full cache, or a failed device, which it may report only in `take`.
    /// The sequence is as long as before, or empty where a window has left behind by then what it saw.
    pub fn prefill<T>(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        take: impl FnOnce(&mut Logits, &Context) -> Result<T>,
    ) -> Result<Option<T>> {
        self.runner.check(sequence.len(), tokens)?;
        let before = sequence.len();
        let outcome = self.prefill_chunks(sequence, tokens, go_on).and_then(|end| match end {
            ControlFlow::Continue(()) => self.take(0..1, take).map(Some),
            ControlFlow::Break(()) => Ok(None),
        });
        match outcome {
            Ok(_) => sequence.leave_room()?,
            Err(_) => sequence.shorten(before),
        }
        outcome
    }

    fn prefill_chunks(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let chunk = self.prefill_chunk;
        // The last chunk is not empty: there is a token.
        let (first, last) = tokens.split_at((tokens.len() - 1) / chunk * chunk);
        for part in first.chunks(chunk) {
            self.runner.forward(std::slice::from_mut(sequence), part, Wanted::None)?;
            if go_on().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.runner.forward(std::slice::from_mut(sequence), last, Wanted::Last)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Appends one token to each of several sequences, and takes what is wanted of their logits.
    ///
    /// # Errors
    /// A full cache, or a failed device, which it may report only in `take`. Every sequence is as long as before.
    pub fn decode<T>(
        &mut self,
        sequences: &mut [Sequence],
        tokens: &[u32],
        take: impl FnOnce(&mut Logits, &Context) -> Result<T>,
    ) -> Result<T> {
        self.runner.forward(sequences, tokens, Wanted::Last)?;
        let outcome = self.take(0..sequences.len(), take);
        if outcome.is_err() {
            shrink(sequences, 1)?;
        }
        outcome
    }

    /// Runs the step that is put together, and has tokens drawn from the first rows that it was asked for, as
    /// [`Logits::draw`] says.
    ///
    /// # Errors
    /// A failed device: the step's sequences have tokens then that the cache does not, and are to be truncated.
    pub fn run(&mut self, rows: usize, ask: impl FnOnce(&mut [Option<Asked>]) -> bool) -> Result<()> {
        self.runner.run()?;
        self.take(0..rows, |logits, ctx| logits.draw(ctx, rows, ask))
    }

    /// The logits of every token of a sequence, given to `each` as many rows at a time as there is room for.
    ///
    /// # Errors
    /// Those of [`prefill`](Self::prefill), and what `each` returns.
    pub fn every(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.runner.check(0, tokens)?;
        let mut sequence = self.runner.sequence();
        let most = self.runner.decoder().limits().max_wanted();
        for chunk in tokens.chunks(self.prefill_chunk) {
            self.runner.forward(std::slice::from_mut(&mut sequence), chunk, Wanted::All)?;
            for start in (0..chunk.len()).step_by(most) {
                let rows = start..(start + most).min(chunk.len());
                let count = rows.len();
                self.take(rows, |logits, ctx| {
                    logits.fetch(ctx, count)?;
                    each(logits.rows(count))
                })?;
            }
        }
        Ok(())
    }
}

/// Refuses an empty prompt, and one of more tokens than the context.
pub(crate) fn check_length(tokens: usize, context: usize) -> Result<()> {
    match tokens {
        0 => Err(Error::Input("the prompt has no token".to_owned())),
        _ if tokens > context => Err(Error::TooLong { context }),
        _ => Ok(()),
    }
}

impl Tokenizer {
    /// The tokens of a prompt that must fit `context` tokens. A longer text is read only until it is known not to fit.
    ///
    /// # Errors
    ///
    /// Fails where [`encode`](Self::encode) does, and with [`Error::TooLong`].
    pub fn encode_prompt(&self, text: &str, add_special: bool, context: usize) -> Result<Vec<u32>> {
        self.encode_fitting(text, add_special, context)?.ok_or(Error::TooLong { context })
    }
}

impl DecoderConfig {
    /// The context for a prompt and its answer: their length, at most the number of the model's positions.
    ///
    /// # Errors
    ///
    /// Refuses an empty prompt, and one with more tokens than the model has positions.
    pub fn context_for(&self, prompt_tokens: usize, new_tokens: usize) -> Result<usize> {
        let longest = self.longest_context();
        check_length(prompt_tokens, longest)?;
        Ok(prompt_tokens.saturating_add(new_tokens).min(longest))
    }
}
