//! The decoder, as a [`DecoderConfig`] describes it. Of most architectures:
//!
//! ```text
//! h  = embedding[token]
//! h += O · attention(rope(Q·n), rope(K·n), V·n)      n = norm(h)
//! h += down · (act(gate·n) ⊙ up·n)                   n = norm(h)
//! logits = head · norm(h)
//! ```
//! The residual stream `h` is f32. Q, K and V are one product, gate and up another; where the device has rows for it,
//! they and the head norm what they read themselves, and keys are turned on their way into the cache. Both residual
//! additions are epilogues of products. What else there may be (norms of queries, keys and of what is added, experts, no
//! gate, bounds on scores and logits) is where the description says it.

pub(crate) mod batch;
mod dense;
mod experts;
mod head;
mod layer;
mod residual;
mod step;

use sinew_ops::Context;
use sinew_ops::layers::{
    Add, Embedding, LinearOptions, Norm, NormedLinear, Place, Rotary, RowGather, Scale, Softcap, push_unlike,
};
use sinew_tensor::{DType, Layout, Tensor};

use self::batch::Batch;
pub(crate) use self::head::Head;
use self::layer::Layer;
use self::residual::{input_norm, norm_over};
use self::step::{Activations, StepInputs};
use crate::activations::Rows;
use crate::cache::KvCache;
use crate::config::{ExpertsConfig, LayerConfig, check_tokens};
use crate::error::count_of;
use crate::load::{Counted, LinearSpec, Loaded, Loader, Maker, Part, Stage, WeightBytes, rotaries};
use crate::load_options::Limits;
use crate::precision::Precision;
use crate::{DecoderConfig, Error, Result};

/// A decoder whose weights are packed and whose every step is planned: running one allocates nothing.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    precision: Precision,
    limits: Limits,
    parts: Parts,
    held: WeightBytes,
    passes: Passes,
}

/// What a decoder is made of.
#[derive(Debug)]
struct Parts<S: Stage = Loaded> {
    end: End<S>,
    embedding: S::Of<Embedding>,
    scale: Option<S::Of<Scale>>,
    positions: Option<(S::Of<Embedding>, S::Of<Add>)>,
    ropes: Vec<Rotary>,
    layers: Vec<Layer<S>>,
    gather: S::Of<RowGather>,
    inputs: StepInputs<S>,
    activations: Activations<S>,
    /// Residual streams of the rows whose logits are asked for.
    wanted: S::Of<Rows>,
}

/// What rows of the residual stream become after the last layer.
#[derive(Debug)]
enum End<S: Stage = Loaded> {
    /// Logits: the head of the rows normed, capped.
    Logits(Box<S::Of<NormedLinear>>, Option<S::Of<Softcap>>),
    /// The rows normed, and the room for them.
    States(Box<S::Of<Norm>>, S::Of<Rows>),
}

/// The forward passes that a decoder has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passes {
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
    pub(crate) fn load(loader: &mut Loader<'_>, config: &DecoderConfig, limits: Limits) -> Result<Self> {
        let limits = limits.capped();
        let parts = Parts::make(loader, config, &limits)?;
        loader.finish(config.names.spare)?;
        let (precision, held) = (loader.precision(), loader.held());
        Ok(Self { config: config.clone(), precision, limits, parts, held, passes: Passes::default() })
    }

    /// Has its parts counted, which are all but cache and logits.
    ///
    /// # Errors
    /// Those of [`Decoder::load`] for tensors, and those of [`Checkpoint::refuse_unread`](crate::checkpoint::Checkpoint::refuse_unread).
    pub(crate) fn count(maker: &mut impl Maker<Counted>, config: &DecoderConfig, limits: &Limits) -> Result<()> {
        Parts::make(maker, config, &limits.capped())?;
        maker.checkpoint().refuse_unread(config.names.spare)
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

    /// Turns queries and keys with the frequencies of sequences of up to `context` tokens from here on.
    ///
    /// # Errors
    /// Out of memory for their tables.
    pub(crate) fn rotate_for(&mut self, ctx: &Context, context: usize) -> Result<()> {
        let DecoderConfig { ropes, head_dim, .. } = &self.config;
        self.parts.ropes = rotaries(ctx, ropes, *head_dim, context, self.limits.context)?;
        Ok(())
    }

    /// The forward passes so far.
    pub fn passes(&self) -> Passes {
        self.passes
    }

    /// Bytes of its weights: packed ones, embedding tables, biases and the weights of norms.
    pub fn weight_bytes(&self) -> usize {
        let WeightBytes { tables, experts, others } = self.held;
        tables + experts + others
    }

    /// Bytes that a step of one token for each of so many sequences reads at most: weights but for rows of embedding
    /// tables, of experts no more than there are tokens for, and the keys and values of `length` tokens of each
    /// sequence, or of as many as a layer's window has.
    pub fn step_bytes(&self, sequences: usize, length: f64) -> f64 {
        let WeightBytes { experts, others, .. } = self.held;
        let used = |of: ExpertsConfig| experts / of.count * sequences.saturating_mul(of.per_token).min(of.count);
        let weights = others + self.config.experts().map_or(0, used);
        let (heads, head_dim) = (self.config.num_key_value_heads, self.config.head_dim);
        let read = |layer: &LayerConfig| self.precision.kv_bytes_read(layer.window, length, heads, head_dim);
        let read: f64 = self.config.layers.iter().map(read).sum();
        weights as f64 + sequences as f64 * read
    }

    /// The rows that serve this decoder: a name of the place, and the rows chosen there for one row and for many.
    pub fn kernels(&self) -> Vec<Place> {
        let mut all = vec![("embedding", self.parts.embedding.kernels())];
        all.extend(self.parts.ropes.first().map(|rotary| ("rotary", rotary.kernels())));
        // Layers differ in windows and in being experts or not.
        push_unlike(&mut all, self.parts.layers.iter().flat_map(Layer::kernels));
        match &self.parts.end {
            End::Logits(head, _) => all.extend(head.kernels(["last norm", "head"])),
            End::States(norm, _) => all.push(("last norm", norm.kernels())),
        }
        all
    }

    /// Runs every token of `batch` through all layers and appends its keys and values to the cache. What
    /// [`Decoder::head`] needs of it stays until the next pass.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a batch beyond the limits, or a failed device.
    pub(crate) fn forward(&mut self, ctx: &Context, cache: &mut KvCache, batch: &Batch) -> Result<()> {
        self.check(batch)?;
        let rows = batch.tokens().len();
        self.passes.latest = 0;
        if rows == 0 {
            return Ok(());
        }
        self.parts.inputs.upload(ctx, batch)?;
        let x = &mut self.parts.activations;
        self.parts.embedding.run(ctx, self.parts.inputs.tokens.read()?, x.residual.hidden.write(rows)?)?;
        if let Some(scale) = &self.parts.scale {
            scale.run(ctx, x.residual.hidden.write(rows)?)?;
        }
        if let (Some((table, add)), Some(ids)) = (&self.parts.positions, &self.parts.inputs.position_ids) {
            table.run(ctx, ids.read()?, x.residual.added.write(rows)?)?;
            add.run(ctx, x.residual.hidden.write(rows)?, x.residual.added.read(rows)?)?;
        }
        for (layer, mut of_layer) in self.parts.layers.iter().zip(cache.layers_mut()) {
            let step = self.parts.inputs.step(ctx, batch, &self.parts.ropes, &of_layer)?;
            layer.run(&step, &mut of_layer, x)?;
        }
        let Passes { count, largest, .. } = self.passes;
        self.passes = Passes { count: count + 1, largest: largest.max(rows), latest: rows };
        Ok(())
    }

    /// Writes the logits of some rows of the latest forward pass, in the order of `rows`, which are at most
    /// [`Limits::max_logits`], to the first rows of `logits`, f32 `[.., vocab]`.
    ///
    /// # Errors
    /// Rows that the pass did not have, more than the limit, or a failed device.
    pub(crate) fn head(&mut self, ctx: &Context, rows: &[u32], logits: &mut Tensor) -> Result<()> {
        let n = rows.len();
        self.gather(ctx, rows)?;
        let End::Logits(head, softcap) = &self.parts.end else {
            return Err(Error::Input("logits of a decoder that was loaded without a head".to_owned()));
        };
        if n == 0 {
            return Ok(());
        }
        let layout = Layout::contiguous(&[n, self.config.vocab_size])?;
        let normed = self.parts.activations.normed.write(n)?;
        head.run(ctx, self.parts.wanted.read(n)?, Some(normed), logits.view_mut()?.with_layout(layout)?)?;
        match softcap {
            Some(softcap) => Ok(softcap.run(ctx, logits, &layout)?),
            None => Ok(()),
        }
    }

    /// The last hidden states, normed, of some rows of the latest forward pass, in the order of `rows`, as values
    /// `[.., hidden_size]`. Only for a decoder without a head.
    ///
    /// # Errors
    /// Rows that the pass did not have, a decoder with a head, or a failed device.
    pub(crate) fn hidden(&mut self, ctx: &Context, rows: &[u32]) -> Result<Vec<f32>> {
        let n = rows.len();
        self.gather(ctx, rows)?;
        let End::States(norm, states) = &mut self.parts.end else {
            return Err(Error::Input("hidden states of a decoder that was loaded for logits".to_owned()));
        };
        if n == 0 {
            return Ok(Vec::new());
        }
        norm.run(ctx, self.parts.wanted.read(n)?, states.write(n)?)?;
        states.to_vec(ctx, n)
    }

    /// Brings some rows of the residual stream together in `wanted`.
    fn gather(&mut self, ctx: &Context, rows: &[u32]) -> Result<()> {
        let (n, most, had) = (rows.len(), self.limits.max_wanted(), self.passes.latest);
        if n > most || rows.iter().any(|&row| row as usize >= had) {
            return Err(Error::Input(format!("{n} rows are wanted: the step had {had}, and {most} are given at once")));
        }
        if n == 0 {
            return Ok(());
        }
        self.parts.inputs.wanted.upload(ctx, rows)?;
        let hidden = self.parts.activations.residual.hidden.read(self.limits.max_rows)?;
        Ok(self.parts.gather.run(ctx, hidden, self.parts.inputs.wanted.read()?, self.parts.wanted.write(n)?)?)
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        check_tokens(batch.tokens(), self.config.vocab_size)?;
        let (rows, sequences, keys) = (batch.tokens().len(), batch.kv_len().len(), batch.max_kv());
        let Limits { max_rows, max_sequences, context, .. } = self.limits;
        if rows > max_rows || sequences > max_sequences || keys > context {
            let step = |rows, sequences, keys| {
                let (tokens, sequences) = (count_of(rows, "token"), count_of(sequences, "sequence"));
                format!("{tokens} in {sequences} of up to {keys}")
            };
            return Err(Error::Input(format!(
                "a step of {}; the model was loaded for {}",
                step(rows, sequences, keys),
                step(max_rows, max_sequences, context)
            )));
        }
        Ok(())
    }
}

impl<S: Stage> Parts<S> {
    fn make(maker: &mut impl Maker<S>, config: &DecoderConfig, limits: &Limits) -> Result<Self> {
        let (names, hidden, vocab, rows) = (config.names, config.hidden_size, config.vocab_size, limits.max_rows);
        let precision = maker.precision();
        let source = names.embedding_source(config.tie_word_embeddings, maker.checkpoint())?;
        let prefix = source.prefix;
        let at = |name: &str| format!("{prefix}{name}");
        let (end, embedding) = match limits.max_logits {
            None => {
                let norm = maker.norm(norm_over(config, at(names.norm), hidden, DType::F32), rows)?;
                let states = maker.rows(DType::F32, rows, hidden)?;
                (End::States(Box::new(norm), states), maker.table(Part::whole(source.module, vocab), hidden)?)
            }
            Some(most) => {
                let (norm, dtype) = input_norm(config, precision, Some(at(names.norm)));
                let options = LinearOptions::new(dtype, DType::F32, precision.compute);
                let exact = precision.quantize.is_some_and(|quantize| !quantize.head);
                let head = |part: Part| LinearSpec {
                    parts: vec![part.exact(exact)],
                    k: hidden,
                    bias: false,
                    options,
                    max_rows: most,
                };
                let which = Head::of(config, maker.checkpoint(), &source)?;
                let embedding = Part::whole(source.module, vocab);
                let (head, embedding) = match which {
                    Head::Tied => maker.tied(norm, head(embedding))?,
                    Head::Own(name) | Head::OwnThoughTied(name) => {
                        let head = maker.normed_linear(norm, head(Part::whole(name, vocab)))?;
                        (head, maker.table(embedding, hidden)?)
                    }
                };
                let softcap = config.logit_softcap.map(|cap| maker.planned(|ctx| Softcap::new(ctx, DType::F32, cap)));
                (End::Logits(Box::new(head), softcap.transpose()?), embedding)
            }
        };
        let positions = match config.learned_positions {
            true => {
                let table = Part::whole(at(names.positions), config.max_position_embeddings);
                Some((maker.table(table, hidden)?, maker.planned(|ctx| Add::new(ctx, DType::F32))?))
            }
            false => None,
        };
        let scale = config.embedding_scale.map(|scale| maker.planned(|ctx| Scale::new(ctx, DType::F32, scale)));
        let ropes = maker.ropes(&config.ropes, config.head_dim, limits.context)?;
        let layers = (0..config.num_hidden_layers())
            .map(|index| Layer::make(maker, config, &ropes, prefix, index, limits))
            .collect::<Result<_>>()?;
        Ok(Self {
            end,
            embedding,
            scale: scale.transpose()?,
            positions,
            ropes,
            layers,
            gather: maker.planned(|ctx| RowGather::new(ctx, DType::F32, rows, hidden))?,
            inputs: StepInputs::make(maker, config, limits)?,
            activations: Activations::make(maker, config, rows)?,
            wanted: maker.rows(DType::F32, limits.max_wanted(), hidden)?,
        })
    }
}
