//! One layer of a decoder.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionStatic, F32Bits, Inputs, KvAppend, KvSource, LinearOptions, Norm, NormedLinear, OldInputs,
    Place, Rotary, Turn,
};
use sinew_tensor::{DType, Tensor};

use super::dense::Dense;
use super::experts::Experts;
use super::residual::{Output, input_norm, norm_over};
use super::step::{Activations, Step};
use crate::activations::Heads;
use crate::cache::LayerCache;
use crate::config::{FeedForward as Kind, LayerConfig, QkNorm, Qkv};
use crate::load::{LinearSpec, Loaded, Maker, Part, Stage};
use crate::load_options::Limits;
use crate::precision::Precision;
use crate::{DecoderConfig, Result};

/// Attention and feed-forward, each added to the residual stream.
#[derive(Debug)]
pub(super) struct Layer<S: Stage = Loaded> {
    /// Of the stream, or of the stream normed.
    qkv: S::Of<NormedLinear>,
    /// Norms of queries and of keys, each over these heads of a row of `qkv`.
    qk_norm: Option<[(S::Of<Norm>, Heads); 2]>,
    /// Which of the decoder's rotary embeddings turns queries and keys.
    rope: Option<usize>,
    append: S::Of<KvAppend>,
    attention: S::Of<Attention>,
    /// The logits of the heads' attention sinks.
    sinks: Option<S::Of<Tensor>>,
    output: Output<S>,
    feed_forward: FeedForward<S>,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
    /// Whether the feed-forward layer reads the stream before attention is added.
    parallel: bool,
}

impl<S: Stage> Layer<S> {
    /// Makes the layer `index` of the weights under `prefix`.
    pub(super) fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        ropes: &[Rotary],
        prefix: &str,
        index: usize,
        limits: &Limits,
    ) -> Result<Self> {
        let precision = maker.precision();
        let Precision { compute, kv, .. } = precision;
        let (names, hidden, layer, rows) = (config.names, config.hidden_size, &config.layers[index], limits.max_rows);
        let (num_heads, num_kv_heads, head_dim) =
            (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let at = |name: &str| format!("{prefix}{}{index}.{name}", names.layer);

        let (norm, dtype) = input_norm(config, precision, names.attention_norm.map(at));
        let qkv = LinearSpec {
            parts: qkv_parts(config, &at),
            k: hidden,
            bias: config.qkv_bias,
            options: LinearOptions::new(dtype, DType::F32, compute),
            max_rows: rows,
        };
        let output = Part::whole(at(names.attention_output), hidden).transposed(names.transposed);
        let append = |ctx: &Context| {
            let append = KvAppend::new(ctx, num_kv_heads, head_dim, DType::F32, kv, limits.block_size)?;
            let append = match layer.rope {
                Some(rope) => append.turning(ctx, &ropes[rope])?,
                None => append,
            };
            match precision.old_kv_of(layer.window) {
                Some(old) => append.with_old(ctx, old.dtype),
                None => Ok(append),
            }
        };
        Ok(Self {
            append: maker.planned(append)?,
            qkv: maker.normed_linear(norm, qkv)?,
            qk_norm: config.qk_norm.map(|over| make_qk_norms(maker, config, over, &at, rows)).transpose()?,
            rope: layer.rope,
            attention: maker.attention(attention_problem(config, layer, precision, limits), rows, limits.context)?,
            sinks: names.sinks.map(|name| maker.sinks(&at(name), num_heads)).transpose()?,
            output: Output::make(
                maker,
                config,
                output,
                (num_heads * head_dim, config.o_bias),
                names.attention_output_norm.map(at),
                rows,
            )?,
            feed_forward: FeedForward::make(maker, config, layer, &at, rows)?,
            heads: Heads::qkv(num_heads, num_kv_heads, head_dim),
            parallel: config.parallel_residual,
        })
    }
}

impl Layer {
    /// `h += attention(h)`, then `h += feed_forward(h)`; or both of one `h`.
    pub(super) fn run(&self, step: &Step<'_>, cache: &mut LayerCache<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        self.attend(step, cache, x)?;
        if self.parallel {
            self.feed_forward.run(step, x)?;
        }
        self.output.run(ctx, n, x.attended.read(n)?, &mut x.residual)?;
        if !self.parallel {
            self.feed_forward.run(step, x)?;
        }
        Ok(())
    }

    fn attend(&self, step: &Step<'_>, cache: &mut LayerCache<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, ropes, positions, slots, sequences, old } = step;
        let (keys, values) = &mut *cache.cache;
        let [q, k, v] = self.heads;
        self.qkv.run(ctx, x.residual.hidden.read(n)?, Some(x.normed.write(n)?), x.qkv.write(n)?)?;
        for (norm, heads) in self.qk_norm.iter().flatten() {
            norm.run_in_place(ctx, x.qkv.write_heads(n, *heads)?)?;
        }
        let turn = self.rope.map(|rope| Turn { rotary: &ropes[rope], positions });
        if let Some(turn) = turn {
            turn.rotary.run_in_place(ctx, x.qkv.write_heads(n, q)?, positions)?;
            self.append.turn(ctx, x.qkv.write_heads(n, k)?, turn)?;
        }
        let new = [x.qkv.read_heads(n, k)?, x.qkv.read_heads(n, v)?];
        self.append.run(ctx, new, turn, slots, [keys.view_mut()?, values.view_mut()?])?;
        let old = match (&mut cache.old, old) {
            (Some((_, (keys, values))), Some([slots, block_table])) => {
                self.append.run_old(ctx, new, turn, slots, [keys.view_mut()?, values.view_mut()?])?;
                Some(OldInputs { k: keys.view(), v: values.view(), block_table })
            }
            _ => None,
        };
        let inputs = Inputs {
            q: x.qkv.read_heads(n, q)?,
            k: keys.view(),
            v: values.view(),
            mask: None,
            old,
            sinks: self.sinks.as_ref().map(Tensor::view),
        };
        Ok(self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?)
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<Place> {
        let mut all = self.qkv.kernels(["attention norm", "qkv"]);
        if let Some([(q, _), (k, _)]) = &self.qk_norm {
            all.extend([("query norm", q.kernels()), ("key norm", k.kernels())]);
        }
        all.extend(self.append.kernels(["key rotary", "kv append"]));
        all.push(("attention", self.attention.kernels()));
        all.extend(self.output.kernels(["output", "attention output norm"]));
        all.extend(self.feed_forward.kernels());
        all
    }
}

/// The matrices of queries, keys and values, in the order of [`Heads::qkv`].
fn qkv_parts(config: &DecoderConfig, at: &dyn Fn(&str) -> String) -> Vec<Part> {
    let [q, kv] = [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads * config.head_dim);
    let part = |name: &str, n: usize| Part::whole(at(name), n).transposed(config.names.transposed);
    match &config.names.qkv {
        Qkv::Separate(names) => names.iter().zip([q, kv, kv]).map(|(name, n)| part(name, n)).collect(),
        Qkv::Stacked(name) => vec![part(name, q + 2 * kv)],
        Qkv::ByHead(name) => vec![part(name, 3 * q).alternating(3, config.head_dim)],
    }
}

/// The norms of queries and of keys, and the heads that each is over.
fn make_qk_norms<S: Stage>(
    maker: &mut impl Maker<S>,
    config: &DecoderConfig,
    over: QkNorm,
    at: &dyn Fn(&str) -> String,
    rows: usize,
) -> Result<[(S::Of<Norm>, Heads); 2]> {
    let [q, k, _] = Heads::qkv(config.num_attention_heads, config.num_key_value_heads, config.head_dim);
    let mut make = |name: &str, heads: Heads| -> Result<_> {
        let heads = match over {
            QkNorm::Head => heads,
            QkNorm::Token => heads.joined(),
        };
        Ok((maker.norm(norm_over(config, at(name), heads.head_dim, DType::F32), rows)?, heads))
    };
    let [q_name, k_name] = config.names.qk_norms;
    Ok([make(q_name, q)?, make(k_name, k)?])
}

fn attention_problem(
    config: &DecoderConfig,
    layer: &LayerConfig,
    precision: Precision,
    limits: &Limits,
) -> AttentionStatic {
    let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    let dtypes = [DType::F32, precision.kv, precision.activations];
    AttentionStatic {
        scale: F32Bits::new(layer.attention_scale as f32),
        causal: true,
        window: layer.window,
        softcap: config.attention_softcap.map(|cap| F32Bits::new(cap as f32)),
        kv_source: KvSource::Paged { block_size: limits.block_size },
        old: precision.old_kv_of(layer.window),
        sinks: config.has_sinks(),
        ..AttentionStatic::new(heads, kv_heads, config.head_dim, dtypes, precision.compute)
    }
}

/// The feed-forward sublayer: one for all tokens, or experts.
#[derive(Debug)]
enum FeedForward<S: Stage = Loaded> {
    Dense(Box<Dense<S>>),
    Experts(Box<Experts<S>>),
}

impl<S: Stage> FeedForward<S> {
    /// Makes the sublayer of a layer; `at` gives the names of its tensors.
    fn make(
        maker: &mut impl Maker<S>,
        config: &DecoderConfig,
        layer: &LayerConfig,
        at: &dyn Fn(&str) -> String,
        rows: usize,
    ) -> Result<Self> {
        Ok(match layer.feed_forward {
            Kind::Dense { width } => Self::Dense(Box::new(Dense::make(maker, config, width, at, rows)?)),
            Kind::Experts(experts) => Self::Experts(Box::new(Experts::make(maker, config, experts, at, rows)?)),
        })
    }
}

impl FeedForward {
    /// Adds its output to the residual stream.
    fn run(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        match self {
            Self::Dense(dense) => dense.run(step, x),
            Self::Experts(experts) => experts.run(step, x),
        }
    }

    /// The kernels chosen for its parts.
    fn kernels(&self) -> Vec<Place> {
        match self {
            Self::Dense(dense) => dense.kernels(),
            Self::Experts(experts) => experts.kernels(),
        }
    }
}
