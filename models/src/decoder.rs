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
mod feed_forward;
mod layer;
mod residual;

use sinew_ops::Context;
use sinew_ops::layers::{
    Add, Embedding, LinearOptions, Norm, NormedLinear, Place, Rotary, RowGather, Scale, Sequences, Softcap, push_unlike,
};
use sinew_tensor::{DType, Layout, Tensor, View};

use self::batch::Batch;
use self::layer::{Activations, Layer, Step};
use self::residual::{input_norm, norm_over};
use crate::activations::{HostInput, Rows};
use crate::cache::{Form, KvCache, LayerCache};
use crate::checkpoint::Checkpoint;
use crate::config::{ExpertsConfig, LayerConfig, check_tokens};
use crate::error::count_of;
use crate::limits::Limits;
use crate::load::{Counted, LinearSpec, Loaded, Loader, Maker, Part, Stage, WeightBytes, rotaries};
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

/// What the host gives to a step.
#[derive(Debug)]
struct StepInputs<S: Stage = Loaded> {
    tokens: S::Of<HostInput>,
    positions: S::Of<HostInput>,
    /// The same as rows of a table, where there is one.
    position_ids: Option<S::Of<HostInput>>,
    query_start: S::Of<HostInput>,
    kv_len: S::Of<HostInput>,
    /// For each group of layers, the slots and the block tables.
    places: Vec<[S::Of<HostInput>; 2]>,
    wanted: S::Of<HostInput>,
    /// Block tables on the host: kept, so that a step allocates nothing.
    laid_out: S::Of<Vec<u32>>,
    ids: S::Of<Vec<u32>>,
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
    /// Those of [`Decoder::load`] for tensors, and those of [`Checkpoint::refuse_unread`].
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
    pub fn steps(&self) -> Passes {
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
        let prefix = maker.checkpoint().prefix_of(names.embedding, names.prefixes)?;
        let at = |name: &str| format!("{prefix}{name}");
        let embedding = Part::whole(at(names.embedding), vocab);
        let (end, embedding) = match limits.max_logits {
            None => {
                let norm = maker.norm(norm_over(config, at(names.norm), hidden, DType::F32), rows)?;
                let states = maker.rows(DType::F32, rows, hidden)?;
                (End::States(Box::new(norm), states), maker.table(embedding, hidden)?)
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
                let (head, embedding) = match Head::of(config, maker.checkpoint())? {
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

/// What logits are products with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// The embedding.
    Tied,
    /// A weight of this name.
    Own(&'static str),
    /// The same, though the config ties it to the embedding: other programs know it by its usual tensor alone.
    OwnThoughTied(&'static str),
}

impl Head {
    /// That of a checkpoint: one that it has is used whatever the config says.
    pub(crate) fn of(config: &DecoderConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let (heads, is_tied) = (config.names.heads, config.tie_word_embeddings);
        for head in heads {
            if checkpoint.has_weight(head)? {
                return Ok(if is_tied { Self::OwnThoughTied(head) } else { Self::Own(head) });
            }
        }
        Ok(if is_tied { Self::Tied } else { Self::Own(heads.first().copied().unwrap_or_default()) })
    }
}

impl<S: Stage> StepInputs<S> {
    fn make(maker: &mut impl Maker<S>, config: &DecoderConfig, limits: &Limits) -> Result<Self> {
        let &Limits { max_rows, max_sequences, context, block_size, .. } = limits;
        let blocks = max_sequences.saturating_mul(context.div_ceil(block_size));
        let ids = if config.learned_positions { max_rows } else { 0 };
        let groups = Form::count(config, &maker.precision());
        Ok(Self {
            tokens: maker.host_input(DType::U32, max_rows)?,
            positions: maker.host_input(DType::I32, max_rows)?,
            position_ids: config.learned_positions.then(|| maker.host_input(DType::U32, ids)).transpose()?,
            query_start: maker.host_input(DType::I32, max_sequences.saturating_add(1))?,
            kv_len: maker.host_input(DType::I32, max_sequences)?,
            places: (0..groups)
                .map(|_| Ok([maker.host_input(DType::I64, max_rows)?, maker.host_input(DType::U32, blocks)?]))
                .collect::<Result<_>>()?,
            wanted: maker.host_input(DType::U32, limits.max_wanted())?,
            laid_out: maker.planned(|_| Ok(Vec::with_capacity(blocks)))?,
            ids: maker.planned(|_| Ok(Vec::with_capacity(ids)))?,
        })
    }
}

impl StepInputs {
    fn upload(&mut self, ctx: &Context, batch: &Batch) -> Result<()> {
        self.tokens.upload(ctx, batch.tokens())?;
        self.positions.upload(ctx, batch.positions())?;
        if let Some(ids) = &mut self.position_ids {
            self.ids.clear();
            // Positions are not negative.
            self.ids.extend(batch.positions().iter().map(|&position| position as u32));
            ids.upload(ctx, &self.ids)?;
        }
        self.query_start.upload(ctx, batch.query_start())?;
        self.kv_len.upload(ctx, batch.kv_len())?;
        for ([slots, tables], places) in self.places.iter_mut().zip(batch.places()) {
            slots.upload(ctx, places.slots())?;
            places.lay_out_block_tables(&mut self.laid_out);
            tables.upload(ctx, &self.laid_out)?;
        }
        Ok(())
    }

    /// What a layer is given.
    fn step<'a>(
        &'a self,
        ctx: &'a Context,
        batch: &Batch,
        ropes: &'a [Rotary],
        of_layer: &LayerCache<'_>,
    ) -> Result<Step<'a>> {
        let places = |group: usize| -> Result<[View<'a>; 2]> {
            let [slots, tables] = &self.places[group];
            Ok([slots.read()?, tables.read_rows(batch.places()[group].blocks_per_table())?])
        };
        let [slots, block_table] = places(of_layer.group)?;
        let old = of_layer.old.as_ref().map(|&(group, _)| places(group)).transpose()?;
        let sequences = Sequences {
            query_start: self.query_start.read()?,
            kv_len: self.kv_len.read()?,
            block_table: Some(block_table),
            max_query: batch.max_query(),
            max_kv: batch.max_kv(),
        };
        Ok(Step { ctx, rows: batch.tokens().len(), ropes, positions: self.positions.read()?, slots, sequences, old })
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;
    use serde_json::json;

    use super::*;
    use crate::{ModelConfig, Tensors};

    #[test]
    fn a_head_is_the_embedding_where_the_config_says_so_and_there_is_none() {
        let head = |is_tied: bool, names: &[&str]| {
            let config = json!({
                "model_type": "llama", "hidden_size": 8, "vocab_size": 16, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
                "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": is_tied,
            });
            let config = ModelConfig::from_json(&config.to_string()).expect("a config");
            let view = |name| (name, TensorView::new(Dtype::BF16, vec![1], &[0; 2]).expect("a number"));
            let file = safetensors::serialize(names.iter().map(view), None).expect("a file");
            let checkpoint = Checkpoint::new(Tensors::from_bytes(file).expect("tensors"), None);
            Head::of(config.as_decoder().expect("a decoder"), &checkpoint).expect("a head")
        };
        let (own, none) = (&["lm_head.weight", "other"][..], &["other"][..]);
        assert_eq!((head(false, own), head(true, own)), (Head::Own("lm_head"), Head::OwnThoughTied("lm_head")));
        // What is missing is said when it is loaded.
        assert_eq!((head(false, none), head(true, none)), (Head::Own("lm_head"), Head::Tied));
    }
}
