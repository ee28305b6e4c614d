//! The encoder: BERT.
//!
//! ```text
//! x = layer_norm(word[token] + position[i] + type[0])
//! x = layer_norm(x + O · attention(Q·x, K·x, V·x))
//! x = layer_norm(x + W₂ · act(W₁ · x))
//! ```
//! Activations are f32 in memory; products round them to bf16 where the weights are bf16.

use sinew_ops::Context;
use sinew_ops::layers::{Attention, AttentionOptions, Embedding, Inputs, Linear, LinearOptions, Norm, Sequences};
use sinew_tensor::DType;

use crate::load::{Loader, Part, Precision};
use crate::scratch::{Heads, Rows, Values};
use crate::{EncoderConfig, Error, Result};

/// A BERT encoder whose weights are packed and whose every pass is planned.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    precision: Precision,
    embeddings: [Embedding; 3],
    embedding_norm: Norm,
    layers: Vec<Layer>,
    inputs: PassInputs,
    activations: Activations,
    max_rows: usize,
    max_sequences: usize,
}

/// Attention and feed-forward, each added to the residual stream and normed.
#[derive(Debug)]
struct Layer {
    qkv: Linear,
    attention: Attention,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    output_norm: Norm,
    /// Of queries, keys and values in a row of `qkv`.
    heads: [Heads; 3],
}

/// What the host gives to a pass.
#[derive(Debug)]
struct PassInputs {
    /// Of tokens, positions and types, as the embeddings take them.
    ids: [Values; 3],
    query_start: Values,
    kv_len: Values,
}

/// Activations of one pass; every layer uses the same.
#[derive(Debug)]
struct Activations {
    /// The residual stream between layers.
    hidden: Rows,
    /// The residual stream between attention and feed-forward: a norm reads one and writes the other.
    middle: Rows,
    qkv: Rows,
    attended: Rows,
    up: Rows,
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
        let prefix = loader.prefix("embeddings.word_embeddings.weight", &["", "bert.", "model."])?;
        let mut table = |name: &str, rows: usize| -> Result<Embedding> {
            let table = loader.table(Part::whole(format!("{prefix}embeddings.{name}"), rows), config.hidden_size)?;
            Ok(Embedding::table(&ctx, table, DType::F32)?)
        };
        let embeddings = [
            table("word_embeddings", config.vocab_size)?,
            table("position_embeddings", config.max_position_embeddings)?,
            table("token_type_embeddings", config.type_vocab_size)?,
        ];
        let embedding_norm = norm(loader, config, &format!("{prefix}embeddings.LayerNorm"), max_rows)?;
        let layers = (0..config.num_hidden_layers)
            .map(|index| Layer::load(loader, config, &format!("{prefix}encoder.layer.{index}."), max_rows))
            .collect::<Result<_>>()?;
        loader.finish();
        let ids = || Values::new(&ctx, DType::U32, max_rows);
        Ok(Self {
            config: config.clone(),
            precision: loader.precision(),
            embeddings,
            embedding_norm,
            layers,
            inputs: PassInputs {
                ids: [ids()?, ids()?, ids()?],
                query_start: Values::new(&ctx, DType::I32, max_sequences + 1)?,
                kv_len: Values::new(&ctx, DType::I32, max_sequences)?,
            },
            activations: Activations::new(&ctx, config, max_rows)?,
            max_rows,
            max_sequences,
        })
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
        if rows > self.max_rows || texts.len() > self.max_sequences {
            let (n, most_rows, most) = (texts.len(), self.max_rows, self.max_sequences);
            let reason = format!("{rows} tokens in {n} texts, planned for {most_rows} tokens in {most}");
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
        let types = vec![0u32; rows];
        for (ids, values) in self.inputs.ids.iter_mut().zip([&tokens, &positions, &types]) {
            ids.upload(ctx, values)?;
        }
        self.inputs.query_start.upload(ctx, &query_start)?;
        self.inputs.kv_len.upload(ctx, &kv_len)?;
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let sequences = Sequences {
            query_start: self.inputs.query_start.read()?,
            kv_len: self.inputs.kv_len.read()?,
            block_table: None,
            max_query: longest,
            max_kv: longest,
        };

        let x = &mut self.activations;
        let [word, position, kind] = &self.embeddings;
        let [tokens, positions, kinds] = &self.inputs.ids;
        word.run(ctx, tokens.read()?, x.middle.write(rows)?)?;
        for (embedding, ids) in [(position, positions), (kind, kinds)] {
            embedding.run(ctx, ids.read()?, x.hidden.write(rows)?)?;
            sinew_ops::add_assign(ctx, x.middle.write(rows)?, x.hidden.read(rows)?)?;
        }
        self.embedding_norm.run(ctx, x.middle.read(rows)?, x.hidden.write(rows)?)?;
        for layer in &self.layers {
            layer.run(ctx, rows, sequences, x)?;
        }
        x.hidden.to_vec(ctx, rows)
    }
}

impl Activations {
    fn new(ctx: &Context, config: &EncoderConfig, max_rows: usize) -> Result<Self> {
        let rows = |width: usize| Rows::new(ctx, DType::F32, max_rows, width);
        let hidden = config.hidden_size;
        Ok(Self {
            hidden: rows(hidden)?,
            middle: rows(hidden)?,
            qkv: rows(3 * hidden)?,
            attended: rows(hidden)?,
            up: rows(config.intermediate_size)?,
        })
    }
}

impl Layer {
    fn load(loader: &mut Loader<'_>, config: &EncoderConfig, prefix: &str, rows: usize) -> Result<Self> {
        let compute = loader.precision().compute;
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let (num_heads, head_dim) = (config.num_attention_heads, config.head_dim);
        let part = |name: &str, n: usize| Part::whole(format!("{prefix}{name}"), n);
        let product = LinearOptions::new(DType::F32, DType::F32, compute);
        // The residual stream is the product's own output: x += W·y.
        let into_residual = product.clone().accumulate();
        let activated = LinearOptions { activation: Some(config.hidden_act), ..product.clone() };
        let attention = AttentionOptions {
            num_heads,
            num_kv_heads: num_heads,
            head_dim,
            q: DType::F32,
            kv: DType::F32,
            output: DType::F32,
            compute,
            scale: (head_dim as f64).powf(-0.5) as f32,
            causal: false,
            window: None,
            softcap: None,
            block_size: None,
            mask: None,
        };
        let qkv = ["query", "key", "value"].map(|name| part(&format!("attention.self.{name}"), hidden));
        let output = [part("attention.output.dense", hidden)];
        let up = [part("intermediate.dense", width)];
        let down = [part("output.dense", hidden)];
        let ctx = loader.context().clone();
        Ok(Self {
            qkv: loader.linear(&qkv, hidden, true, product, rows)?,
            attention: Attention::new(&ctx, attention, rows, config.max_position_embeddings)?,
            output: loader.linear(&output, hidden, true, into_residual.clone(), rows)?,
            attention_norm: norm(loader, config, &format!("{prefix}attention.output.LayerNorm"), rows)?,
            up: loader.linear(&up, hidden, true, activated, rows)?,
            down: loader.linear(&down, width, true, into_residual, rows)?,
            output_norm: norm(loader, config, &format!("{prefix}output.LayerNorm"), rows)?,
            heads: Heads::qkv(num_heads, num_heads, head_dim),
        })
    }

    /// `x = norm(x + attention(x))`, then `x = norm(x + feed_forward(x))`.
    fn run(&self, ctx: &Context, n: usize, sequences: Sequences<'_>, x: &mut Activations) -> Result<()> {
        self.attend(ctx, n, sequences, x)?;
        self.feed_forward(ctx, n, x)
    }

    fn attend(&self, ctx: &Context, n: usize, sequences: Sequences<'_>, x: &mut Activations) -> Result<()> {
        self.qkv.run(ctx, x.hidden.read(n)?, x.qkv.write(n)?)?;
        let [q, k, v] = self.heads;
        let inputs =
            Inputs { q: x.qkv.read_heads(n, q)?, k: x.qkv.read_heads(n, k)?, v: x.qkv.read_heads(n, v)?, mask: None };
        self.attention.run(ctx, inputs, sequences, x.attended.write_heads(n, q)?)?;
        self.output.run(ctx, x.attended.read(n)?, x.hidden.write(n)?)?;
        Ok(self.attention_norm.run(ctx, x.hidden.read(n)?, x.middle.write(n)?)?)
    }

    fn feed_forward(&self, ctx: &Context, n: usize, x: &mut Activations) -> Result<()> {
        self.up.run(ctx, x.middle.read(n)?, x.up.write(n)?)?;
        self.down.run(ctx, x.up.read(n)?, x.middle.write(n)?)?;
        Ok(self.output_norm.run(ctx, x.middle.read(n)?, x.hidden.write(n)?)?)
    }
}

fn norm(loader: &mut Loader<'_>, config: &EncoderConfig, name: &str, max_rows: usize) -> Result<Norm> {
    loader.layer_norm(name, config.hidden_size, config.layer_norm_eps, [DType::F32; 2], max_rows)
}
