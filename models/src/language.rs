//! A language model: a decoder, its cache and its tokenizer; logits, generation, teacher forcing.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinew_ops::Context;
use sinew_tensor::{DType, PagedLayout, Tensor};

use crate::batch::{Batch, Wanted};
use crate::cache::{KvCache, Sequence};
use crate::checkpoint::Checkpoint;
use crate::decoder::{Decoder, Limits};
use crate::draw::Draw;
use crate::load::{Loader, Precision, WeightOptions};
use crate::sampling::{Asked, History, Logprobs, Sampler, SamplingParams, argmax};
use crate::stop::{StopStrings, TextStream};
use crate::tokenizer::Tokenizer;
use crate::{DecoderConfig, Error, Folder, Result};

/// How a model is loaded and how large its steps may be.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// The weights.
    pub weights: WeightOptions,
    /// Tokens of one sequence, prompt and answer; [`DecoderConfig::usual_context`] where it is `None`. A rotary embedding
    /// that depends on the length of sequences is that of this length for all of them.
    pub context: Option<usize>,
    /// Tokens in one step of a prompt.
    pub prefill_chunk: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Rows of logits held at once; a step may have more rows.
    pub max_logits: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            weights: WeightOptions::default(),
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
    /// Report each token's log probability, and those of this many of the most probable. The logits of each step then
    /// come to the host, also from a device that draws itself.
    pub logprobs: Option<usize>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

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
    fn keep_prefix(&mut self, prompt: &[u32]) -> Result<usize> {
        let run = &prompt[..prompt.len().saturating_sub(1)];
        let common = self.tokens.iter().zip(run).take_while(|(a, b)| a == b).count();
        self.tokens.truncate(common);
        self.sequence.truncate(common)?;
        Ok(common)
    }

    /// After an answer, or the part of one: what the sequence has of `tokens`.
    fn has(&mut self, tokens: impl Iterator<Item = u32>) {
        self.tokens.clear();
        self.tokens.extend(tokens.take(self.sequence.len()));
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
    /// How many of them were in the cache already.
    pub cached_tokens: usize,
    /// One for each token, where they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// Time for the prompt, first token included; zero for a prompt that was not run to its end.
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
    /// Where the host does not have the logits, tokens are drawn on the device.
    draw: Option<Draw>,
    prefill_chunk: usize,
    /// Host copy of logits: reused, so that a step allocates nothing.
    row: Vec<f32>,
    /// Tokens of a step.
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
        let tokenizer = folder.tokenizer()?;
        let checkpoint = folder.checkpoint(options.weights.load)?;
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
        tokenizer: Option<Arc<Tokenizer>>,
        options: &LoadOptions,
        progress: crate::load::Progress<'_>,
    ) -> Result<Self> {
        ctx.prefetch()?;
        let precision = options.weights.precision(checkpoint, ctx.device().hardware())?;
        let longest = config.longest_context();
        let context = options.context.unwrap_or(config.usual_context());
        if context == 0 || context > longest {
            return Err(Error::Input(format!("a context of {context} tokens; the model has {longest} positions")));
        }
        if options.block_size == 0 || options.prefill_chunk == 0 || options.max_sequences == 0 {
            return Err(Error::Input("block size, prefill chunk and sequences must be at least 1".to_owned()));
        }
        let prefill_chunk = options.prefill_chunk.min(context);
        let limits = Limits {
            max_rows: prefill_chunk.max(options.max_sequences),
            max_sequences: options.max_sequences,
            context,
            block_size: options.block_size,
            max_logits: options.max_logits.max(options.max_sequences),
        };
        let layout = cache_layout(&ctx, config, precision, &limits)?;
        let mut loader = Loader::new(ctx.clone(), checkpoint, precision, progress);
        let decoder = Decoder::load(&mut loader, config, limits)?;
        let cache = KvCache::new(&ctx, config.num_hidden_layers(), layout)?;
        let max_logits = decoder.limits().max_logits;
        let logits = ctx.uninitialised(DType::F32, &[max_logits, config.vocab_size])?;
        let draw = match logits.buffer().host_ptr() {
            Some(_) => None,
            None => Some(Draw::new(&ctx, config.vocab_size, limits.max_sequences)?),
        };
        let row = Vec::with_capacity(max_logits * config.vocab_size);
        let next = Vec::with_capacity(max_logits);
        let batch = Batch::for_limits(&limits);
        Ok(Self { ctx, decoder, cache, tokenizer, batch, logits, draw, prefill_chunk, row, next })
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
        self.cache.sequence(self.decoder.limits().context)
    }

    /// Appends `tokens` to a sequence, in chunks, and returns the logits of the last, `[vocab]`.
    ///
    /// # Errors
    /// No token, a token out of the vocabulary, a sequence past the context, a full cache, or a failed device. The
    /// sequence is as long as before.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        // Nobody asks for it to end, so that it ends with the logits.
        self.prefill_then(sequence, tokens, &mut || ControlFlow::Continue(()), |model| model.fetch(1))?;
        Ok(&self.row)
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
        let end = self.prefill_then(sequence, tokens, go_on, |model| model.fetch(1))?;
        Ok(end.map(|()| &self.row[..]))
    }

    /// Prefills, and then takes what is wanted of the last token's logits; nothing where it is not to go on. After an
    /// error, which the device may report only in `take`, the sequence is as long as before.
    fn prefill_then<T>(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        take: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        self.check_prompt(sequence.len(), tokens)?;
        let before = sequence.len();
        let outcome = self.prefill_chunks(sequence, tokens, go_on).and_then(|end| match end {
            ControlFlow::Continue(()) => take(self).map(Some),
            ControlFlow::Break(()) => Ok(None),
        });
        if outcome.is_err() {
            sequence.truncate(before)?;
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
            self.forward(std::slice::from_mut(sequence), part, Wanted::None)?;
            if go_on().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        self.forward(std::slice::from_mut(sequence), last, Wanted::Last)?;
        self.head(0..1)?;
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
        Ok(&self.row)
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
            model.next.clear();
            if let Some(draw) = &mut model.draw {
                let asked = std::iter::repeat_n(Asked::GREEDY, rows);
                model.next.extend(draw.tokens(&model.ctx, &model.logits, asked)?);
                return Ok(());
            }
            model.fetch(rows)?;
            for logits in model.row.chunks(model.decoder.config().vocab_size) {
                model.next.push(argmax(logits)?.id);
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
        each.try_for_each(|(sequence, token)| self.check_prompt(sequence.len(), std::slice::from_ref(token)))
    }

    /// One token for each of several sequences, and then what is wanted of the logits.
    fn decode_then<T>(
        &mut self,
        sequences: &mut [Sequence],
        tokens: &[u32],
        take: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.forward(sequences, tokens, Wanted::Last)?;
        let outcome = self.head(0..sequences.len()).and_then(|()| take(self));
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
        self.check_prompt(0, tokens)?;
        let mut sequence = self.sequence();
        let most = self.decoder.limits().max_logits;
        for chunk in tokens.chunks(self.prefill_chunk) {
            self.forward(std::slice::from_mut(&mut sequence), chunk, Wanted::All)?;
            for start in (0..chunk.len()).step_by(most) {
                let rows = start..(start + most).min(chunk.len());
                self.head(rows.clone())?;
                self.fetch(rows.len())?;
                each(&self.row)?;
            }
        }
        Ok(())
    }

    /// Generates an answer. `on_text` is called after every token with the text that can be shown, in whole characters
    /// and often empty, and may end the answer. It is called between the chunks of the prompt, too, with no text.
    ///
    /// # Errors
    /// Those of [`LanguageModel::prefill`], or sampling parameters that make no sense.
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
        let sampler = Sampler::new(options.sampling.clone())?;
        self.check_prompt(0, prompt)?;
        let room = options.max_new_tokens.min(self.decoder.limits().context.saturating_sub(prompt.len()) + 1);
        let mut answer = Generation {
            tokens: Vec::with_capacity(room),
            text: String::new(),
            finish: Finish::Length,
            prompt_tokens: prompt.len(),
            cached_tokens: session.keep_prefix(prompt)?,
            logprobs: Vec::new(),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        };
        let outcome = self.answer(&mut session.sequence, prompt, options, sampler, &mut answer, on_text);
        session.has(prompt.iter().chain(&answer.tokens).copied());
        outcome.map(|()| answer)
    }

    /// Runs what `sequence` does not have of the prompt, and then token after token, into `answer`.
    fn answer(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        options: &GenerateOptions,
        mut sampler: Sampler,
        answer: &mut Generation,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<()> {
        let tokenizer = self.tokenizer.clone();
        let stops = StopStrings::new(options.stop.iter().map(String::as_str))?;
        let mut text = tokenizer.as_deref().map(|tokenizer| TextStream::new(tokenizer, true, stops));
        if options.max_new_tokens == 0 {
            return Ok(());
        }
        let mut show = |answer: &mut Generation, piece: &str| {
            answer.text.push_str(piece);
            // Asked at every token, so that an answer can be ended while no text comes.
            on_text(piece)
        };
        let logprobs = options.logprobs;
        let start = Instant::now();
        let choose = |model: &mut Self| model.choose(&mut sampler, History { prompt, generated: &[] }, logprobs);
        let rest = &prompt[answer.cached_tokens..];
        let Some((mut token, mut chosen)) = self.prefill_then(sequence, rest, &mut || show(answer, ""), choose)? else {
            answer.finish = Finish::Cancelled;
            return Ok(());
        };
        let first = Instant::now();
        loop {
            if !options.ignore_eos && self.decoder.config().eos_token_ids.contains(&token) {
                answer.finish = Finish::Eos;
                break;
            }
            answer.tokens.push(token);
            answer.logprobs.extend(chosen);
            let piece = text.as_mut().map(|text| text.push(token)).transpose()?.unwrap_or_default();
            if show(answer, &piece.text).is_break() {
                answer.finish = Finish::Cancelled;
                break;
            }
            if piece.stopped_by.is_some() {
                answer.finish = Finish::Stop;
                break;
            }
            if answer.tokens.len() >= options.max_new_tokens || sequence.len() >= self.decoder.limits().context {
                break;
            }
            let history = History { prompt, generated: &answer.tokens };
            let choose = |model: &mut Self| model.choose(&mut sampler, history, logprobs);
            (token, chosen) = self.decode_then(std::slice::from_mut(sequence), &[token], choose)?;
        }
        let end = Instant::now();
        if let Some(text) = text.as_mut().filter(|_| matches!(answer.finish, Finish::Eos | Finish::Length)) {
            let rest = text.finish()?;
            if rest.stopped_by.is_some() {
                answer.finish = Finish::Stop;
            }
            if !rest.text.is_empty() && show(answer, &rest.text).is_break() {
                answer.finish = Finish::Cancelled;
            }
        }
        (answer.prefill, answer.decode) = (first - start, end - first);
        Ok(())
    }

    /// Whether the model came with a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    fn check_prompt(&self, before: usize, tokens: &[u32]) -> Result<()> {
        let (vocab, context) = (self.decoder.config().vocab_size, self.decoder.limits().context);
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

    /// Runs tokens, equally many for every sequence, as one step. After an error every sequence is as long as before.
    fn forward(&mut self, sequences: &mut [Sequence], tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.batch.clear();
        let Some(each) = tokens.len().checked_div(sequences.len()) else { return Ok(()) };
        grow(sequences, each)?;
        let outcome = self.run(sequences, tokens, each, wanted);
        if outcome.is_err() {
            shrink(sequences, each)?;
        }
        outcome
    }

    fn run(&mut self, sequences: &[Sequence], tokens: &[u32], each: usize, wanted: Wanted) -> Result<()> {
        for (sequence, tokens) in sequences.iter().zip(tokens.chunks(each)) {
            self.batch.push(sequence, tokens, wanted)?;
        }
        self.decoder.forward(&self.ctx, &mut self.cache, &self.batch)
    }

    /// Computes the logits of some of the rows that the batch wants.
    fn head(&mut self, rows: Range<usize>) -> Result<()> {
        self.decoder.head(&self.ctx, &self.batch.wanted()[rows], &mut self.logits)
    }

    /// Brings the first rows of logits to the host, into `row`.
    fn fetch(&mut self, rows: usize) -> Result<()> {
        self.row.resize(rows * self.decoder.config().vocab_size, 0.0);
        Ok(self.logits.download(&**self.ctx.stream(), &mut self.row).map_err(sinew_ops::Error::from)?)
    }

    /// The next token by the first row of logits, chosen where they are if that can be, and its log probability if that
    /// is wanted.
    fn choose(
        &mut self,
        sampler: &mut Sampler,
        history: History<'_>,
        logprobs: Option<usize>,
    ) -> Result<(u32, Option<Logprobs>)> {
        if let Some(draw) = &mut self.draw
            && let Some(asked) = sampler.ask()
        {
            let token = draw.tokens(&self.ctx, &self.logits, std::iter::once(asked))?[0];
            let Some(most) = logprobs else { return Ok((token, None)) };
            self.fetch(1)?;
            return Ok((token, Some(Logprobs::of(&self.row, token, most))));
        }
        self.fetch(1)?;
        let token = sampler.sample(&self.row, history)?;
        Ok((token, logprobs.map(|most| Logprobs::of(&self.row, token, most))))
    }
}

/// Makes room for `tokens` more tokens in every sequence, or in none.
fn grow(sequences: &mut [Sequence], tokens: usize) -> Result<()> {
    for i in 0..sequences.len() {
        if let Err(error) = sequences[i].append(tokens) {
            shrink(&mut sequences[..i], tokens)?;
            return Err(error);
        }
    }
    Ok(())
}

/// Forgets the last `tokens` tokens of every sequence.
fn shrink(sequences: &mut [Sequence], tokens: usize) -> Result<()> {
    sequences.iter_mut().try_for_each(|sequence| sequence.truncate(sequence.len() - tokens))
}

/// The layout of the cache. Sequences, contexts and logits whose cache and tables alone would not fit into the device's
/// free memory are refused here, before anything is allocated for them.
fn cache_layout(ctx: &Context, config: &DecoderConfig, precision: Precision, limits: &Limits) -> Result<PagedLayout> {
    let &Limits { max_rows, max_sequences: sequences, context, block_size, max_logits } = limits;
    let blocks = context.div_ceil(block_size).saturating_mul(sequences);
    let product = |factors: &[usize]| factors.iter().try_fold(DType::F32.size(), |n, &f| n.checked_mul(f));
    let layout = PagedLayout::new(blocks, config.num_key_value_heads, block_size, config.head_dim, precision.kv).ok();
    let needed = layout.and_then(|layout| {
        let cache = KvCache::bytes_for(config.num_hidden_layers(), &layout)?;
        let rotary = product(&[context, config.head_dim])?;
        let logits = product(&[max_logits.min(max_rows), config.vocab_size])?;
        cache.checked_add(rotary)?.checked_add(logits)
    });
    let available = ctx.device().memory()?.available;
    if let Some(layout) = layout.filter(|_| needed.is_some_and(|bytes| bytes <= available)) {
        return Ok(layout);
    }
    let needed = needed.map_or_else(|| "more bytes than can be counted".to_owned(), |n| format!("{n} bytes"));
    Err(Error::Input(format!(
        "cache, tables and logits for {sequences} sequences of {context} tokens take {needed}; {available} are free"
    )))
}
