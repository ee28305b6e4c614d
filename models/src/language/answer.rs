//! Answers of a model: the sequence that is kept between them, and token after token until one is whole.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use sinew_ops::Context;

use super::LanguageModel;
use crate::answering::{Answering, Finish, GenerateOptions};
use crate::cache::Sequence;
use crate::error::Result;
use crate::sampling::{History, Logprobs};
use crate::steps::logits::Logits;

/// A sequence that is kept between answers, so that the next prompt is run only from where it differs.
///
/// It holds blocks of the cache: a model that was loaded for one sequence has none for others meanwhile.
#[derive(Debug)]
pub struct Session {
    sequence: Sequence,
    /// The tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
}

impl Session {
    /// The tokens that are in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets what differs from `prompt`, and returns the tokens that are left. The last of the prompt is always to be
    /// run: its logits are asked for.
    fn keep_prefix(&mut self, prompt: &[u32]) -> usize {
        let run = &prompt[..prompt.len().saturating_sub(1)];
        let common = self.tokens.iter().zip(run).take_while(|(a, b)| a == b).count();
        self.sequence.shorten(common);
        self.tokens.truncate(self.sequence.len());
        self.sequence.len()
    }

    /// After an answer, or the part of one: what the sequence has of `tokens`.
    fn has(&mut self, tokens: impl Iterator<Item = u32>) {
        self.tokens.clear();
        self.tokens.extend(tokens.take(self.sequence.len()));
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Its tokens, without the end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Its text; empty for a model without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were in the cache already.
    pub cached_tokens: usize,
    /// One for each token, where they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// Time for the prompt, first token included; zero for a prompt that was not run to its end.
    pub prefill: Duration,
    /// Time for the tokens after the first.
    pub decode: Duration,
}

impl LanguageModel {
    /// Generates an answer. `on_text` is called after every token with the text that can be shown, in whole characters
    /// and often empty, and may end the answer. It is called between the chunks of the prompt, too, with no text.
    ///
    /// # Errors
    /// The errors of [`LanguageModel::prefill`] and [`GenerateOptions::for_prompt`], or sampling parameters that make no sense.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        self.generate_in(&mut self.session(), prompt, options, on_text)
    }

    /// An empty session.
    pub fn session(&self) -> Session {
        Session { sequence: self.sequence(), tokens: Vec::new() }
    }

    /// [`LanguageModel::generate`] in a session: tokens at the beginning of the prompt that it has are not run again. The
    /// answer is that of [`LanguageModel::generate`], to the bit.
    ///
    /// # Errors
    /// Those of [`LanguageModel::generate`]. The session stays usable.
    pub fn generate_in(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let eos = &self.decoder().config().eos_token_ids;
        let options = &options.clone().for_prompt(prompt.len())?;
        let mut answering = Answering::new(self.tokenizer.clone(), eos, options)?;
        self.steps.runner.check(0, prompt)?;
        let room = options.max_new_tokens.min(self.decoder().limits().context.saturating_sub(prompt.len()) + 1);
        let mut answer = Generation {
            tokens: Vec::with_capacity(room),
            text: String::new(),
            finish: Finish::Length,
            prompt_tokens: prompt.len(),
            cached_tokens: session.keep_prefix(prompt),
            logprobs: Vec::new(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let outcome = self.answer(&mut session.sequence, prompt, options, &mut answering, &mut answer, on_text);
        session.has(prompt.iter().chain(&answer.tokens).copied());
        outcome.map(|()| answer)
    }

    /// Runs what `sequence` does not have of the prompt, and then token after token, into `answer`.
    fn answer(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        options: &GenerateOptions,
        answering: &mut Answering,
        answer: &mut Generation,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<()> {
        if options.max_new_tokens == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let history = History { prompt, generated: &[] };
        let choose_first = |logits: &mut Logits, ctx: &Context| choose(logits, ctx, answering, history);
        let rest = &prompt[answer.cached_tokens..];
        // Asked between chunks, while no text comes.
        let Some((mut token, mut chosen)) = self.steps.prefill(sequence, rest, &mut || on_text(""), choose_first)?
        else {
            answer.finish = Finish::Cancelled;
            return Ok(());
        };
        let first = Instant::now();
        loop {
            let last = sequence.len() >= self.decoder().limits().context;
            let piece = answering.take(token, answer.tokens.len() + 1, last)?;
            if piece.token {
                answer.tokens.push(token);
                answer.logprobs.extend(chosen);
            }
            answer.text.push_str(&piece.text);
            // Asked at every token, so that an answer can be ended while no text comes.
            if (piece.token || !piece.text.is_empty()) && on_text(&piece.text).is_break() {
                answer.finish = Finish::Cancelled;
                break;
            }
            if let Some(finish) = piece.finish {
                answer.finish = finish;
                break;
            }
            let history = History { prompt, generated: &answer.tokens };
            let choose_next = |logits: &mut Logits, ctx: &Context| choose(logits, ctx, answering, history);
            (token, chosen) = self.steps.decode(std::slice::from_mut(sequence), &[token], choose_next)?;
        }
        (answer.prefill, answer.decode) = (first - start, first.elapsed());
        Ok(())
    }
}

/// The next token by the first row of logits, chosen where they are if that can be, and its log probability if that is
/// wanted.
fn choose(
    logits: &mut Logits,
    ctx: &Context,
    answering: &mut Answering,
    history: History<'_>,
) -> Result<(u32, Option<Logprobs>)> {
    logits.draw(ctx, 1, |asked| {
        asked[0] = answering.ask(history.generated.len());
        answering.logprobs().is_some()
    })?;
    answering.choose(logits.drawn(0), logits.row(0), history)
}
