//! One layer of a decoder, and what it works on.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Inputs, KvAppend, Linear, LinearOptions, Norm, Rotary, Sequences,
};
use sinew_tensor::{DType, Tensor, View};

use super::Limits;
use super::experts::ExpertActivations;
use super::feed_forward::FeedForward;
use super::stream::{Input, Output, Stream};
use crate::config::{LayerConfig, QkNorm, Qkv};
use crate::load::{Loader, Part, Precision};
use crate::scratch::{Heads, Rows};
use crate::{DecoderConfig, Result};

/// Attention and feed-forward, each added to the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) input: Input,
    pub(super) qkv: Linear,
    /// Norms of queries and of keys, each over these heads of a row of `qkv`.
    qk_norm: Option<[(Norm, Heads); 2]>,
    /// Which of the decoder's rotary embeddings turns queries and keys.
    rope: Option<usize>,
    pub(super) append: KvAppend,
    pub(super) attention: Attention,
    pub(super) output: Output,
    pub(super) feed_forward: FeedForward,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
    /// Whether the feed-forward layer reads the stream before attention is added.
    parallel: bool,
}

/// Activations of one step; every layer uses the same.
#[derive(Debug)]
pub(super) struct Activations {
    pub(super) stream: Stream,
    pub(super) normed: Rows,
    qkv: Rows,
    attended: Rows,
    pub(super) gated: Rows,
    pub(super) experts: Option<ExpertActivations>,
}

/// What all layers of one step share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) ctx: &'a Context,
    pub(super) rows: usize,
    pub(super) ropes: &'a [Rotary],
    /// i32 `[rows]`.
    pub(super) positions: View<'a>,
    /// i64 `[rows]`: where keys and values go.
    pub(super) slots: View<'a>,
    pub(super) sequences: Sequences<'a>,
}

impl Activations {
    pub(super) fn new(ctx: &Context, config: &DecoderConfig, precision: Precision, rows: usize) -> Result<Self> {
        let (hidden, activations) = (config.hidden_size, precision.activations);
        let (heads, kv_heads, d) = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        Ok(Self {
            stream: Stream::new(ctx, config, rows)?,
            normed: Rows::new(ctx, activations, rows, hidden)?,
            qkv: Rows::new(ctx, DType::F32, rows, (heads + 2 * kv_heads) * d)?,
            attended: Rows::new(ctx, activations, rows, heads * d)?,
            gated: Rows::new(ctx, activations, rows, config.dense_width())?,
            experts: config
                .experts()
                .map(|experts| ExpertActivations::new(ctx, config, experts, precision, rows))
                .transpose()?,
        })
    }
}

impl Layer {
    /// Loads, packs and plans the layer `index` of the weights under `prefix`.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        config: &DecoderConfig,
        prefix: &str,
        index: usize,
        limits: &Limits,
    ) -> Result<Self> {
        let Precision { compute, kv, .. } = loader.precision();
        let (names, layer, rows) = (config.names, &config.layers[index], limits.max_rows);
        let (num_heads, num_kv_heads, head_dim) =
            (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let at = |name: &str| format!("{prefix}{}{index}.{name}", names.layer);

        let ctx = loader.context().clone();
        let input = Input::load(loader, config, names.attention_norm.map(at), rows)?;
        let product = LinearOptions::new(input.dtype(loader), DType::F32, compute);
        let options = attention_options(config, layer, loader.precision(), limits);
        let output = Part::whole(at(names.attention_output), config.hidden_size).transposed(names.transposed);
        Ok(Self {
            qkv: loader.linear(&qkv_parts(config, &at), config.hidden_size, config.qkv_bias, product, rows)?,
            input,
            qk_norm: config.qk_norm.map(|over| load_qk_norms(loader, config, over, &at, rows)).transpose()?,
            rope: layer.rope,
            append: KvAppend::new(&ctx, num_kv_heads, head_dim, DType::F32, kv, limits.block_size)?,
            attention: Attention::new(&ctx, options, rows, limits.context)?,
            output: Output::load(
                loader,
                config,
                output,
                (num_heads * head_dim, config.o_bias),
                names.attention_output_norm.map(at),
                rows,
            )?,
            feed_forward: FeedForward::load(loader, config, layer, &at, rows)?,
            heads: Heads::qkv(num_heads, num_kv_heads, head_dim),
            parallel: config.parallel_residual,
        })
    }

    /// `h += attention(h)`, then `h += feed_forward(h)`; or both of one `h`.
    pub(super) fn run(&self, step: &Step<'_>, cache: &mut (Tensor, Tensor), x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        self.attend(step, cache, x)?;
        if self.parallel {
            self.feed_forward.run(step, x)?;
        }
        self.output.run(ctx, n, x.attended.read(n)?, &mut x.stream)?;
        if !self.parallel {
            self.feed_forward.run(step, x)?;
        }
        Ok(())
    }

    fn attend(&self, step: &Step<'_>, cache: &mut (Tensor, Tensor), x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, ropes, positions, slots, sequences } = step;
        let (keys, values) = cache;
        let [q, k, v] = self.heads;
        self.qkv.run(ctx, self.input.read(ctx, n, &x.stream, &mut x.normed)?, x.qkv.write(n)?)?;
        for (norm, heads) in self.qk_norm.iter().flatten() {
            norm.run_in_place(ctx, x.qkv.write_heads(n, *heads)?)?;
        }
        if let Some(rope) = self.rope {
            ropes[rope].run_in_place(ctx, x.qkv.write_heads(n, q)?, positions)?;
            ropes[rope].run_in_place(ctx, x.qkv.write_heads(n, k)?, positions)?;
        }
        let (new_keys, new_values) = (x.qkv.read_heads(n, k)?, x.qkv.read_heads(n, v)?);
        self.append.run(ctx, new_keys, new_values, slots, keys.view_mut()?, values.view_mut()?)?;
        let inputs = Inputs { q: x.qkv.read_heads(n, q)?, k: keys.view(), v: values.view(), mask: None };
        Ok(self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?)
    }

    /// The rows chosen for its parts.
    pub(super) fn kernels(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut all: Vec<_> = self.input.norm.iter().map(|norm| ("norm", norm.kernels())).collect();
        all.extend([
            ("qkv", self.qkv.kernels()),
            ("kv append", self.append.kernels()),
            ("attention", self.attention.kernels()),
            ("output", self.output.product.kernels()),
        ]);
        all.extend(self.feed_forward.kernels());
        all
    }

    /// Bytes of its packed weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.qkv.weight_bytes() + self.output.product.weight_bytes() + self.feed_forward.weight_bytes()
    }
}

/// The matrices of queries, keys and values in the order of [`Heads::qkv`].
fn qkv_parts(config: &DecoderConfig, at: &dyn Fn(&str) -> String) -> Vec<Part> {
    let d = config.head_dim;
    let [q, kv] = [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads * d);
    let parts = match &config.names.qkv {
        Qkv::Separate(names) => names.iter().zip([q, kv, kv]).map(|(name, n)| Part::whole(at(name), n)).collect(),
        Qkv::Stacked(name) => vec![Part::whole(at(name), q + 2 * kv)],
        Qkv::ByHead(name) => {
            let all = Part::split(&at(name), &vec![d; 3 * config.num_attention_heads]);
            (0..3).flat_map(|of| all.iter().skip(of).step_by(3).cloned()).collect()
        }
    };
    parts.into_iter().map(|part: Part| part.transposed(config.names.transposed)).collect()
}

fn load_qk_norms(
    loader: &mut Loader<'_>,
    config: &DecoderConfig,
    over: QkNorm,
    at: &dyn Fn(&str) -> String,
    rows: usize,
) -> Result<[(Norm, Heads); 2]> {
    let [q, k, _] = Heads::qkv(config.num_attention_heads, config.num_key_value_heads, config.head_dim);
    let [q_name, k_name] = config.names.qk_norms;
    let mut load = |name: &str, heads: Heads| -> Result<_> {
        let heads = match over {
            QkNorm::Head => heads,
            QkNorm::Token => heads.joined(),
        };
        let dtypes = [DType::F32; 2];
        let norm = loader.norm(&at(name), heads.head_dim, config.norm, config.norm_eps, dtypes, rows)?;
        Ok((norm, heads))
    };
    Ok([load(q_name, q)?, load(k_name, k)?])
}

fn attention_options(
    config: &DecoderConfig,
    layer: &LayerConfig,
    precision: Precision,
    limits: &Limits,
) -> AttentionOptions {
    AttentionOptions {
        num_heads: config.num_attention_heads,
        num_kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        q: DType::F32,
        kv: precision.kv,
        output: precision.activations,
        compute: precision.compute,
        scale: layer.attention_scale as f32,
        causal: true,
        window: layer.window,
        softcap: config.attention_softcap.map(|cap| cap as f32),
        block_size: Some(limits.block_size),
        mask: None,
    }
}
