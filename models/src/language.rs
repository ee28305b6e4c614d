//! A language model: a decoder, its cache and its tokenizer; logits, generation, teacher forcing.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinew_ops::Context;
use sinew_tensor::{DType, PagedLayout, Tensor};

use crate::batch::{Batch, Wanted};
use crate::cache::{KvCache, Sequence};
use crate::checkpoint::{Checkpoint, Load};
use crate::decoder::{Decoder, Limits};
use crate::load::{Loader, Precision, main_dtype};
use crate::sampling::{History, Sampler, SamplingParams};
use crate::stop::{StopStrings, TextStream};
use crate::tokenizer::Tokenizer;
use crate::{DecoderConfig, Error, ModelConfig, Result};

/// How a model is loaded and how large its steps may be.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// Dtype of the weights; that of the checkpoint where it is `None`.
    pub dtype: Option<DType>,
    /// Mapped, or read.
    pub load: Load,
    /// Tokens of one sequence, prompt and answer; what the config allows, at most 4,096, where it is `None`.
    pub context: Option<usize>,
    /// Tokens in one step of a prompt.
    pub prefill_chunk: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Rows of logits in one step.
    pub max_logits: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            load: Load::Mmap,
            context: None,
            prefill_chunk: 512,
            max_sequences: 1,
            block_size: 16,
            max_logits: 1,
        }
    }
}

/// What to generate and when to stop.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens, as benchmarks do.
    pub ignore_eos: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_new_tokens: 128, sampling: SamplingParams::default(), stop: Vec::new(), ignore_eos: false }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token.
    Eos,
    /// A stop text.
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
    /// Time for the prompt, first token included.
    pub prefill: Duration,
    /// Time for the tokens after the first.
    pub decode: Duration,
}

/// A decoder with its cache and, where there is one, its tokenizer.
///
/// `LanguageModel` is `Send` and not shared: one step runs at a time.
///
/// ```no_run
/// use sinew_models::{GenerateOptions, LanguageModel, LoadOptions};
///
/// let mut model = LanguageModel::load("path/to/model", &LoadOptions::default())?;
/// let prompt = model.encode("Once upon a time")?;
/// let answer = model.generate(&prompt, &GenerateOptions::default(), &mut |piece| {
///     print!("{piece}");
///     std::ops::ControlFlow::Continue(())
/// })?;
/// println!("\n{} tokens, {}", answer.tokens.len(), answer.finish);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct LanguageModel {
    ctx: Arc<Context>,
    decoder: Decoder,
    cache: KvCache,
    tokenizer: Option<Arc<Tokenizer>>,
    batch: Batch,
    logits: Tensor,
    prefill_chunk: usize,
    /// Host copy of logits: reused, so that a step allocates nothing.
    row: Vec<f32>,
}

impl LanguageModel {
    /// Loads a folder with `config.json`, safetensors and, if it is there, `tokenizer.json`, for the CPU.
    ///
    /// # Errors
    /// Files that are missing or damaged, an architecture that is not a supported decoder, or out of memory.
    pub fn load(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        Self::load_on(Arc::new(Context::cpu()?), folder, options, &mut |_, _| {})
    }

    /// [`LanguageModel::load`] on a context, with progress in bytes of the checkpoint.
    ///
    /// # Errors
    /// Those of [`LanguageModel::load`].
    pub fn load_on(
        ctx: Arc<Context>,
        folder: impl AsRef<Path>,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        let folder = folder.as_ref();
        let config = ModelConfig::from_folder(folder)?;
        let config = config.as_decoder()?;
        let tokenizer = Tokenizer::from_folder_if_present(folder)?;
        let checkpoint = Checkpoint::open(folder, options.load)?;
        Self::from_parts(ctx, config, &checkpoint, tokenizer, options, progress)
    }

    /// A model from a config, a checkpoint and a tokenizer that are in memory.
    ///
    /// # Errors
    /// Those of [`LanguageModel::load`].
    pub fn from_parts(
        ctx: Arc<Context>,
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        tokenizer: Option<Tokenizer>,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        let stored = main_dtype(checkpoint)?;
        let precision = Precision::of(options.dtype.unwrap_or(stored))?;
        // Unasked, the cache is not made for contexts that few prompts fill.
        const DEFAULT_CONTEXT: usize = 4096;
        let longest = config.max_position_embeddings;
        let context = options.context.unwrap_or(longest.min(DEFAULT_CONTEXT));
        if context == 0 || context > longest {
            return Err(Error::Input(format!("a context of {context} tokens; the model has {longest} positions")));
        }
        if options.block_size == 0 || options.prefill_chunk == 0 || options.max_sequences == 0 {
            return Err(Error::Input("block size, prefill chunk and sequences must be at least 1".to_owned()));
        }
        let prefill_chunk = options.prefill_chunk.min(context);
        check_memory(&ctx, config, precision, options, context)?;
        let limits = Limits {
            max_rows: prefill_chunk.max(options.max_sequences),
            max_sequences: options.max_sequences,
            context,
            block_size: options.block_size,
            max_logits: options.max_logits.max(options.max_sequences),
        };
        let mut loader = Loader::new(ctx.clone(), checkpoint, precision, progress);
        let decoder = Decoder::load(&mut loader, config, limits)?;
        let blocks = context.div_ceil(options.block_size) * options.max_sequences;
        let layout =
            PagedLayout::new(blocks, config.num_key_value_heads, options.block_size, config.head_dim, precision.kv)
                .map_err(sinew_ops::Error::from)?;
        let cache = KvCache::new(&ctx, config.num_hidden_layers, layout)?;
        let logits = ctx.uninitialised(DType::F32, &[limits.max_logits, config.vocab_size])?;
        let row = Vec::with_capacity(limits.max_logits * config.vocab_size);
        let tokenizer = tokenizer.map(Arc::new);
        Ok(Self { ctx, decoder, cache, tokenizer, batch: Batch::new(), logits, prefill_chunk, row })
    }

    /// The context that it runs on.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
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
    /// A model without a tokenizer.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer()?.encode(text, true)
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        self.cache.sequence()
    }

    /// Appends `tokens` to a sequence, in chunks, and returns the logits of the last, `[vocab]`.
    ///
    /// # Errors
    /// No token, a token out of the vocabulary, or a sequence past the context.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        self.check_prompt(sequence.len(), tokens)?;
        let chunk = self.prefill_chunk;
        for (i, part) in tokens.chunks(chunk).enumerate() {
            let last = (i + 1) * chunk >= tokens.len();
            sequence.append(part.len())?;
            self.batch.clear();
            self.batch.push(sequence, part, if last { Wanted::Last } else { Wanted::None })?;
            self.step()?;
        }
        self.read_logits()
    }

    /// One token for each of several sequences; the logits are `[sequences, vocab]`.
    ///
    /// # Errors
    /// A token out of the vocabulary, or a sequence past the context.
    pub fn decode(&mut self, sequences: &mut [Sequence], tokens: &[u32]) -> Result<&[f32]> {
        if sequences.len() != tokens.len() {
            return Err(Error::Input(format!("{} tokens for {} sequences", tokens.len(), sequences.len())));
        }
        self.batch.clear();
        for (sequence, token) in sequences.iter_mut().zip(tokens) {
            self.check_prompt(sequence.len(), std::slice::from_ref(token))?;
            sequence.append(1)?;
            self.batch.push(sequence, std::slice::from_ref(token), Wanted::Last)?;
        }
        self.step()?;
        self.read_logits()
    }

    /// The logits of every token, given to `each` in order, chunk after chunk, as `[rows, vocab]`.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`], and what `each` returns.
    pub fn logits(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.check_prompt(0, tokens)?;
        let mut sequence = self.cache.sequence();
        let rows = self.prefill_chunk.min(self.logits.shape()[0]);
        for chunk in tokens.chunks(self.prefill_chunk) {
            // A chunk's rows may be more than logits are held for; its queries are then run in parts, which changes
            // no bit.
            for part in chunk.chunks(rows) {
                sequence.append(part.len())?;
                self.batch.clear();
                self.batch.push(&sequence, part, Wanted::All)?;
                self.step()?;
                each(self.read_logits()?)?;
            }
        }
        Ok(())
    }

    /// Generates an answer. `on_text` is called after every token with the text that can be shown, in whole characters
    /// and often empty, and may end the answer.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`], or sampling parameters that make no sense.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let mut sampler = Sampler::new(options.sampling.clone())?;
        let tokenizer = self.tokenizer.clone();
        let stops = StopStrings::new(options.stop.iter().map(String::as_str))?;
        let mut text = tokenizer.as_deref().map(|tokenizer| TextStream::new(tokenizer, true, stops));
        self.check_prompt(0, prompt)?;
        let room = options.max_new_tokens.min(self.decoder.context().saturating_sub(prompt.len()) + 1);
        let mut answer = Generation {
            tokens: Vec::with_capacity(room),
            text: String::new(),
            finish: Finish::Length,
            prompt_tokens: prompt.len(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        if options.max_new_tokens == 0 {
            return Ok(answer);
        }
        let mut show = |answer: &mut Generation, piece: &str| {
            answer.text.push_str(piece);
            // Asked at every token, so that an answer can be ended while no text comes.
            on_text(piece)
        };
        let start = Instant::now();
        let mut sequence = self.sequence();
        self.prefill(&mut sequence, prompt)?;
        let mut first = None;
        loop {
            let history = History { prompt, generated: &answer.tokens };
            let token = sampler.sample(&self.row, history)?;
            first.get_or_insert_with(Instant::now);
            if !options.ignore_eos && self.decoder.config().eos_token_ids.contains(&token) {
                answer.finish = Finish::Eos;
                break;
            }
            answer.tokens.push(token);
            let piece = text.as_mut().map(|text| text.push(token)).transpose()?.unwrap_or_default();
            if show(&mut answer, &piece.text).is_break() {
                answer.finish = Finish::Cancelled;
                break;
            }
            if piece.stopped_by.is_some() {
                answer.finish = Finish::Stop;
                break;
            }
            if answer.tokens.len() >= options.max_new_tokens || sequence.len() >= self.decoder.context() {
                break;
            }
            self.decode(std::slice::from_mut(&mut sequence), &[token])?;
        }
        let end = Instant::now();
        if let Some(text) = text.as_mut().filter(|_| matches!(answer.finish, Finish::Eos | Finish::Length)) {
            let rest = text.finish()?;
            if rest.stopped_by.is_some() {
                answer.finish = Finish::Stop;
            }
            if !rest.text.is_empty() && show(&mut answer, &rest.text).is_break() {
                answer.finish = Finish::Cancelled;
            }
        }
        let first = first.unwrap_or(end);
        (answer.prefill, answer.decode) = (first - start, end - first);
        Ok(answer)
    }

    /// Whether the model came with a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    fn check_prompt(&self, before: usize, tokens: &[u32]) -> Result<()> {
        let (vocab, context) = (self.decoder.config().vocab_size, self.decoder.context());
        if tokens.is_empty() {
            return Err(Error::Input("the prompt has no token".to_owned()));
        }
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::Input(format!("token {token} is not in the vocabulary of {vocab} tokens")));
        }
        let length = before + tokens.len();
        if length > context {
            return Err(Error::Input(format!("{length} tokens are more than the context of {context}")));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let Self { ctx, decoder, cache, batch, logits, .. } = self;
        decoder.step(ctx, cache, batch, logits)
    }

    fn read_logits(&mut self) -> Result<&[f32]> {
        let wanted = self.batch.wanted().len() * self.decoder.config().vocab_size;
        self.row.resize(wanted, 0.0);
        self.logits.download(&**self.ctx.stream(), &mut self.row).map_err(sinew_ops::Error::from)?;
        Ok(&self.row)
    }
}

/// Refuses sequences, contexts and logits whose cache and tables alone would not fit into the device's free memory,
/// before anything is allocated for them.
fn check_memory(
    ctx: &Context,
    config: &DecoderConfig,
    precision: Precision,
    options: &LoadOptions,
    context: usize,
) -> Result<()> {
    let product = |factors: &[usize]| factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f));
    let slots = context.div_ceil(options.block_size).checked_mul(options.block_size);
    let kv_width = product(&[config.num_key_value_heads, config.head_dim, 2, precision.kv.size()]);
    let cache = slots
        .zip(kv_width)
        .and_then(|(slots, width)| product(&[slots, width, config.num_hidden_layers, options.max_sequences]));
    let tables = product(&[context, config.head_dim, DType::F32.size()]);
    let logits = product(&[options.max_logits.max(options.max_sequences), config.vocab_size, DType::F32.size()]);
    let needed = [cache, tables, logits].into_iter().try_fold(0usize, |sum, part| sum.checked_add(part?));
    let available = ctx.device().memory()?.available;
    if needed.is_some_and(|bytes| bytes <= available) {
        return Ok(());
    }
    let needed = needed.map_or_else(|| "more bytes than can be counted".to_owned(), |n| format!("{n} bytes"));
    let sequences = options.max_sequences;
    Err(Error::Input(format!(
        "cache, tables and logits for {sequences} sequences of {context} tokens take {needed}; {available} are free"
    )))
}
