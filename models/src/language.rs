//! A language model: a decoder, its cache and its tokenizer; loading, prefill, decode, and logits. Answers are made of
//! those.

mod answer;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use sinew_ops::Context;

pub use self::answer::{Generation, Session};
pub use crate::answering::{Finish, GenerateOptions};
use crate::cache::{KvCache, Sequence};
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::error::count_of;
use crate::load::{DeviceBytes, Loader, Sizes};
pub use crate::load_options::LoadOptions;
use crate::plan::{Footprint, Planner, Purpose};
use crate::precision::Precision;
use crate::sampling::{Asked, argmax};
use crate::steps::Steps;
use crate::steps::logits::Logits;
use crate::steps::runner::Runner;
use crate::tokenizer::Tokenizer;
use crate::{DecoderConfig, Error, Folder, Result};

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
    pub(crate) steps: Steps,
    tokenizer: Option<Arc<Tokenizer>>,
    /// The reason why there is none, where the model's folder is known.
    no_tokenizer: Option<String>,
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
        let model = Self::build(ctx, config, &checkpoint, || folder.tokenizer(), options, progress)?;
        let no_tokenizer = model.tokenizer.is_none().then(|| folder.no_tokenizer());
        Ok(Self { no_tokenizer, ..model })
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
        let (sequences, tokens) = (count_of(limits.max_sequences, "sequence"), count_of(limits.context, "token"));
        let Footprint { plan, kept, .. } = Planner::of(&ctx, Purpose::Generate(config), checkpoint)
            .refuse_beyond_memory(options, &format!("{sequences} of {tokens}"))?;
        let tokenizer = tokenizer()?;
        ctx.prefetch()?;
        let precision = Precision { kept, ..precision };
        let mut loader = Loader::new(ctx.clone(), checkpoint, precision, plan.activations, progress);
        let decoder = Decoder::load(&mut loader, config, limits)?;
        let mut cache = KvCache::new(&ctx, options.cache_shape(config, precision)?)?;
        if options.swap_tokens > 0 {
            cache = cache.with_host(options.swap_tokens)?;
        }
        let logits = Logits::new(&ctx, config.vocab_size, limits.max_wanted(), limits.max_sequences)?;
        let next = Vec::with_capacity(limits.max_wanted());
        let prefill_chunk = options.prefill_chunk.min(limits.context);
        Ok(Self {
            steps: Steps::new(Runner::new(ctx, decoder, cache), logits, prefill_chunk),
            tokenizer,
            no_tokenizer: None,
            next,
        })
    }

    /// What a model would take on a context's device. The tensors are checked that loading would read, by what the
    /// headers say.
    ///
    /// # Errors
    /// Options that make no sense for the model, a checkpoint without floating-point tensors, tensors that are missing
    /// or of another shape than the config says, or those of [`Checkpoint::refuse_unread`].
    pub fn plan(
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        ctx: &Context,
    ) -> Result<DeviceBytes> {
        let precision = options.precision(checkpoint, ctx)?;
        options.device_bytes(config, &mut Sizes::new(ctx, checkpoint, precision))
    }

    /// The context that it runs on.
    pub fn context(&self) -> &Arc<Context> {
        self.steps.runner.staging.context()
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        self.steps.runner.decoder()
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.steps.runner.staging.cache()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// The model came without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(|| {
            let reason = self.no_tokenizer.as_deref().unwrap_or("the model has no tokenizer.json");
            Error::Input(format!("{reason}; give token ids instead of text"))
        })
    }

    /// The tokens of a prompt, special ones as the tokenizer adds them.
    ///
    /// # Errors
    /// A model without a tokenizer, a text that the tokenizer refuses, or [`Error::TooLong`] for one that has more tokens
    /// than the context.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer()?.encode_prompt(text, true, self.decoder().limits().context)
    }

    /// Turns queries and keys from here on as a model that was loaded for `context` tokens: where the rotary embedding
    /// depends on the length of sequences ([`DecoderConfig::rotates_alike`]), a prompt that was meant for a model of that
    /// context is answered as by one. The prompts in the cache are forgotten.
    ///
    /// # Errors
    /// A context of 0 or beyond the model's, sequences that hold tokens, which were turned otherwise, or out of memory.
    pub fn rotate_for(&mut self, context: usize) -> Result<()> {
        let most = self.decoder().limits().context;
        if context == 0 || context > most {
            return Err(Error::Input(format!(
                "rotary frequencies of {context} tokens; the model was loaded for {most}"
            )));
        }
        self.steps.runner.rotate_for(context)
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        self.steps.runner.sequence()
    }

    /// Appends `tokens` to a sequence, in chunks, and returns the logits of the last, `[vocab]`.
    ///
    /// # Errors
    /// No token, a token out of the vocabulary, a sequence past the context, a full cache, or a failed device. The
    /// sequence is as long as before, or empty where a window has left behind by then what it saw.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        // Nobody asks for it to end, so that it ends with the logits.
        self.steps.prefill(sequence, tokens, &mut || ControlFlow::Continue(()), |logits, ctx| logits.fetch(ctx, 1))?;
        Ok(self.steps.logits.rows(1))
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
        let last = self.steps.prefill(sequence, tokens, go_on, |logits, ctx| logits.fetch(ctx, 1))?;
        Ok(last.map(|()| self.steps.logits.rows(1)))
    }

    /// One token for each of several sequences; the logits are `[sequences, vocab]`.
    ///
    /// # Errors
    /// A token out of the vocabulary, a sequence past the context, more sequences than the model was loaded for, a full
    /// cache, or a failed device. Every sequence is as long as before.
    pub fn decode(&mut self, sequences: &mut [Sequence], tokens: &[u32]) -> Result<&[f32]> {
        self.check_decode(sequences, tokens)?;
        let rows = sequences.len();
        self.steps.decode(sequences, tokens, |logits, ctx| logits.fetch(ctx, rows))?;
        Ok(self.steps.logits.rows(rows))
    }

    /// One token for each of several sequences, and the most probable next token of each, chosen where the logits are: from
    /// a GPU only tokens come to the host.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and logits of which none is the largest.
    pub fn decode_greedy(&mut self, sequences: &mut [Sequence], tokens: &[u32]) -> Result<&[u32]> {
        self.check_decode(sequences, tokens)?;
        let rows = sequences.len();
        let next = &mut self.next;
        self.steps.decode(sequences, tokens, |logits, ctx| {
            logits.draw(ctx, rows, |asked| {
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
            let (tokens, sequences) = (count_of(tokens.len(), "token"), count_of(sequences.len(), "sequence"));
            return Err(Error::Input(format!("{tokens} for {sequences}")));
        }
        let mut each = sequences.iter().zip(tokens);
        each.try_for_each(|(sequence, token)| self.steps.runner.check(sequence.len(), std::slice::from_ref(token)))
    }

    /// The logits of every token, given to `each` in order as `[rows, vocab]`, at most
    /// [`max_logits`](LoadOptions::max_logits) rows at a time. Each chunk is one forward pass. What `each` returns as an
    /// error, [`Error::Cancelled`] to end early among others, ends it.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`], and what `each` returns.
    pub fn logits(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.steps.every(tokens, each)
    }

    pub(crate) fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    /// Whether the model came with a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }
}
