//! The decoder: one description with switches for Llama, Qwen2 and Qwen3.
//!
//! ```text
//! h  = embedding[token]
//! h += O · attention(rope(norm(Q·n)), rope(norm(K·n)), V·n)      n = rms_norm(h); inner norms are Qwen3's
//! h += down · (silu(gate·n) ⊙ up·n)                              n = rms_norm(h)
//! logits = head · rms_norm(h)
//! ```
//! The residual stream `h` is f32. Q, K and V are one product, gate and up another, and both residual additions are
//! epilogues of theirs.

mod layer;

use sinew_ops::Context;
use sinew_ops::layers::{Embedding, Linear, LinearOptions, Norm, Rotary, RowGather, Sequences};
use sinew_tensor::{DType, Layout, Tensor};

use self::layer::{Activations, Layer, Step};
use crate::batch::Batch;
use crate::cache::KvCache;
use crate::load::{Loader, Precision};
use crate::scratch::{Rows, Values};
use crate::{DecoderConfig, Error, Result};

/// A decoder whose weights are packed and whose every step is planned: running one allocates nothing.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    precision: Precision,
    limits: Limits,
    embedding: Embedding,
    rotary: Rotary,
    layers: Vec<Layer>,
    gather: RowGather,
    norm: Norm,
    /// `None` in a decoder for hidden states.
    head: Option<Linear>,
    inputs: StepInputs,
    activations: Activations,
    /// Residual streams of the rows whose logits are asked for.
    wanted: Rows,
    steps: Steps,
}

/// What the host gives to a step.
#[derive(Debug)]
struct StepInputs {
    tokens: Values,
    positions: Values,
    slots: Values,
    query_start: Values,
    kv_len: Values,
    block_tables: Values,
    wanted: Values,
    /// Block tables on the host: kept, so that a step allocates nothing.
    laid_out: Vec<u32>,
}

/// How large a step can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step.
    pub max_rows: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens of one sequence, prompt and answer.
    pub context: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Rows of logits at once; 0 for a decoder without a head, which gives hidden states.
    pub max_logits: usize,
}

impl Limits {
    /// Rows that are taken of a step: of logits, or without a head all.
    fn wanted(&self) -> usize {
        if self.max_logits == 0 { self.max_rows } else { self.max_logits }
    }
}

/// The forward passes that a decoder has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// How many.
    pub count: usize,
    /// Tokens in the largest.
    pub largest: usize,
    /// Tokens in the latest.
    pub latest: usize,
}

impl Decoder {
    /// Loads, packs and plans a decoder.
    ///
    /// # Errors
    /// Tensors that are missing or of another shape than the config says, or out of memory.
    pub fn load(loader: &mut Loader<'_>, config: &DecoderConfig, limits: Limits) -> Result<Self> {
        let ctx = loader.context().clone();
        let (ctx, precision) = (&*ctx, loader.precision());
        let (hidden, vocab, rows) = (config.hidden_size, config.vocab_size, limits.max_rows);
        // No step has more rows to give logits for.
        let limits = Limits { max_logits: limits.max_logits.min(rows), ..limits };

        let prefix = loader.prefix("embed_tokens.weight", &["model.", ""])?;
        let embedding_name = format!("{prefix}embed_tokens.weight");
        let head_name = "lm_head.weight";
        // A head of its own is used wherever there is one, whatever the config says.
        let tied = config.tie_word_embeddings && !loader.contains(head_name);
        let head = match limits.max_logits {
            0 => None,
            _ => Some(loader.weight(&[(if tied { &embedding_name } else { head_name }, vocab)], hidden)?),
        };
        let embedding = match &head {
            Some(head) if tied => Embedding::packed(ctx, head.clone(), DType::F32)?,
            _ => Embedding::table(ctx, loader.table(&embedding_name, vocab, hidden)?, DType::F32)?,
        };
        let head_options = LinearOptions::new(precision.activations, DType::F32, precision.compute);
        let head = head.map(|head| Linear::new(ctx, head, head_options, limits.max_logits)).transpose()?;

        let (inv_freq, scale) = config.rope.frequencies(config.head_dim);
        let rotary = Rotary::new(ctx, &inv_freq, scale, limits.context, config.head_dim, DType::F32)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| Layer::load(loader, config, prefix, index, &limits))
            .collect::<Result<_>>()?;
        let norm_dtypes = [DType::F32, if head.is_some() { precision.activations } else { DType::F32 }];
        let norm = loader.rms_norm(&format!("{prefix}norm"), hidden, config.rms_norm_eps, norm_dtypes, rows)?;
        loader.finish();
        Ok(Self {
            config: config.clone(),
            precision,
            limits,
            embedding,
            rotary,
            layers,
            gather: RowGather::new(ctx, DType::F32, rows, hidden)?,
            norm,
            head,
            inputs: StepInputs::new(ctx, &limits)?,
            activations: Activations::new(ctx, config, precision, rows)?,
            wanted: Rows::new(ctx, DType::F32, limits.wanted(), hidden)?,
            steps: Steps::default(),
        })
    }

    /// The description that it was loaded from.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Dtypes of weights, activations, products and cache.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// How large a step can be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The forward passes so far.
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Bytes of packed weights and tables.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::weight_bytes).sum();
        layers + self.head.as_ref().map_or(0, Linear::weight_bytes) + self.embedding.own_bytes()
    }

    /// Bytes of weights that a step of few tokens reads: all but an embedding table of its own.
    pub fn weight_bytes_per_step(&self) -> usize {
        self.weight_bytes() - self.embedding.own_bytes()
    }

    /// The rows that serve this decoder: a name of the place, and the rows chosen there for one row and for many.
    pub fn kernels(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut all = vec![("embedding", self.embedding.kernels()), ("rotary", self.rotary.kernels())];
        if let Some(layer) = self.layers.first() {
            all.extend([
                ("norm", layer.attention_norm.kernels()),
                ("qkv", layer.qkv.kernels()),
                ("kv append", layer.append.kernels()),
                ("attention", layer.attention.kernels()),
                ("output", layer.output.kernels()),
                ("gate and up", layer.gate_up.kernels()),
                ("down", layer.down.kernels()),
            ]);
        }
        all.extend(self.head.as_ref().map(|head| ("head", head.kernels())));
        all
    }

    /// Runs every token of `batch` through all layers and appends its keys and values to the cache. What
    /// [`Decoder::head`] needs of it stays until the next pass.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a batch beyond the limits, or a failed device.
    pub fn forward(&mut self, ctx: &Context, cache: &mut KvCache, batch: &Batch) -> Result<()> {
        self.check(batch)?;
        let rows = batch.tokens().len();
        self.steps.latest = 0;
        if rows == 0 {
            return Ok(());
        }
        self.inputs.upload(ctx, batch)?;
        let step = self.inputs.step(ctx, batch, &self.rotary)?;
        let x = &mut self.activations;
        self.embedding.run(ctx, self.inputs.tokens.read()?, x.hidden.write(rows)?)?;
        for (layer, layer_cache) in self.layers.iter().zip(cache.layers_mut()) {
            layer.run(&step, layer_cache, x)?;
        }
        let Steps { count, largest, .. } = self.steps;
        self.steps = Steps { count: count + 1, largest: largest.max(rows), latest: rows };
        Ok(())
    }

    /// Writes the logits of some rows of the latest forward pass, in the order of `rows`, which are at most
    /// [`Limits::max_logits`], to the first rows of `logits`, f32 `[.., vocab]`.
    ///
    /// # Errors
    /// Rows that the pass did not have, more than the limit, or a failed device.
    pub fn head(&mut self, ctx: &Context, rows: &[u32], logits: &mut Tensor) -> Result<()> {
        self.take(ctx, rows)?;
        let (n, x) = (rows.len(), &mut self.activations);
        let Some(head) = &self.head else {
            return Err(Error::Input("logits of a decoder that was loaded without a head".to_owned()));
        };
        if n > 0 {
            self.norm.run(ctx, self.wanted.read(n)?, x.normed.write(n)?)?;
            let out = logits.view_mut()?.with_layout(Layout::contiguous(&[n, self.config.vocab_size])?)?;
            head.run(ctx, x.normed.read(n)?, out)?;
        }
        Ok(())
    }

    /// Writes the normed hidden states of some rows of the latest forward pass, in the order of `rows`, to the first
    /// rows of `out`, f32 `[.., hidden_size]`. For decoders loaded without a head.
    ///
    /// # Errors
    /// Rows that the pass did not have, a decoder with a head, or a failed device.
    pub fn hidden(&mut self, ctx: &Context, rows: &[u32], out: &mut Tensor) -> Result<()> {
        if self.head.is_some() {
            return Err(Error::Input("hidden states of a decoder that was loaded with a head".to_owned()));
        }
        self.take(ctx, rows)?;
        let n = rows.len();
        if n > 0 {
            let out = out.view_mut()?.with_layout(Layout::contiguous(&[n, self.config.hidden_size])?)?;
            self.norm.run(ctx, self.wanted.read(n)?, out)?;
        }
        Ok(())
    }

    /// Gathers rows of the latest pass's residual stream.
    fn take(&mut self, ctx: &Context, rows: &[u32]) -> Result<()> {
        let (n, most, had) = (rows.len(), self.limits.wanted(), self.steps.latest);
        if n > most || rows.iter().any(|&row| row as usize >= had) {
            return Err(Error::Input(format!("{n} rows of a step that had {had}; {most} are given at once")));
        }
        if n == 0 {
            return Ok(());
        }
        self.inputs.wanted.upload(ctx, rows)?;
        let hidden = self.activations.hidden.read(self.limits.max_rows)?;
        Ok(self.gather.run(ctx, hidden, self.inputs.wanted.read()?, self.wanted.write(n)?)?)
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let vocab = self.config.vocab_size;
        if let Some(token) = batch.tokens().iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::Input(format!("token {token} is not in the vocabulary of {vocab} tokens")));
        }
        let (rows, sequences, keys) = (batch.tokens().len(), batch.kv_len().len(), batch.max_kv());
        let Limits { max_rows, max_sequences, context, .. } = self.limits;
        if rows > max_rows || sequences > max_sequences || keys > context {
            return Err(Error::Input(format!(
                "a step of {rows} tokens in {sequences} sequences of up to {keys}; the model was loaded for {max_rows} \
                 tokens in {max_sequences} sequences of up to {context}"
            )));
        }
        Ok(())
    }
}

impl StepInputs {
    fn new(ctx: &Context, limits: &Limits) -> Result<Self> {
        let &Limits { max_rows, max_sequences, context, block_size, .. } = limits;
        let blocks = max_sequences * context.div_ceil(block_size);
        Ok(Self {
            tokens: Values::new(ctx, DType::U32, max_rows)?,
            positions: Values::new(ctx, DType::I32, max_rows)?,
            slots: Values::new(ctx, DType::I64, max_rows)?,
            query_start: Values::new(ctx, DType::I32, max_sequences + 1)?,
            kv_len: Values::new(ctx, DType::I32, max_sequences)?,
            block_tables: Values::new(ctx, DType::U32, blocks)?,
            wanted: Values::new(ctx, DType::U32, limits.wanted())?,
            laid_out: Vec::with_capacity(blocks),
        })
    }

    fn upload(&mut self, ctx: &Context, batch: &Batch) -> Result<()> {
        self.tokens.upload(ctx, batch.tokens())?;
        self.positions.upload(ctx, batch.positions())?;
        self.slots.upload(ctx, batch.slots())?;
        self.query_start.upload(ctx, batch.query_start())?;
        self.kv_len.upload(ctx, batch.kv_len())?;
        batch.lay_out_block_tables(&mut self.laid_out);
        self.block_tables.upload(ctx, &self.laid_out)
    }

    fn step<'a>(&'a self, ctx: &'a Context, batch: &Batch, rotary: &'a Rotary) -> Result<Step<'a>> {
        let sequences = Sequences {
            query_start: self.query_start.read()?,
            kv_len: self.kv_len.read()?,
            block_table: Some(self.block_tables.read_rows(batch.blocks_per_table())?),
            max_query: batch.max_query(),
            max_kv: batch.max_kv(),
        };
        let (positions, slots) = (self.positions.read()?, self.slots.read()?);
        Ok(Step { ctx, rows: batch.tokens().len(), rotary, positions, slots, sequences })
    }
}
