//! The encoder: BERT.
//!
//! ```text
//! x = layer_norm(word[token] + position[i] + type[0])
//! x = layer_norm(x + O · attention(Q·x, K·x, V·x))
//! x = layer_norm(x + W₂ · act(W₁ · x))
//! ```
//! Activations are f32 in memory; products round them to bf16 where the weights are bf16.

use sinew_ops::Context;
use sinew_ops::layers::{
    Attention, AttentionOptions, Embedding, Inputs, Linear, LinearOptions, Norm, NormOptions, Sequences,
};
use sinew_tensor::{DType, Layout, Tensor};

use crate::load::{Loader, Precision};
use crate::{EncoderConfig, Error, Result};

/// A BERT encoder whose weights are packed and whose every pass is planned.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    precision: Precision,
    embeddings: [Embedding; 3],
    embedding_norm: Norm,
    layers: Vec<Layer>,
    scratch: Scratch,
    max_rows: usize,
}

#[derive(Debug)]
struct Layer {
    qkv: Linear,
    attention: Attention,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    output_norm: Norm,
}

#[derive(Debug)]
struct Scratch {
    /// The residual stream goes back and forth between these two: a norm reads one and writes the other.
    streams: [Tensor; 2],
    qkv: Tensor,
    attended: Tensor,
    up: Tensor,
    ids: [Tensor; 3],
    query_start: Tensor,
    kv_len: Tensor,
}

impl Encoder {
    /// Loads, packs and plans an encoder for passes of up to `max_rows` tokens and `max_sequences` texts.
    ///
    /// # Errors
    /// Tensors that are missing or of another shape than the config says, or out of memory.
    pub fn load(
        loader: &mut Loader<'_>,
        config: &EncoderConfig,
        max_rows: usize,
        max_sequences: usize,
    ) -> Result<Self> {
        let ctx = loader.context().clone();
        let (ctx, precision) = (&*ctx, loader.precision());
        let hidden = config.hidden_size;
        let prefix = loader.prefix("embeddings.word_embeddings.weight", &["", "bert.", "model."])?;
        let at = |name: &str| format!("{prefix}{name}");

        let mut table = |name: &str, rows: usize| -> Result<Embedding> {
            let table = loader.table(&at(&format!("embeddings.{name}.weight")), rows, hidden)?;
            Ok(Embedding::table(ctx, table, DType::F32)?)
        };
        let embeddings = [
            table("word_embeddings", config.vocab_size)?,
            table("position_embeddings", config.max_position_embeddings)?,
            table("token_type_embeddings", config.type_vocab_size)?,
        ];
        let layer_norm = |loader: &mut Loader<'_>, name: &str| -> Result<Norm> {
            // Checkpoints converted from TensorFlow call the two vectors gamma and beta.
            let named = |new: &str, old: &str| {
                let new = at(&format!("{name}.{new}"));
                if loader.contains(&new) { new } else { at(&format!("{name}.{old}")) }
            };
            let (weight, bias) = (named("weight", "gamma"), named("bias", "beta"));
            let (weight, bias) = (loader.vector(&weight, hidden)?, loader.vector(&bias, hidden)?);
            Ok(Norm::new(
                ctx,
                NormOptions::layer(config.layer_norm_eps, weight, bias, DType::F32, DType::F32),
                max_rows,
            )?)
        };
        let embedding_norm = layer_norm(loader, "embeddings.LayerNorm")?;

        let linear =
            |loader: &mut Loader<'_>, names: &[&str], n: usize, k: usize, more: LinearOptions| -> Result<Linear> {
                let weights: Vec<String> = names.iter().map(|name| at(&format!("{name}.weight"))).collect();
                let biases: Vec<(String, usize)> = names.iter().map(|name| (at(&format!("{name}.bias")), n)).collect();
                let parts: Vec<(&str, usize)> = weights.iter().map(|name| (name.as_str(), n)).collect();
                let bias = Some(loader.vectors(&biases)?);
                Ok(Linear::new(ctx, loader.weight(&parts, k)?, LinearOptions { bias, ..more }, max_rows)?)
            };
        let plain = || LinearOptions::new(DType::F32, DType::F32, precision.compute);
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for index in 0..config.num_hidden_layers {
            let name = |part: &str| format!("encoder.layer.{index}.{part}");
            let (q, k, v) = (name("attention.self.query"), name("attention.self.key"), name("attention.self.value"));
            let width = config.intermediate_size;
            let activation = LinearOptions { activation: Some(config.hidden_act), ..plain() };
            let attention = AttentionOptions {
                num_heads: config.num_attention_heads,
                num_kv_heads: config.num_attention_heads,
                head_dim: config.head_dim,
                q: DType::F32,
                kv: DType::F32,
                output: DType::F32,
                compute: precision.compute,
                scale: (config.head_dim as f64).powf(-0.5) as f32,
                causal: false,
                window: None,
                block_size: None,
                mask: None,
            };
            layers.push(Layer {
                qkv: linear(loader, &[&q, &k, &v], hidden, hidden, plain())?,
                attention: Attention::new(ctx, attention, max_rows, config.max_position_embeddings)?,
                output: linear(loader, &[&name("attention.output.dense")], hidden, hidden, plain().accumulate())?,
                attention_norm: layer_norm(loader, &name("attention.output.LayerNorm"))?,
                up: linear(loader, &[&name("intermediate.dense")], width, hidden, activation)?,
                down: linear(loader, &[&name("output.dense")], hidden, width, plain().accumulate())?,
                output_norm: layer_norm(loader, &name("output.LayerNorm"))?,
            });
        }
        loader.finish();

        let new = |dtype, shape: &[usize]| ctx.uninitialised(dtype, shape);
        let ids = || new(DType::U32, &[max_rows]);
        let scratch = Scratch {
            streams: [new(DType::F32, &[max_rows, hidden])?, new(DType::F32, &[max_rows, hidden])?],
            qkv: new(DType::F32, &[max_rows, 3 * hidden])?,
            attended: new(DType::F32, &[max_rows, hidden])?,
            up: new(DType::F32, &[max_rows, config.intermediate_size])?,
            ids: [ids()?, ids()?, ids()?],
            query_start: new(DType::I32, &[max_sequences + 1])?,
            kv_len: new(DType::I32, &[max_sequences])?,
        };
        Ok(Self { config: config.clone(), precision, embeddings, embedding_norm, layers, scratch, max_rows })
    }

    /// The description that it was loaded from.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Dtypes of weights, activations and products.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The most tokens in one pass.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// The last hidden states of `texts`, f32 `[tokens of all texts, hidden_size]`, text after text.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a text longer than the model's positions, or more tokens than
    /// [`Encoder::max_rows`].
    pub fn forward(&mut self, ctx: &Context, texts: &[&[u32]]) -> Result<Vec<f32>> {
        let c = &self.config;
        let rows: usize = texts.iter().map(|t| t.len()).sum();
        if rows == 0 {
            return Ok(Vec::new());
        }
        if rows > self.max_rows || texts.len() > self.scratch.kv_len.layout().elements() {
            let reason = format!("{rows} tokens in {} texts, planned for {} tokens", texts.len(), self.max_rows);
            return Err(Error::Input(reason));
        }
        let (mut tokens, mut positions) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        let (mut query_start, mut kv_len) = (vec![0i32], Vec::new());
        for text in texts {
            if text.len() > c.max_position_embeddings {
                let limit = c.max_position_embeddings;
                return Err(Error::Input(format!("a text of {} tokens; the model has {limit} positions", text.len())));
            }
            if let Some(token) = text.iter().find(|&&t| t as usize >= c.vocab_size) {
                let vocab = c.vocab_size;
                return Err(Error::Input(format!("token {token} is not in the vocabulary of {vocab} tokens")));
            }
            tokens.extend_from_slice(text);
            positions.extend(0..text.len() as u32);
            query_start.push(tokens.len() as i32);
            kv_len.push(text.len() as i32);
        }
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let s = &mut self.scratch;
        let types = vec![0u32; rows];
        for (ids, values) in s.ids.iter_mut().zip([&tokens, &positions, &types]) {
            ctx.upload(values, ids)?;
        }
        ctx.upload(&query_start, &mut s.query_start)?;
        ctx.upload(&kv_len, &mut s.kv_len)?;

        let one = |n: usize| Layout::contiguous(&[n]);
        let stream = Layout::contiguous(&[rows, c.hidden_size])?;
        let (heads, d) = (c.num_attention_heads, c.head_dim);
        let qkv = Layout::contiguous(&[rows, 3 * c.hidden_size])?;
        let part = |i: usize| Layout::strided(&[rows, heads, d], &[3 * heads * d, d, 1], i * heads * d);
        let by_head = Layout::contiguous(&[rows, heads, d])?;
        let wide = Layout::contiguous(&[rows, c.intermediate_size])?;

        let [x, y] = &mut s.streams;
        self.embeddings[0].run(ctx, s.ids[0].view().with_layout(one(rows)?)?, x.view_mut()?.with_layout(stream)?)?;
        for (embedding, ids) in self.embeddings.iter().zip(&s.ids).skip(1) {
            embedding.run(ctx, ids.view().with_layout(one(rows)?)?, y.view_mut()?.with_layout(stream)?)?;
            sinew_ops::add_assign(ctx, x.view_mut()?.with_layout(stream)?, y.view().with_layout(stream)?)?;
        }
        self.embedding_norm.run(ctx, x.view().with_layout(stream)?, y.view_mut()?.with_layout(stream)?)?;
        for layer in &self.layers {
            layer.qkv.run(ctx, y.view().with_layout(stream)?, s.qkv.view_mut()?.with_layout(qkv)?)?;
            let all = s.qkv.view();
            let inputs = Inputs {
                q: all.with_layout(part(0)?)?,
                k: all.with_layout(part(1)?)?,
                v: all.with_layout(part(2)?)?,
                mask: None,
            };
            let lengths = Sequences {
                query_start: s.query_start.view().with_layout(one(texts.len() + 1)?)?,
                kv_len: s.kv_len.view().with_layout(one(texts.len())?)?,
                block_table: None,
                max_query: longest,
                max_kv: longest,
            };
            layer.attention.run(ctx, inputs, lengths, s.attended.view_mut()?.with_layout(by_head)?)?;
            layer.output.run(ctx, s.attended.view().with_layout(stream)?, y.view_mut()?.with_layout(stream)?)?;
            layer.attention_norm.run(ctx, y.view().with_layout(stream)?, x.view_mut()?.with_layout(stream)?)?;
            layer.up.run(ctx, x.view().with_layout(stream)?, s.up.view_mut()?.with_layout(wide)?)?;
            layer.down.run(ctx, s.up.view().with_layout(wide)?, x.view_mut()?.with_layout(stream)?)?;
            layer.output_norm.run(ctx, x.view().with_layout(stream)?, y.view_mut()?.with_layout(stream)?)?;
        }
        let result = y.with_layout(stream)?;
        let values = result.to_vec_on::<f32>(&**ctx.stream())?;
        Ok(values)
    }
}
