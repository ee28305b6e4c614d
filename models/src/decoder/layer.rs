//! One layer of a decoder, and what it works on.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Inputs, KvAppend, Linear, LinearOptions, Norm, Rotary, Sequences,
};
use sinew_tensor::{DType, Tensor, View};

use super::Limits;
use crate::load::{Loader, Precision};
use crate::scratch::{Heads, Rows};
use crate::{DecoderConfig, Result};

/// Attention and feed-forward, each with a norm before it and added to the residual stream.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Norm,
    pub(super) qkv: Linear,
    /// Norms of each query and key head.
    qk_norm: Option<[Norm; 2]>,
    pub(super) append: KvAppend,
    pub(super) attention: Attention,
    pub(super) output: Linear,
    mlp_norm: Norm,
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
}

/// Activations of one step; every layer uses the same.
#[derive(Debug)]
pub(super) struct Activations {
    /// The residual stream.
    pub(super) hidden: Rows,
    pub(super) normed: Rows,
    qkv: Rows,
    attended: Rows,
    gated: Rows,
}

/// What all layers of one step share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) ctx: &'a Context,
    pub(super) rows: usize,
    pub(super) rotary: &'a Rotary,
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
            hidden: Rows::new(ctx, DType::F32, rows, hidden)?,
            normed: Rows::new(ctx, activations, rows, hidden)?,
            qkv: Rows::new(ctx, DType::F32, rows, (heads + 2 * kv_heads) * d)?,
            attended: Rows::new(ctx, activations, rows, heads * d)?,
            gated: Rows::new(ctx, activations, rows, config.intermediate_size)?,
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
        let Precision { activations, compute, kv, .. } = loader.precision();
        let (hidden, width, rows) = (config.hidden_size, config.intermediate_size, limits.max_rows);
        let (num_heads, num_kv_heads, head_dim) =
            (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        let at = |name: &str| format!("{prefix}layers.{index}.{name}");
        let part = |name: &str, n: usize| (at(name), n);

        let product = LinearOptions::new(activations, DType::F32, compute);
        // The residual stream is the product's own output: h += W·x.
        let into_residual = product.clone().accumulate();
        let gated =
            LinearOptions { gated: Some(config.hidden_act), ..LinearOptions::new(activations, activations, compute) };
        let norm = |loader: &mut Loader<'_>, name: &str| {
            loader.rms_norm(&at(name), hidden, config.rms_norm_eps, [DType::F32, activations], rows)
        };
        let head_norm = |loader: &mut Loader<'_>, name: &str| {
            loader.rms_norm(&at(name), head_dim, config.rms_norm_eps, [DType::F32; 2], rows)
        };
        let attention = AttentionOptions {
            num_heads,
            num_kv_heads,
            head_dim,
            q: DType::F32,
            kv,
            output: activations,
            compute,
            scale: (head_dim as f64).powf(-0.5) as f32,
            causal: true,
            window: config.sliding_window.get(index).copied().flatten(),
            block_size: Some(limits.block_size),
            mask: None,
        };
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|name| format!("self_attn.{name}"));
        let qkv = [part(&qkv[0], q_width), part(&qkv[1], kv_width), part(&qkv[2], kv_width)];
        let output = [part("self_attn.o_proj", hidden)];
        let gate_up = [part("mlp.gate_proj", width), part("mlp.up_proj", width)];
        let down = [part("mlp.down_proj", hidden)];

        let ctx = loader.context().clone();
        Ok(Self {
            attention_norm: norm(loader, "input_layernorm")?,
            qkv: loader.linear(&qkv, hidden, config.qkv_bias, product, rows)?,
            qk_norm: match config.qk_norm {
                true => Some([head_norm(loader, "self_attn.q_norm")?, head_norm(loader, "self_attn.k_norm")?]),
                false => None,
            },
            append: KvAppend::new(&ctx, num_kv_heads, head_dim, DType::F32, kv, limits.block_size)?,
            attention: Attention::new(&ctx, attention, rows, limits.context)?,
            output: loader.linear(&output, q_width, config.o_bias, into_residual.clone(), rows)?,
            mlp_norm: norm(loader, "post_attention_layernorm")?,
            gate_up: loader.linear(&gate_up, hidden, config.mlp_bias, gated, rows)?,
            down: loader.linear(&down, width, config.mlp_bias, into_residual, rows)?,
            heads: Heads::qkv(num_heads, num_kv_heads, head_dim),
        })
    }

    /// `h += attention(norm(h))`, then `h += feed_forward(norm(h))`.
    pub(super) fn run(&self, step: &Step<'_>, cache: &mut (Tensor, Tensor), x: &mut Activations) -> Result<()> {
        self.attend(step, cache, x)?;
        self.feed_forward(step, x)
    }

    fn attend(&self, step: &Step<'_>, cache: &mut (Tensor, Tensor), x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, rotary, positions, slots, sequences } = step;
        let (keys, values) = cache;
        let [q, k, v] = self.heads;
        self.attention_norm.run(ctx, x.hidden.read(n)?, x.normed.write(n)?)?;
        self.qkv.run(ctx, x.normed.read(n)?, x.qkv.write(n)?)?;
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            q_norm.run_in_place(ctx, x.qkv.write_heads(n, q)?)?;
            k_norm.run_in_place(ctx, x.qkv.write_heads(n, k)?)?;
        }
        rotary.run_in_place(ctx, x.qkv.write_heads(n, q)?, positions)?;
        rotary.run_in_place(ctx, x.qkv.write_heads(n, k)?, positions)?;
        let (new_keys, new_values) = (x.qkv.read_heads(n, k)?, x.qkv.read_heads(n, v)?);
        self.append.run(ctx, new_keys, new_values, slots, keys.view_mut()?, values.view_mut()?)?;
        let inputs = Inputs { q: x.qkv.read_heads(n, q)?, k: keys.view(), v: values.view(), mask: None };
        self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?;
        Ok(self.output.run(ctx, x.attended.read(n)?, x.hidden.write(n)?)?)
    }

    fn feed_forward(&self, step: &Step<'_>, x: &mut Activations) -> Result<()> {
        let &Step { ctx, rows: n, .. } = step;
        self.mlp_norm.run(ctx, x.hidden.read(n)?, x.normed.write(n)?)?;
        self.gate_up.run(ctx, x.normed.read(n)?, x.gated.write(n)?)?;
        Ok(self.down.run(ctx, x.gated.read(n)?, x.hidden.write(n)?)?)
    }

    /// Bytes of its packed weights.
    pub(super) fn weight_bytes(&self) -> usize {
        [&self.qkv, &self.output, &self.gate_up, &self.down].into_iter().map(Linear::weight_bytes).sum()
    }
}
