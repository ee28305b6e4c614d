//! A language model: a decoder, its cache and its tokenizer; loading, prefill, decode, and logits. Answers are made of
//! those.

mod answer;

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use sinew_memory::{Device, DeviceKind, Hardware};
use sinew_ops::Context;
use sinew_ops::layers::OldKv;
use sinew_tensor::{DType, Tensor};

pub use self::answer::{Generation, Session};
pub use crate::answering::{Finish, GenerateOptions};
use crate::batch::{Batch, Wanted};
use crate::cache::{CacheShape, Form, KvCache, Sequence};
use crate::checkpoint::Checkpoint;
use crate::config::check_tokens;
use crate::decoder::Decoder;
use crate::draw::Draw;
use crate::load::{Loader, Precision, Sizes, WeightOptions};
use crate::plan::{Limits, Plan};
use crate::prompt::check_length;
use crate::sampling::{Asked, argmax};
use crate::scratch::bytes;
use crate::tokenizer::Tokenizer;
use crate::{DecoderConfig, Error, Folder, Result};

/// How a model is loaded and how large its steps may be.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// The weights.
    pub weights: WeightOptions,
    /// Tokens of one sequence, prompt and answer; [`DecoderConfig::usual_context`] where it is `None`. A rotary embedding
    /// that depends on the length of sequences is that of this length for all of them, whatever a prompt or a request of
    /// an engine needs, until [`LanguageModel::rotate_for`] says else.
    pub context: Option<usize>,
    /// Tokens in one step of a prompt.
    pub prefill_chunk: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens that the cache has room for, in whole blocks; every sequence at its longest where it is `None`.
    pub cache_tokens: Option<usize>,
    /// Tokens that there is room for on the host, of sequences that make room for others in an engine.
    pub swap_tokens: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Dtype of the cache: f32, f16, bf16, or, on CPUs, int8 or fp8 (e4m3) with a scale for each token and head; that of
    /// [`Precision::of`] where it is `None`.
    pub kv: Option<DType>,
    /// In what form old keys and values are kept, on CPUs: int8 or fp8 (e4m3) with a scale for each token and head, while
    /// recent ones stay in `kv`. The token at position `p` sees those below `64 · ⌊(p + 1 - recent) / 64⌋` so, whatever
    /// step it is run in; layers whose window has no more than the recent ones have none. `None` keeps all alike.
    pub old_kv: Option<OldKv>,
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
            cache_tokens: None,
            swap_tokens: 0,
            block_size: 16,
            kv: None,
            old_kv: None,
            max_logits: 1,
        }
    }
}

impl LoadOptions {
    /// The precision of a model with these weights and this cache on a device.
    ///
    /// # Errors
    /// Those of [`WeightOptions::precision`], [`Precision::with_kv`] and [`Precision::with_old_kv`].
    pub fn precision(&self, checkpoint: &Checkpoint, hardware: &Hardware) -> Result<Precision> {
        let precision = self.weights.precision(checkpoint, hardware)?;
        precision.with_kv(self.kv, hardware)?.with_old_kv(self.old_kv, hardware)
    }

    /// How large the steps of a model are.
    ///
    /// # Errors
    /// Sizes of 0, or a context that the model does not have.
    pub fn limits(&self, config: &DecoderConfig) -> Result<Limits> {
        let &Self { max_sequences, block_size, .. } = self;
        let longest = config.longest_context();
        let context = self.context.unwrap_or(config.usual_context());
        if context == 0 || context > longest {
            return Err(Error::Input(format!("a context of {context} tokens; the model has {longest} positions")));
        }
        if block_size == 0 || self.prefill_chunk == 0 || max_sequences == 0 {
            return Err(Error::Input("block size, prefill chunk and sequences must be at least 1".to_owned()));
        }
        let max_rows = self.prefill_chunk.min(context).max(max_sequences);
        let max_logits = self.max_logits.max(max_sequences);
        Ok(Limits { max_rows, max_sequences, context, block_size, max_logits }.capped())
    }

    /// The cache.
    pub(crate) fn cache_shape(&self, config: &DecoderConfig, precision: Precision) -> Result<CacheShape> {
        let limits = self.limits(config)?;
        let all = || limits.context.next_multiple_of(limits.block_size).saturating_mul(limits.max_sequences);
        CacheShape::new(config, &precision, &limits, self.cache_tokens.unwrap_or_else(all))
    }
}

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
    ctx: Arc<Context>,
    decoder: Decoder,
    cache: KvCache,
    tokenizer: Option<Arc<Tokenizer>>,
    batch: Batch,
    logits: Tensor,
    /// Where the host does not have the logits, tokens are drawn on the device.
    draw: Option<Draw>,
    prefill_chunk: usize,
    /// Host copy of logits that the host does not have: reused, so that a step allocates nothing.
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
        let device = &**ctx.device();
        let precision = options.precision(checkpoint, device.hardware())?;
        let limits = options.limits(config)?;
        let purpose = format!("{} sequences of {} tokens", limits.max_sequences, limits.context);
        Self::plan(config, checkpoint, options, device)?.fits(&ctx, &purpose)?;
        let tokenizer = tokenizer()?;
        ctx.prefetch()?;
        let mut loader = Loader::new(ctx.clone(), checkpoint, precision, progress);
        let decoder = Decoder::load(&mut loader, config, limits)?;
        let mut cache = KvCache::new(&ctx, options.cache_shape(config, precision)?)?;
        if options.swap_tokens > 0 {
            cache = cache.with_host(options.swap_tokens)?;
        }
        let logits = ctx.uninitialised_tagged("logits", DType::F32, &[limits.max_logits, config.vocab_size])?;
        let draw = match logits.buffer().host_ptr() {
            Some(_) => None,
            None => Some(Draw::new(&ctx, config.vocab_size, limits.max_sequences)?),
        };
        let row = Vec::with_capacity(limits.max_logits * config.vocab_size);
        let next = Vec::with_capacity(limits.max_logits);
        let prefill_chunk = options.prefill_chunk.min(limits.context);
        let batch = Batch::for_limits(&limits, Form::count(config, &precision));
        Ok(Self { ctx, decoder, cache, tokenizer, batch, logits, draw, prefill_chunk, row, next })
    }

    /// What a model would take on a device. The tensors are checked that loading would read, by what the headers say.
    ///
    /// # Errors
    /// Options that make no sense for the model, a checkpoint without floating-point tensors, or tensors that are missing
    /// or of another shape than the config says.
    pub fn plan(
        config: &DecoderConfig,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        device: &dyn Device,
    ) -> Result<Plan> {
        let precision = options.precision(checkpoint, device.hardware())?;
        Self::plan_of(config, &Sizes { checkpoint, precision, device: device.id().kind, asked: None }, options)
    }

    /// The same of what loading makes of a checkpoint.
    pub(crate) fn plan_of(config: &DecoderConfig, sizes: &Sizes<'_>, options: &LoadOptions) -> Result<Plan> {
        let limits = options.limits(config)?;
        let plan = Decoder::plan(config, sizes, &limits)?;
        let cache = options.cache_shape(config, sizes.precision).map_or(usize::MAX, |shape| {
            // What is swapped out is in the same memory on a CPU.
            let host = if sizes.device == DeviceKind::CPU { shape.host_bytes(options.swap_tokens) } else { 0 };
            shape.bytes().saturating_add(host)
        });
        Ok(Plan { cache, logits: bytes(DType::F32, &[limits.max_logits, config.vocab_size]), ..plan })
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
    /// A model without a tokenizer, a text that the tokenizer refuses, or [`Error::TooLong`] for one that has more tokens
    /// than the context.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenizer()?.encode_prompt(text, true, self.decoder.limits().context)
    }

    /// Turns queries and keys from here on as a model that was loaded for `context` tokens: where the rotary embedding
    /// depends on the length of sequences ([`DecoderConfig::rotates_alike`]), a prompt that was meant for a model of that
    /// context is answered as by one. The prompts in the cache are forgotten.
    ///
    /// # Errors
    /// A context of 0 or beyond the model's, sequences that hold tokens, which were turned otherwise, or out of memory.
    pub fn rotate_for(&mut self, context: usize) -> Result<()> {
        let most = self.decoder.limits().context;
        if context == 0 || context > most {
            return Err(Error::Input(format!(
                "rotary frequencies of {context} tokens; the model was loaded for {most}"
            )));
        }
        if self.cache.stats().used > 0 {
            return Err(Error::Input("other rotary frequencies while sequences hold tokens".to_owned()));
        }
        self.decoder.rotate_for(&self.ctx, context)?;
        self.cache.forget_prefixes();
        Ok(())
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        self.cache.sequence(self.decoder.limits().context)
    }

    /// Appends `tokens` to a sequence, in chunks, and returns the logits of the last, `[vocab]`.
    ///
    /// # Errors
    /// No token, a token out of the vocabulary, a sequence past the context, a full cache, or a failed device. The
    /// sequence is as long as before, or empty where a window has left behind by then what it saw.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<&[f32]> {
        // Nobody asks for it to end, so that it ends with the logits.
        self.prefill_then(sequence, tokens, &mut || ControlFlow::Continue(()), |model| model.fetch(1))?;
        Ok(self.fetched(1))
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
            Some(()) => Ok(Some(self.fetched(1))),
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
        self.check_prompt(sequence.len(), tokens)?;
        let before = sequence.len();
        let outcome = self.prefill_chunks(sequence, tokens, go_on).and_then(|end| match end {
            ControlFlow::Continue(()) => take(self).map(Some),
            ControlFlow::Break(()) => Ok(None),
        });
        if outcome.is_err() {
            sequence.shorten(before);
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
        Ok(self.fetched(rows))
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
            let mut next = std::mem::take(&mut model.next);
            let rows = model.fetched(rows).chunks(model.decoder.config().vocab_size);
            rows.map(argmax).try_for_each(|best| best.map(|best| next.push(best.id)))?;
            model.next = next;
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
                each(self.fetched(rows.len()))?;
            }
        }
        Ok(())
    }

    pub(crate) fn context_and_cache(&mut self) -> (Arc<Context>, &mut KvCache) {
        (self.ctx.clone(), &mut self.cache)
    }

    pub(crate) fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    /// Whether the model came with a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    pub(crate) fn check_prompt(&self, before: usize, tokens: &[u32]) -> Result<()> {
        let context = self.decoder.limits().context;
        if tokens.is_empty() {
            return check_length(0, context);
        }
        check_tokens(tokens, self.decoder.config().vocab_size)?;
        check_length(before + tokens.len(), context)
    }

    /// Runs tokens, equally many for every sequence, as one step. After an error every sequence is as long as before.
    fn forward(&mut self, sequences: &mut [Sequence], tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.begin();
        let Some(each) = tokens.len().checked_div(sequences.len()) else { return Ok(()) };
        let mut staged = 0;
        let mut outcome = Ok(());
        for (sequence, tokens) in sequences.iter_mut().zip(tokens.chunks(each)) {
            outcome = self.stage(sequence, tokens, wanted);
            if outcome.is_err() {
                break;
            }
            staged += 1;
        }
        let outcome = outcome.and_then(|()| self.run_staged());
        if outcome.is_err() {
            shrink(&mut sequences[..staged], each)?;
        }
        outcome
    }

    /// Begins to put a step together.
    pub(crate) fn begin(&mut self) {
        self.batch.clear();
    }

    /// Adds tokens of a sequence to the step, and takes room for them in the cache.
    ///
    /// # Errors
    /// A full cache; the sequence is as before.
    pub(crate) fn stage(&mut self, sequence: &mut Sequence, tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.cache.append(&self.ctx, sequence, tokens.len())?;
        self.batch.push(sequence, tokens, wanted)
    }

    /// Runs the step. After an error its sequences have tokens that the cache does not: they are to be truncated.
    pub(crate) fn run_staged(&mut self) -> Result<()> {
        self.decoder.forward(&self.ctx, &mut self.cache, &self.batch)
    }

    /// The logits of all rows that the step was asked for.
    pub(crate) fn head_staged(&mut self) -> Result<()> {
        self.head(0..self.batch.wanted().len())
    }

    /// Whether tokens are drawn where the logits are, which the host does not have.
    pub(crate) fn draws(&self) -> bool {
        self.draw.is_some()
    }

    /// Draws on the device for each of the first rows of logits: what is asked, or nothing of use.
    pub(crate) fn draw(&mut self, asked: &[Option<Asked>]) -> Result<()> {
        let Some(draw) = &mut self.draw else { return Ok(()) };
        let asked = asked.iter().map(|asked| asked.unwrap_or(Asked::GREEDY));
        self.next.clear();
        self.next.extend(draw.tokens(&self.ctx, &self.logits, asked)?);
        Ok(())
    }

    /// The tokens that were [drawn](Self::draw).
    pub(crate) fn drawn(&self) -> &[u32] {
        &self.next
    }

    /// Computes the logits of some of the rows that the batch wants.
    fn head(&mut self, rows: Range<usize>) -> Result<()> {
        self.decoder.head(&self.ctx, &self.batch.wanted()[rows], &mut self.logits)
    }

    /// Brings the first rows of logits to the host, if they are not there.
    pub(crate) fn fetch(&mut self, rows: usize) -> Result<()> {
        if self.logits.as_slice::<f32>().is_ok() {
            return Ok(());
        }
        self.row.resize(rows * self.decoder.config().vocab_size, 0.0);
        Ok(self.logits.download(&**self.ctx.stream(), &mut self.row).map_err(sinew_ops::Error::from)?)
    }

    /// The rows that were [fetched](Self::fetch).
    pub(crate) fn fetched(&self, rows: usize) -> &[f32] {
        let logits = self.logits.as_slice::<f32>().unwrap_or(&self.row);
        &logits[..rows * self.decoder.config().vocab_size]
    }
}

/// Forgets the last `tokens` tokens of every sequence.
fn shrink(sequences: &mut [Sequence], tokens: usize) -> Result<()> {
    sequences.iter_mut().try_for_each(|sequence| sequence.truncate(sequence.len() - tokens))
}
