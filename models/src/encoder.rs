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
use sinew_ops::layers::{Add, Embedding, Norm, NormOptions, Place, Rotary, Sequences};
use sinew_tensor::DType;

use self::layer::{Activations, Layer, Step};
use crate::config::{LearnedPositions, NormKind, check_positions, check_tokens};
use crate::limits::Plan;
use crate::load::{Loader, Part, Precision, Sizes};
use crate::places::push_unlike;
use crate::scratch::{Values, sum};
use crate::{EncoderConfig, Error, Result};

/// An encoder whose weights are packed and whose every pass is planned.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    precision: Precision,
    word: Embedding,
    /// The table, and the rows of it that tokens have.
    learned_positions: Option<(Embedding, Values, LearnedPositions)>,
    token_types: Option<(Embedding, Values)>,
    add: Add,
    embedding_norm: Norm,
    ropes: Vec<Rotary>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    inputs: PassInputs,
    activations: Activations,
    max_rows: usize,
    max_sequences: usize,
}

/// What the host gives to a pass.
#[derive(Debug)]
struct PassInputs {
    tokens: Values,
    positions: Values,
    query_start: Values,
    kv_len: Values,
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
        let names = config.names;
        let prefix = loader.prefix(&format!("{}.weight", names.word), names.prefixes)?;
        let mut table = |name: &str, rows: usize| -> Result<Embedding> {
            let table = loader.table(Part::whole(format!("{prefix}{name}"), rows), config.hidden_size)?;
            Ok(Embedding::table(&ctx, table, DType::F32)?)
        };
        let word = table(names.word, config.vocab_size)?;
        let context = config.max_position_embeddings;
        let learned_positions = match config.learned_positions {
            None => None,
            Some(learned) => {
                let table = table(names.positions, learned.first as usize + context)?;
                Some((table, Values::new(&ctx, DType::U32, max_rows)?, learned))
            }
        };
        let token_types = match config.type_vocab_size {
            0 => None,
            rows => Some((table(names.token_types, rows)?, Values::new(&ctx, DType::U32, max_rows)?)),
        };
        let embedding_norm = norm(loader, config, &format!("{prefix}{}", names.embedding_norm), max_rows)?;
        let ropes = loader.ropes(&config.ropes, config.head_dim, context)?;
        let layers = (0..config.layers.len())
            .map(|index| Layer::load(loader, config, prefix, index, max_rows))
            .collect::<Result<_>>()?;
        let final_norm = match config.norm_first {
            true => Some(norm(loader, config, &format!("{prefix}{}", names.final_norm), max_rows)?),
            false => None,
        };
        loader.finish(names.spare);
        Ok(Self {
            config: config.clone(),
            precision: loader.precision(),
            word,
            learned_positions,
            token_types,
            add: Add::new(&ctx, DType::F32)?,
            embedding_norm,
            ropes,
            layers,
            final_norm,
            inputs: PassInputs::new(&ctx, max_rows, max_sequences)?,
            activations: Activations::new(&ctx, config, max_rows)?,
            max_rows,
            max_sequences,
        })
    }

    /// What it would take.
    ///
    /// # Errors
    /// Those of [`Encoder::load`] for tensors.
    pub(crate) fn plan(
        config: &EncoderConfig,
        sizes: &Sizes<'_>,
        max_rows: usize,
        max_sequences: usize,
    ) -> Result<Plan> {
        let names = config.names;
        let prefix = sizes.checkpoint.prefix_of(&format!("{}.weight", names.word), names.prefixes)?;
        let at = |name: &str| format!("{prefix}{name}");
        let table = |name: &str, rows: usize| match rows {
            0 => Ok(0),
            _ => sizes.table(&Part::whole(at(name), rows), config.hidden_size),
        };
        let context = config.max_position_embeddings;
        let learned = config.learned_positions.map_or(0, |learned| learned.first as usize + context);
        let tables = [
            table(names.word, config.vocab_size)?,
            table(names.positions, learned)?,
            table(names.token_types, config.type_vocab_size)?,
        ];
        let embedding_norm = norm_bytes(sizes, config, &at(names.embedding_norm))?;
        let layers = (0..config.layers.len()).map(|index| Layer::bytes(sizes, config, prefix, index));
        let layers = sum(layers.collect::<Result<Vec<_>>>()?);
        let final_norm = match config.norm_first {
            true => norm_bytes(sizes, config, &at(names.final_norm))?,
            false => 0,
        };
        // Rows of the tables of positions and of types.
        let ids = usize::from(config.learned_positions.is_some()) + usize::from(config.type_vocab_size > 0);
        let ids = Values::bytes(DType::U32, max_rows).saturating_mul(ids);
        Ok(Plan {
            weights: sum([sum(tables), embedding_norm, layers, final_norm]),
            activations: sum([PassInputs::bytes(max_rows, max_sequences), ids, Activations::bytes(config, max_rows)]),
            tables: sizes.ropes(&config.ropes, config.head_dim, context),
            ..Plan::default()
        })
    }

    /// Bytes of workspace that attention would make room for in passes of so many tokens.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub(crate) fn attention_workspace(
        ctx: &Context,
        config: &EncoderConfig,
        precision: Precision,
        max_rows: usize,
    ) -> Result<usize> {
        config.layers.iter().try_fold(0, |most, layer| {
            Ok(most.max(Layer::attention_workspace(ctx, config, layer, precision, max_rows)?))
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

    /// The rows that serve this encoder: a name of the place, and the rows chosen there for one row and for many.
    pub fn kernels(&self) -> Vec<Place> {
        let mut all = vec![("embedding", self.word.kernels())];
        all.extend(self.learned_positions.iter().map(|(table, ..)| ("positions", table.kernels())));
        all.extend(self.token_types.iter().map(|(table, _)| ("token types", table.kernels())));
        all.extend([("sum", self.add.kernels()), ("embedding norm", self.embedding_norm.kernels())]);
        all.extend(self.ropes.first().map(|rotary| ("rotary", rotary.kernels())));
        // Layers differ in windows, and the first in its norm.
        push_unlike(&mut all, self.layers.iter().flat_map(Layer::kernels));
        all.extend(self.final_norm.iter().map(|norm| ("last norm", norm.kernels())));
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
        let sequences = Sequences {
            query_start: self.inputs.query_start.read()?,
            kv_len: self.inputs.kv_len.read()?,
            block_table: None,
            max_query: longest,
            max_kv: longest,
        };

        let Activations { hidden, middle, scratch } = &mut self.activations;
        self.word.run(ctx, self.inputs.tokens.read()?, middle.write(n)?)?;
        let learned = self.learned_positions.as_ref().map(|(table, rows, _)| (table, rows));
        let token_types = self.token_types.as_ref().map(|(table, rows)| (table, rows));
        for (table, rows) in learned.into_iter().chain(token_types) {
            table.run(ctx, rows.read()?, hidden.write(n)?)?;
            self.add.run(ctx, middle.write(n)?, hidden.read(n)?)?;
        }
        self.embedding_norm.run(ctx, middle.read(n)?, hidden.write(n)?)?;
        let step = Step { ctx, n, ropes: &self.ropes, positions: self.inputs.positions.read()?, sequences };
        for layer in &self.layers {
            layer.run(&step, hidden, middle, scratch)?;
        }
        match &self.final_norm {
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
            let reason = format!("{rows} tokens in {n} texts, planned for {most_rows} tokens in {most}");
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
        if let Some((_, rows, learned)) = &mut self.learned_positions {
            let of = texts.iter().flat_map(|text| learned_rows(text, *learned));
            rows.upload(ctx, &of.collect::<Vec<_>>())?;
        }
        if let Some((_, types)) = &mut self.token_types {
            types.upload(ctx, &vec![0u32; n])?;
        }
        self.inputs.tokens.upload(ctx, &tokens)?;
        self.inputs.positions.upload(ctx, &positions)?;
        self.inputs.query_start.upload(ctx, &query_start)?;
        self.inputs.kv_len.upload(ctx, &kv_len)
    }
}

impl PassInputs {
    fn new(ctx: &Context, max_rows: usize, max_sequences: usize) -> Result<Self> {
        Ok(Self {
            tokens: Values::new(ctx, DType::U32, max_rows)?,
            positions: Values::new(ctx, DType::I32, max_rows)?,
            query_start: Values::new(ctx, DType::I32, max_sequences + 1)?,
            kv_len: Values::new(ctx, DType::I32, max_sequences)?,
        })
    }

    /// Bytes of its numbers.
    fn bytes(max_rows: usize, max_sequences: usize) -> usize {
        sum([
            Values::bytes(DType::U32, max_rows),
            Values::bytes(DType::I32, max_rows),
            Values::bytes(DType::I32, max_sequences.saturating_add(1)),
            Values::bytes(DType::I32, max_sequences),
        ])
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

fn norm(loader: &mut Loader<'_>, config: &EncoderConfig, name: &str, max_rows: usize) -> Result<Norm> {
    let options = norm_options(loader, config, name)?;
    Ok(Norm::new(loader.context(), options, max_rows)?)
}

/// What a norm is made of.
fn norm_options(loader: &mut Loader<'_>, config: &EncoderConfig, name: &str) -> Result<NormOptions> {
    let (width, eps) = (config.hidden_size, config.layer_norm_eps);
    if config.norm_bias {
        return loader.norm_options(name, width, NormKind::Layer, eps, [DType::F32; 2]);
    }
    let weight = loader.vector(&format!("{name}.weight"), width)?;
    Ok(NormOptions::layer(eps, weight, None, DType::F32, DType::F32))
}

/// Bytes of the vectors of [`norm`].
fn norm_bytes(sizes: &Sizes<'_>, config: &EncoderConfig, name: &str) -> Result<usize> {
    match config.norm_bias {
        true => sizes.layer_norm(name, config.hidden_size),
        false => sizes.vector(&format!("{name}.weight"), config.hidden_size),
    }
}
