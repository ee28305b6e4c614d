//! A language model: a decoder, its cache and its tokenizer; loading, prefill, decode, and logits. Answers are made of
//! those.

mod answer;
mod options;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use sinew_ops::Context;

pub use self::answer::{Generation, Session};
pub use self::options::LoadOptions;
pub use crate::answering::{Finish, GenerateOptions};
use crate::batch::Wanted;
use crate::cache::{KvCache, Sequence};
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::limits::Plan;
use crate::load::{Loader, Sizes};
use crate::logits::Logits;
use crate::runner::{Runner, shrink};
use crate::sampling::{Asked, argmax};
use crate::tokenizer::Tokenizer;
use crate::{DecoderConfig, Error, Folder, ModelConfig, Planner, Result};

/// A decoder with its cache and, where there is one, its tokenizer.
///
/// `LanguageModel` is `Send` and not shared: one step runs at a time.
///
/// ```no_run
/// use std::sync::Arc;
/// use sinew_models::{Folder, LanguageModel, LoadOptions};
/// use sinew_ops::Context;
///
/// let folder = Folder::new("path/to/model");
/// let ctx = Arc::new(Context::cpu()?);
/// let mut model = LanguageModel::load_on(ctx, &folder, &LoadOptions::default(), &mut |_, _| {})?;
/// let prompt = model.encode("Once upon a time")?;
/// // As its makers want it, and at most 128 tokens where they say nothing of that.
/// let options = folder.generation_config()?.options(prompt.len(), 128);
/// let answer = model.generate(&prompt, &options, &mut |piece| {
///     print!("{piece}");
///     std::ops::ControlFlow::Continue(())
/// })?;
/// println!("\n{} tokens, {}", answer.tokens.len(), answer.finish);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct LanguageModel {
    pub(crate) runner: Runner,
    pub(crate) logits: Logits,
    tokenizer: Option<Arc<Tokenizer>>,
    prefill_chunk: usize,
    /// The tokens of a greedy step.
    next: Vec<u32>,
}

impl LanguageModel {
    /// Loads a folder with `config.json`, safetensors and, if it is there, `tokenizer.json`, for the CPU.
    ///
    /// # Errors
    /// Files that are missing or damaged, an architecture that is not a supported decoder, or out of memory.
    pub fn load(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        Self::load_on(Arc::new(Context::cpu()?), &Folder::new(folder.as_ref()), options, &mut |_, _| {})
    }

    /// [`LanguageModel::load`] on a context, with progress in bytes of the checkpoint.
    ///
    /// # Errors
    /// Those of [`LanguageModel::load`].
    pub fn load_on(
        ctx: Arc<Context>,
        folder: &Folder,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        let config = folder.config()?.as_decoder()?;
        let checkpoint = folder.checkpoint(options.weights.load)?;
        Self::build(ctx, config, &checkpoint, || folder.tokenizer(), options, progress)
    }

    /// A model from a config, a checkpoint and a tokenizer that are in memory.
    ///
    /// # Errors
    /// Those of [`LanguageModel::load`].
    pub fn from_parts(
        ctx: Arc<Context>,
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        tokenizer: Option<Arc<Tokenizer>>,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        Self::build(ctx, config, checkpoint, || Ok(tokenizer), options, progress)
    }

    /// What is wrong with the weights is known long before a vocabulary is read, so that comes after.
    fn build(
        ctx: Arc<Context>,
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        tokenizer: impl FnOnce() -> Result<Option<Arc<Tokenizer>>>,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        let precision = options.precision(checkpoint, &ctx)?;
        let limits = options.limits(config)?;
        let purpose = format!("{} sequences of {} tokens", limits.max_sequences, limits.context);
        let model = ModelConfig::Decoder(config.clone());
        Planner::of(&ctx, &model, checkpoint, false).refuse_beyond_memory(options, &purpose)?;
        let tokenizer = tokenizer()?;
        ctx.prefetch()?;
        let mut loader = Loader::new(ctx.clone(), checkpoint, precision, progress);
        let decoder = Decoder::load(&mut loader, config, limits)?;
        let mut cache = KvCache::new(&ctx, options.cache_shape(config, precision)?)?;
        if options.swap_tokens > 0 {
            cache = cache.with_host(options.swap_tokens)?;
        }
        let logits = Logits::new(&ctx, config.vocab_size, limits.max_wanted(), limits.max_sequences)?;
        let next = Vec::with_capacity(limits.max_wanted());
        let prefill_chunk = options.prefill_chunk.min(limits.context);
        Ok(Self { runner: Runner::new(ctx, decoder, cache), logits, tokenizer, prefill_chunk, next })
    }

    /// What a model would take on a context's device. The tensors are checked that loading would read, by what the headers say.
    ///
    /// # Errors
    /// Options that make no sense for the model, a checkpoint without floating-point tensors, or tensors that are missing
    /// or of another shape than the config says.
    pub fn plan(config: &DecoderConfig, checkpoint: &Checkpoint, options: &LoadOptions, ctx: &Context) -> Result<Plan> {
        let precision = options.precision(checkpoint, ctx)?;
        options.plan(config, &mut Sizes::new(ctx, checkpoint, precision))
    }

    /// The context that it runs on.
    pub fn context(&self) -> &Arc<Context> {
        self.runner.staging.context()
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        self.runner.decoder()
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.runner.staging.cache()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The model came without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer
            .as_deref()
            .ok_or_else(|| Error::Input("the model has no tokenizer.json; give token ids instead of text".to_owned()))
    }

    /// The tokens of a prompt, special ones as the tokenizer adds them.
    ///
    /// # Errors
    /// A model without a tokenizer, a text that the tokenizer refuses, or [`Error::TooLong`] for one that has more tokens
    /// than the context.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer()?.encode_prompt(text, true, self.runner.decoder().limits().context)
    }

    /// Turns queries and keys from here on as a model that was loaded for `context` tokens: where the rotary embedding
    /// depends on the length of sequences ([`DecoderConfig::rotates_alike`]), a prompt that was meant for a model of that
    /// context is answered as by one. The prompts in the cache are forgotten.
    ///
    /// # Errors
    /// A context of 0 or beyond the model's, sequences that hold tokens, which were turned otherwise, or out of memory.
    pub fn rotate_for(&mut self, context: usize) -> Result<()> {
        let most = self.runner.decoder().limits().context;
        if context == 0 || context > most {
            return Err(Error::Input(format!(
                "rotary frequencies of {context} tokens; the model was loaded for {most}"
            )));
        }
        self.runner.rotate_for(context)
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        self.runner.sequence()
    }

    /// Appends `tokens` to a sequence, in chunks, and returns the logits of the last, `[vocab]`.
    ///
    /// # Errors
    /// No token, a token out of the vocabulary, a sequence past the context, a full cache, or a failed device. The
    /// sequence is as long as before, or empty where a window has left behind by then what it saw.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        // Nobody asks for it to end, so that it ends with the logits.
        self.prefill_then(sequence, tokens, &mut || ControlFlow::Continue(()), |model| model.fetch(1))?;
        Ok(self.logits.rows(1))
    }

    /// [`LanguageModel::prefill`], which between two chunks asks whether to go on. Where it is not to, there are no
    /// logits, and the sequence has the tokens of the chunks that were run.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`].
    pub fn prefill_while(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>> {
        match self.prefill_then(sequence, tokens, go_on, |model| model.fetch(1))? {
            Some(()) => Ok(Some(self.logits.rows(1))),
            None => Ok(None),
        }
    }

    /// Prefills, and then takes what is wanted of the last token's logits; nothing where it is not to go on. After an
    /// error, which the device may report only in `take`, the sequence is as [`prefill`](Self::prefill) says.
    fn prefill_then<T>(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        take: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        self.runner.check(sequence.len(), tokens)?;
        let before = sequence.len();
        let outcome = self.prefill_chunks(sequence, tokens, go_on).and_then(|end| match end {
            ControlFlow::Continue(()) => take(self).map(Some),
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
        self.runner.head(0..1, &mut self.logits)?;
        Ok(ControlFlow::Continue(()))
    }

    /// One token for each of several sequences; the logits are `[sequences, vocab]`.
    ///
    /// # Errors
    /// A token out of the vocabulary, a sequence past the context, more sequences than the model was loaded for, a full
    /// cache, or a failed device. Every sequence is as long as before.
    pub fn decode(&mut self, sequences: &mut [Sequence], tokens: &[u32]) -> Result<&[f32]> {
        self.check_decode(sequences, tokens)?;
        let rows = sequences.len();
        self.decode_then(sequences, tokens, |model| model.fetch(rows))?;
        Ok(self.logits.rows(rows))
    }

    /// One token for each of several sequences, and the most probable next token of each, chosen where the logits are: from
    /// a GPU only tokens come to the host.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and logits of which none is the largest.
    pub fn decode_greedy(&mut self, sequences: &mut [Sequence], tokens: &[u32]) -> Result<&[u32]> {
        self.check_decode(sequences, tokens)?;
        let rows = sequences.len();
        self.decode_then(sequences, tokens, |model| {
            let Self { runner, logits, next, .. } = model;
            logits.draw(runner.staging.context(), rows, |asked| {
                asked.fill(Some(Asked::GREEDY));
                false
            })?;
            next.clear();
            for row in 0..rows {
                next.push(logits.drawn(row).map_or_else(|| argmax(logits.row(row)).map(|best| best.id), Ok)?);
            }
            Ok(())
        })?;
        Ok(&self.next)
    }

    fn check_decode(&self, sequences: &[Sequence], tokens: &[u32]) -> Result<()> {
        if sequences.len() != tokens.len() {
            return Err(Error::Input(format!("{} tokens for {} sequences", tokens.len(), sequences.len())));
        }
        let mut each = sequences.iter().zip(tokens);
        each.try_for_each(|(sequence, token)| self.runner.check(sequence.len(), std::slice::from_ref(token)))
    }

    /// One token for each of several sequences, and then what is wanted of the logits.
    fn decode_then<T>(
        &mut self,
        sequences: &mut [Sequence],
        tokens: &[u32],
        take: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.runner.forward(sequences, tokens, Wanted::Last)?;
        let outcome = self.runner.head(0..sequences.len(), &mut self.logits).and_then(|()| take(self));
        if outcome.is_err() {
            // The device may report only now what failed in the layers.
            shrink(sequences, 1)?;
        }
        outcome
    }

    /// The logits of every token, given to `each` in order as `[rows, vocab]`, at most
    /// [`max_logits`](LoadOptions::max_logits) rows at a time. Each chunk is one forward pass. What `each` returns as an
    /// error, [`Error::Cancelled`] to end early among others, ends it.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`], and what `each` returns.
    pub fn logits(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.runner.check(0, tokens)?;
        let mut sequence = self.sequence();
        let most = self.runner.decoder().limits().max_wanted();
        for chunk in tokens.chunks(self.prefill_chunk) {
            self.runner.forward(std::slice::from_mut(&mut sequence), chunk, Wanted::All)?;
            for start in (0..chunk.len()).step_by(most) {
                let rows = start..(start + most).min(chunk.len());
                self.runner.head(rows.clone(), &mut self.logits)?;
                self.fetch(rows.len())?;
                each(self.logits.rows(rows.len()))?;
            }
        }
        Ok(())
    }

    pub(crate) fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    /// Whether the model came with a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Brings the first rows of logits to the host.
    fn fetch(&mut self, rows: usize) -> Result<()> {
        self.logits.fetch(self.runner.staging.context(), rows)
    }
}
