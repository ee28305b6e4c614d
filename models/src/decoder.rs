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

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Embedding, Inputs, KvAppend, Linear, LinearOptions, Norm, NormOptions, Rotary,
    RowGather, Sequences,
};
use sinew_tensor::{DType, Layout, Tensor};

use crate::batch::Batch;
use crate::cache::KvCache;
use crate::load::{Loader, Precision};
use crate::{DecoderConfig, Error, Result};

/// A decoder whose weights are packed and whose every step is planned: running one allocates nothing.
#[derive(Debug)]
pub struct Decoder {
    config: DecoderConfig,
    precision: Precision,
    embedding: Embedding,
    gather: RowGather,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    rotary: Rotary,
    scratch: Scratch,
    max_rows: usize,
    context: usize,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Norm,
    qkv: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    append: KvAppend,
    attention: Attention,
    output: Linear,
    mlp_norm: Norm,
    gate_up: Linear,
    down: Linear,
}

/// Activations of one step, for up to `max_rows` tokens; every layer uses the same.
#[derive(Debug)]
struct Scratch {
    hidden: Tensor,
    normed: Tensor,
    qkv: Tensor,
    attended: Tensor,
    gated: Tensor,
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    query_start: Tensor,
    kv_len: Tensor,
    block_tables: Tensor,
    wanted: Tensor,
    wanted_hidden: Tensor,
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
    /// Rows of logits in one step.
    pub max_logits: usize,
}

impl Decoder {
    /// Loads, packs and plans a decoder.
    ///
    /// # Errors
    /// Tensors that are missing or of another shape than the config says, or out of memory.
    pub fn load(loader: &mut Loader<'_>, config: &DecoderConfig, limits: Limits) -> Result<Self> {
        let ctx = loader.context().clone();
        let (ctx, precision) = (&*ctx, loader.precision());
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let rows = limits.max_rows;
        let norm_options = |weight, input, output| NormOptions::rms(config.rms_norm_eps, weight, input, output);
        let activations = precision.activations;

        let prefix = loader.prefix("embed_tokens.weight", &["model.", ""])?;
        let embedding_name = format!("{prefix}embed_tokens.weight");
        // The files decide: a head of its own is used wherever there is one, whatever the config says.
        let tied = !loader.contains("lm_head.weight");
        let vocab = config.vocab_size;
        let head_name = if tied { embedding_name.as_str() } else { "lm_head.weight" };
        let head_weight = loader.weight(&[(head_name, vocab)], hidden)?;
        let embedding = if tied {
            Embedding::packed(ctx, head_weight.clone(), DType::F32)?
        } else {
            Embedding::table(ctx, loader.table(&embedding_name, vocab, hidden)?, DType::F32)?
        };
        let head_options = LinearOptions::new(activations, DType::F32, precision.compute);
        let head = Linear::new(ctx, head_weight, head_options, limits.max_logits)?;

        let (inv_freq, scale) = config.rope.frequencies(head_dim);
        let rotary = Rotary::new(ctx, &inv_freq, scale, limits.context, head_dim, DType::F32)?;

        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            let at = |name: &str| format!("{prefix}layers.{index}.{name}");
            let weight = |name: &str| at(&format!("{name}.weight"));
            let bias = |name: &str, wanted: bool| wanted.then(|| at(&format!("{name}.bias")));
            let (q, k, v) = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj");

            let mut options = LinearOptions::new(activations, DType::F32, precision.compute);
            if config.qkv_bias {
                let parts =
                    [(q, q_width), (k, kv_width), (v, kv_width)].map(|(name, n)| (at(&format!("{name}.bias")), n));
                options.bias = Some(loader.vectors(&parts)?);
            }
            let qkv_parts = [(&*weight(q), q_width), (&*weight(k), kv_width), (&*weight(v), kv_width)];
            let qkv = Linear::new(ctx, loader.weight(&qkv_parts, hidden)?, options, rows)?;

            let inner_norm = |loader: &mut Loader<'_>, name: &str| -> Result<Option<Norm>> {
                if !config.qk_norm {
                    return Ok(None);
                }
                let options = norm_options(loader.vector(&weight(name), head_dim)?, DType::F32, DType::F32);
                Ok(Some(Norm::new(ctx, options, rows)?))
            };
            let (q_norm, k_norm) = (inner_norm(loader, "self_attn.q_norm")?, inner_norm(loader, "self_attn.k_norm")?);

            let attention = Attention::new(
                ctx,
                AttentionOptions {
                    num_heads: heads,
                    num_kv_heads: kv_heads,
                    head_dim,
                    q: DType::F32,
                    kv: precision.kv,
                    output: activations,
                    compute: precision.compute,
                    scale: (head_dim as f64).powf(-0.5) as f32,
                    causal: true,
                    window: config.sliding_window.get(index).copied().flatten(),
                    block_size: Some(limits.block_size),
                    mask: None,
                },
                rows,
                limits.context,
            )?;
            let append = KvAppend::new(ctx, kv_heads, head_dim, DType::F32, precision.kv, limits.block_size)?;

            // The residual stream is the product's own output: h += W·x.
            let into_residual = || LinearOptions::new(activations, DType::F32, precision.compute).accumulate();
            let mut options = into_residual();
            if let Some(name) = bias("self_attn.o_proj", config.o_bias) {
                options.bias = Some(loader.vector(&name, hidden)?);
            }
            let o_weight = loader.weight(&[(&*weight("self_attn.o_proj"), hidden)], q_width)?;
            let output = Linear::new(ctx, o_weight, options, rows)?;

            let width = config.intermediate_size;
            let mut options = LinearOptions::new(activations, activations, precision.compute);
            options.gated = Some(config.hidden_act);
            if config.mlp_bias {
                let parts = ["mlp.gate_proj", "mlp.up_proj"].map(|name| (at(&format!("{name}.bias")), width));
                options.bias = Some(loader.vectors(&parts)?);
            }
            let gate_up = [(&*weight("mlp.gate_proj"), width), (&*weight("mlp.up_proj"), width)];
            let gate_up = Linear::new(ctx, loader.gated_weight(&gate_up, hidden)?, options, rows)?;
            let mut options = into_residual();
            if let Some(name) = bias("mlp.down_proj", config.mlp_bias) {
                options.bias = Some(loader.vector(&name, hidden)?);
            }
            let down_weight = loader.weight(&[(&*weight("mlp.down_proj"), hidden)], width)?;
            let down = Linear::new(ctx, down_weight, options, rows)?;

            let outer_norm = |loader: &mut Loader<'_>, name: &str| -> Result<Norm> {
                let options = norm_options(loader.vector(&weight(name), hidden)?, DType::F32, activations);
                Ok(Norm::new(ctx, options, rows)?)
            };
            let attention_norm = outer_norm(loader, "input_layernorm")?;
            let mlp_norm = outer_norm(loader, "post_attention_layernorm")?;
            layers.push(Layer {
                attention_norm,
                qkv,
                q_norm,
                k_norm,
                append,
                attention,
                output,
                mlp_norm,
                gate_up,
                down,
            });
        }
        let final_norm = loader.vector(&format!("{prefix}norm.weight"), hidden)?;
        let norm = Norm::new(ctx, norm_options(final_norm, DType::F32, activations), rows)?;
        loader.finish();

        let blocks = limits.context.div_ceil(limits.block_size);
        let new = |dtype, shape: &[usize]| ctx.uninitialised(dtype, shape);
        let scratch = Scratch {
            hidden: new(DType::F32, &[rows, hidden])?,
            normed: new(activations, &[rows, hidden])?,
            qkv: new(DType::F32, &[rows, q_width + 2 * kv_width])?,
            attended: new(activations, &[rows, q_width])?,
            gated: new(activations, &[rows, config.intermediate_size])?,
            tokens: new(DType::U32, &[rows])?,
            positions: new(DType::I32, &[rows])?,
            slots: new(DType::I64, &[rows])?,
            query_start: new(DType::I32, &[limits.max_sequences + 1])?,
            kv_len: new(DType::I32, &[limits.max_sequences])?,
            block_tables: new(DType::U32, &[limits.max_sequences * blocks])?,
            wanted: new(DType::U32, &[limits.max_logits])?,
            wanted_hidden: new(DType::F32, &[limits.max_logits, hidden])?,
        };
        let (config, context) = (config.clone(), limits.context);
        Ok(Self {
            config,
            precision,
            embedding,
            gather: RowGather::new(ctx, DType::F32, rows, hidden)?,
            layers,
            norm,
            head,
            rotary,
            scratch,
            max_rows: rows,
            context,
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

    /// The most tokens in one step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// The most tokens of one sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of packed weights and tables.
    pub fn weight_bytes(&self) -> usize {
        let linear = |l: &Linear| l.weight_bytes();
        let layers: usize =
            self.layers.iter().map(|l| linear(&l.qkv) + linear(&l.output) + linear(&l.gate_up) + linear(&l.down)).sum();
        layers + linear(&self.head) + self.embedding.own_bytes()
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
        all.push(("head", self.head.kernels()));
        all
    }

    /// Runs one step: appends every token of `batch` to the cache and writes logits for the rows that it asks for.
    ///
    /// `logits` is f32 `[at least batch.wanted().len(), vocab]`.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a batch beyond the limits, or a failed device.
    pub fn step(&mut self, ctx: &Context, cache: &mut KvCache, batch: &Batch, logits: &mut Tensor) -> Result<()> {
        let rows = batch.tokens().len();
        if rows == 0 {
            return Ok(());
        }
        let vocab = self.config.vocab_size;
        if let Some(token) = batch.tokens().iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::Input(format!("token {token} is not in the vocabulary of {vocab} tokens")));
        }
        let s = &mut self.scratch;
        ctx.upload(batch.tokens(), &mut s.tokens)?;
        ctx.upload(batch.positions(), &mut s.positions)?;
        ctx.upload(batch.slots(), &mut s.slots)?;
        ctx.upload(batch.query_start(), &mut s.query_start)?;
        ctx.upload(batch.kv_len(), &mut s.kv_len)?;
        ctx.upload(batch.block_tables(), &mut s.block_tables)?;

        let sequences = batch.kv_len().len();
        let first = |tensor: &Tensor, shape: &[usize]| -> Result<Layout> {
            debug_assert!(tensor.layout().elements() >= shape.iter().product());
            Ok(Layout::contiguous(shape)?)
        };
        let c = &self.config;
        let (heads, kv_heads, d) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim);
        let hidden = first(&s.hidden, &[rows, c.hidden_size])?;
        let qkv_width = (heads + 2 * kv_heads) * d;
        let qkv = first(&s.qkv, &[rows, qkv_width])?;
        // Heads inside the rows of the joint product.
        let part = |heads: usize, start: usize| Layout::strided(&[rows, heads, d], &[qkv_width, d, 1], start * d);
        let (q, k, v) = (part(heads, 0)?, part(kv_heads, heads)?, part(kv_heads, heads + kv_heads)?);
        let attended = first(&s.attended, &[rows, heads * d])?;
        let attended_heads = first(&s.attended, &[rows, heads, d])?;
        let gated = first(&s.gated, &[rows, c.intermediate_size])?;
        let one = |n: usize| Layout::contiguous(&[n]);
        let tables = first(&s.block_tables, &[sequences, batch.blocks_per_table()])?;

        let tokens = s.tokens.view().with_layout(one(rows)?)?;
        let positions = s.positions.view().with_layout(one(rows)?)?;
        let slots = s.slots.view().with_layout(one(rows)?)?;
        self.embedding.run(ctx, tokens, s.hidden.view_mut()?.with_layout(hidden)?)?;
        for (layer, (k_cache, v_cache)) in self.layers.iter().zip(cache.layers_mut()) {
            layer.attention_norm.run(
                ctx,
                s.hidden.view().with_layout(hidden)?,
                s.normed.view_mut()?.with_layout(hidden)?,
            )?;
            layer.qkv.run(ctx, s.normed.view().with_layout(hidden)?, s.qkv.view_mut()?.with_layout(qkv)?)?;
            if let (Some(q_norm), Some(k_norm)) = (&layer.q_norm, &layer.k_norm) {
                q_norm.run_in_place(ctx, s.qkv.view_mut()?.with_layout(q)?)?;
                k_norm.run_in_place(ctx, s.qkv.view_mut()?.with_layout(k)?)?;
            }
            self.rotary.run_in_place(ctx, s.qkv.view_mut()?.with_layout(q)?, positions)?;
            self.rotary.run_in_place(ctx, s.qkv.view_mut()?.with_layout(k)?, positions)?;
            let all = s.qkv.view();
            layer.append.run(
                ctx,
                all.with_layout(k)?,
                all.with_layout(v)?,
                slots,
                k_cache.view_mut()?,
                v_cache.view_mut()?,
            )?;
            let paged = Sequences {
                query_start: s.query_start.view().with_layout(one(sequences + 1)?)?,
                kv_len: s.kv_len.view().with_layout(one(sequences)?)?,
                block_table: Some(s.block_tables.view().with_layout(tables)?),
                max_query: batch.max_query(),
                max_kv: batch.max_kv(),
            };
            let inputs = Inputs { q: all.with_layout(q)?, k: k_cache.view(), v: v_cache.view(), mask: None };
            layer.attention.run(ctx, inputs, paged, s.attended.view_mut()?.with_layout(attended_heads)?)?;
            layer.output.run(
                ctx,
                s.attended.view().with_layout(attended)?,
                s.hidden.view_mut()?.with_layout(hidden)?,
            )?;
            layer.mlp_norm.run(ctx, s.hidden.view().with_layout(hidden)?, s.normed.view_mut()?.with_layout(hidden)?)?;
            layer.gate_up.run(ctx, s.normed.view().with_layout(hidden)?, s.gated.view_mut()?.with_layout(gated)?)?;
            layer.down.run(ctx, s.gated.view().with_layout(gated)?, s.hidden.view_mut()?.with_layout(hidden)?)?;
        }

        // Norm and head only for the rows that are asked for.
        let wanted = batch.wanted().len();
        if wanted == 0 {
            return Ok(());
        }
        ctx.upload(batch.wanted(), &mut s.wanted)?;
        let compact = Layout::contiguous(&[wanted, c.hidden_size])?;
        self.gather.run(
            ctx,
            s.hidden.view(),
            s.wanted.view().with_layout(one(wanted)?)?,
            s.wanted_hidden.view_mut()?.with_layout(compact)?,
        )?;
        let normed = s.normed.view_mut()?.with_layout(compact)?;
        self.norm.run(ctx, s.wanted_hidden.view().with_layout(compact)?, normed)?;
        let out = logits.view_mut()?.with_layout(Layout::contiguous(&[wanted, vocab])?)?;
        self.head.run(ctx, s.normed.view().with_layout(compact)?, out)?;
        Ok(())
    }
}
