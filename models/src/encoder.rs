//! The encoder: one description with switches for BERT, RoBERTa and ModernBERT.
//!
//! ```text
//! x = layer_norm(word[token] + position[i] + type[0])        norms after     x = layer_norm(word[token])      norms first
//! x = layer_norm(x + O · attention(Q·x, K·x, V·x))                           x += O · attention(rope(Q·n), rope(K·n), V·n)
//! x = layer_norm(x + W₂ · act(W₁ · x))                                       x += W₂ · (act(gate·n) ⊙ up·n)
//! ```
//! where `n = layer_norm(x)`, and one more norm follows the last layer. Activations are f32 in memory; products round
//! them to bf16 where the weights are bf16.

mod layer;

use sinew_ops::Context;
use sinew_ops::layers::{Add, Embedding, Norm, Place, Rotary, Sequences, push_unlike};
use sinew_tensor::DType;

use self::layer::{Activations, Layer, Step};
use crate::activations::HostInput;
use crate::config::{LearnedPositions, NormKind, check_positions, check_tokens};
use crate::error::count_of;
use crate::load::{Counted, Loaded, Loader, Maker, NormSpec, Part, Stage};
use crate::precision::Precision;
use crate::{EncoderConfig, Error, Result};

/// An encoder whose weights are packed and whose every pass is planned.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    precision: Precision,
    parts: Parts,
    max_rows: usize,
    max_sequences: usize,
}

/// What an encoder is made of.
#[derive(Debug)]
struct Parts<S: Stage = Loaded> {
    word: S::Of<Embedding>,
    positions: Option<S::Of<Embedding>>,
    token_types: Option<S::Of<Embedding>>,
    add: S::Of<Add>,
    embedding_norm: S::Of<Norm>,
    ropes: Vec<Rotary>,
    layers: Vec<Layer<S>>,
    final_norm: Option<S::Of<Norm>>,
    inputs: PassInputs<S>,
    activations: Activations<S>,
}

/// What the host gives to a pass.
#[derive(Debug)]
struct PassInputs<S: Stage = Loaded> {
    tokens: S::Of<HostInput>,
    positions: S::Of<HostInput>,
    /// Rows of the table of positions, where there is one.
    position_ids: Option<S::Of<HostInput>>,
    /// The same of token types.
    token_types: Option<S::Of<HostInput>>,
    query_start: S::Of<HostInput>,
    kv_len: S::Of<HostInput>,
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
        let parts = Parts::make(loader, config, max_rows, max_sequences)?;
        loader.finish(config.names.spare)?;
        Ok(Self { config: config.clone(), precision: loader.precision(), parts, max_rows, max_sequences })
    }

    /// Has its parts counted.
    ///
    /// # Errors
    /// Those of [`Encoder::load`] for tensors, and those of [`Checkpoint::refuse_unread`](crate::checkpoint::Checkpoint::refuse_unread).
    pub(crate) fn count(
        maker: &mut impl Maker<Counted>,
        config: &EncoderConfig,
        max_rows: usize,
        max_sequences: usize,
    ) -> Result<()> {
        Parts::make(maker, config, max_rows, max_sequences)?;
        maker.checkpoint().refuse_unread(config.names.spare)
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

    /// The rows that serve this encoder: a name of the place, and the rows chosen there for one row and for many.
    pub fn kernels(&self) -> Vec<Place> {
        let parts = &self.parts;
        let mut all = vec![("embedding", parts.word.kernels())];
        all.extend(parts.positions.iter().map(|table| ("positions", table.kernels())));
        all.extend(parts.token_types.iter().map(|table| ("token types", table.kernels())));
        all.extend([("sum", parts.add.kernels()), ("embedding norm", parts.embedding_norm.kernels())]);
        all.extend(parts.ropes.first().map(|rotary| ("rotary", rotary.kernels())));
        // Layers differ in windows, and the first in its norm.
        push_unlike(&mut all, parts.layers.iter().flat_map(Layer::kernels));
        all.extend(parts.final_norm.iter().map(|norm| ("last norm", norm.kernels())));
        all
    }

    /// The last hidden states of `texts`, f32 `[tokens of all texts, hidden_size]`, text after text.
    ///
    /// # Errors
    /// A token that is not in the vocabulary, a text longer than the model's positions, or more tokens than
    /// [`Encoder::max_rows`].
    pub fn forward(&mut self, ctx: &Context, texts: &[&[u32]]) -> Result<Vec<f32>> {
        self.check(texts)?;
        let n: usize = texts.iter().map(|text| text.len()).sum();
        if n == 0 {
            return Ok(Vec::new());
        }
        self.upload(ctx, texts, n)?;
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let Parts { word, positions, token_types, add, embedding_norm, ropes, layers, final_norm, inputs, activations } =
            &mut self.parts;
        let sequences = Sequences {
            query_start: inputs.query_start.read()?,
            kv_len: inputs.kv_len.read()?,
            block_table: None,
            max_query: longest,
            max_kv: longest,
        };

        let Activations { hidden, middle, scratch } = activations;
        word.run(ctx, inputs.tokens.read()?, middle.write(n)?)?;
        let positions = positions.iter().zip(&inputs.position_ids);
        for (table, rows) in positions.chain(token_types.iter().zip(&inputs.token_types)) {
            table.run(ctx, rows.read()?, hidden.write(n)?)?;
            add.run(ctx, middle.write(n)?, hidden.read(n)?)?;
        }
        embedding_norm.run(ctx, middle.read(n)?, hidden.write(n)?)?;
        let step = Step { ctx, n, ropes, positions: inputs.positions.read()?, sequences };
        for layer in layers.iter() {
            layer.run(&step, hidden, middle, scratch)?;
        }
        match final_norm {
            None => hidden.to_vec(ctx, n),
            Some(norm) => {
                norm.run(ctx, hidden.read(n)?, middle.write(n)?)?;
                middle.to_vec(ctx, n)
            }
        }
    }

    fn check(&self, texts: &[&[u32]]) -> Result<()> {
        let rows: usize = texts.iter().map(|text| text.len()).sum();
        let (n, most_rows, most) = (texts.len(), self.max_rows, self.max_sequences);
        if rows > most_rows || n > most {
            let [rows, most_rows] = [rows, most_rows].map(|rows| count_of(rows, "token"));
            let reason = format!("{rows} in {}, planned for {most_rows} in {most}", count_of(n, "text"));
            return Err(Error::Input(reason));
        }
        for text in texts {
            check_positions(text.len(), self.config.max_position_embeddings)?;
            check_tokens(text, self.config.vocab_size)?;
        }
        Ok(())
    }

    fn upload(&mut self, ctx: &Context, texts: &[&[u32]], n: usize) -> Result<()> {
        let mut tokens = Vec::with_capacity(n);
        let mut positions = Vec::with_capacity(n);
        let (mut query_start, mut kv_len) = (vec![0i32], Vec::with_capacity(texts.len()));
        for text in texts {
            tokens.extend_from_slice(text);
            positions.extend(0..text.len() as i32);
            query_start.push(tokens.len() as i32);
            kv_len.push(text.len() as i32);
        }
        if let (Some(rows), Some(learned)) = (&mut self.parts.inputs.position_ids, self.config.learned_positions) {
            let of = texts.iter().flat_map(|text| learned_rows(text, learned));
            rows.upload(ctx, &of.collect::<Vec<_>>())?;
        }
        if let Some(types) = &mut self.parts.inputs.token_types {
            types.upload(ctx, &vec![0u32; n])?;
        }
        self.parts.inputs.tokens.upload(ctx, &tokens)?;
        self.parts.inputs.positions.upload(ctx, &positions)?;
        self.parts.inputs.query_start.upload(ctx, &query_start)?;
        self.parts.inputs.kv_len.upload(ctx, &kv_len)
    }
}

impl<S: Stage> Parts<S> {
    fn make<M: Maker<S>>(maker: &mut M, config: &EncoderConfig, max_rows: usize, max_sequences: usize) -> Result<Self> {
        let (names, context) = (config.names, config.max_position_embeddings);
        let source = names.embedding_source(config.tie_word_embeddings, maker.checkpoint())?;
        let prefix = source.prefix;
        let at = |name: &str| format!("{prefix}{name}");
        let table = |maker: &mut M, name: &str, rows| maker.table(Part::whole(at(name), rows), config.hidden_size);
        Ok(Self {
            word: maker.table(Part::whole(source.module, config.vocab_size), config.hidden_size)?,
            positions: config
                .learned_positions
                .map(|learned| table(maker, names.positions, learned.first as usize + context))
                .transpose()?,
            token_types: match config.type_vocab_size {
                0 => None,
                rows => Some(table(maker, names.token_types, rows)?),
            },
            add: maker.planned(|ctx| Add::new(ctx, DType::F32))?,
            embedding_norm: maker.norm(norm(config, at(names.embedding_norm)), max_rows)?,
            ropes: maker.ropes(&config.ropes, config.head_dim, context)?,
            layers: (0..config.layers.len())
                .map(|index| Layer::make(maker, config, prefix, index, max_rows))
                .collect::<Result<_>>()?,
            final_norm: match config.norm_first {
                true => Some(maker.norm(norm(config, at(names.final_norm)), max_rows)?),
                false => None,
            },
            inputs: PassInputs::make(maker, config, max_rows, max_sequences)?,
            activations: Activations::make(maker, config, max_rows)?,
        })
    }
}

impl<S: Stage> PassInputs<S> {
    fn make(maker: &mut impl Maker<S>, config: &EncoderConfig, max_rows: usize, max_sequences: usize) -> Result<Self> {
        let mut input = |dtype, most| maker.host_input(dtype, most);
        Ok(Self {
            tokens: input(DType::U32, max_rows)?,
            positions: input(DType::I32, max_rows)?,
            position_ids: config.learned_positions.map(|_| input(DType::U32, max_rows)).transpose()?,
            token_types: (config.type_vocab_size > 0).then(|| input(DType::U32, max_rows)).transpose()?,
            query_start: input(DType::I32, max_sequences.saturating_add(1))?,
            kv_len: input(DType::I32, max_sequences)?,
        })
    }
}

/// The rows of a text's tokens in a table of positions.
fn learned_rows(text: &[u32], learned: LearnedPositions) -> impl Iterator<Item = u32> {
    let mut next = learned.first;
    text.iter().map(move |&token| match learned.padding {
        Some(padding) if token == padding => padding,
        _ => {
            next += 1;
            next - 1
        }
    })
}

/// The norm called `name`.
fn norm(config: &EncoderConfig, name: String) -> NormSpec {
    let (n, eps, bias) = (config.hidden_size, config.layer_norm_eps, config.norm_bias);
    NormSpec { name, n, kind: NormKind::Layer, bias, eps, dtypes: [DType::F32; 2] }
}
