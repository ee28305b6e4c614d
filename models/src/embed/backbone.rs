//! What an embedding model runs its texts through: an encoder, or a decoder whose hidden states are taken.

use sinew_ops::Context;
use sinew_tensor::{DType, Layout, PagedLayout, Tensor};

use super::{MAX_TEXTS, PASS_TOKENS};
use crate::batch::{Batch, Wanted};
use crate::cache::KvCache;
use crate::decoder::{Decoder, Limits};
use crate::encoder::Encoder;
use crate::load::{Loader, Precision};
use crate::{DecoderConfig, Error, ModelConfig, Result};

/// Tokens in a block of the cache.
const BLOCK_SIZE: usize = 16;

/// Texts as tokens to hidden states.
#[derive(Debug)]
pub(super) enum Backbone {
    Encoder(Box<Encoder>),
    Decoder(Box<HiddenStates>),
}

/// A decoder without a head.
#[derive(Debug)]
pub(super) struct HiddenStates {
    decoder: Decoder,
    /// As large as the longest text so far needed, and empty between passes.
    cache: KvCache,
    batch: Batch,
    /// Normed hidden states of a step, `[max_rows, hidden_size]`.
    states: Tensor,
}

impl Backbone {
    pub(super) fn load(loader: &mut Loader<'_>, config: &ModelConfig) -> Result<Self> {
        match config {
            ModelConfig::Encoder(config) => {
                let rows = config.max_position_embeddings.max(PASS_TOKENS);
                let what = format!("activations for {rows} tokens");
                check_memory(loader.context(), &what, config.pass_bytes(rows))?;
                Ok(Self::Encoder(Box::new(Encoder::load(loader, config, rows, MAX_TEXTS)?)))
            }
            ModelConfig::Decoder(config) => Ok(Self::Decoder(Box::new(HiddenStates::load(loader, config)?))),
        }
    }

    pub(super) fn hidden_size(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().hidden_size,
            Self::Decoder(states) => states.decoder.config().hidden_size,
        }
    }

    pub(super) fn precision(&self) -> Precision {
        match self {
            Self::Encoder(encoder) => encoder.precision(),
            Self::Decoder(states) => states.decoder.precision(),
        }
    }

    /// The most tokens of a text.
    pub(super) fn longest(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().max_position_embeddings,
            Self::Decoder(states) => states.decoder.limits().context,
        }
    }

    /// The most tokens of several texts that share a pass.
    pub(super) fn max_rows(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.max_rows(),
            Self::Decoder(states) => states.decoder.limits().max_rows,
        }
    }

    /// The last hidden states of each text's tokens, or of its last token only. Texts that together are longer than a
    /// pass are no more than one.
    pub(super) fn run(&mut self, ctx: &Context, texts: &[&[u32]], last: bool) -> Result<Vec<Vec<f32>>> {
        let width = self.hidden_size();
        match self {
            Self::Encoder(encoder) => {
                let mut states = &encoder.forward(ctx, texts)?[..];
                let rows = texts.iter().map(|text| {
                    let (of_text, rest) = states.split_at(text.len() * width);
                    states = rest;
                    let skipped = if last { text.len().saturating_sub(1) } else { 0 };
                    of_text[skipped * width..].to_vec()
                });
                Ok(rows.collect())
            }
            Self::Decoder(states) => states.run(ctx, texts, last),
        }
    }
}

impl HiddenStates {
    fn load(loader: &mut Loader<'_>, config: &DecoderConfig) -> Result<Self> {
        let ctx = loader.context().clone();
        let context = longest(config);
        let limits =
            Limits { max_rows: PASS_TOKENS, max_sequences: MAX_TEXTS, context, block_size: BLOCK_SIZE, max_logits: 0 };
        let table = context.checked_mul(config.head_dim).and_then(|n| n.checked_mul(DType::F32.size()));
        check_memory(&ctx, &format!("rotary tables for {context} tokens"), table)?;
        let cache = new_cache(&ctx, config, loader.precision(), limits.max_rows)?;
        let decoder = Decoder::load(loader, config, limits)?;
        let states = ctx.uninitialised(DType::F32, &[limits.max_rows, config.hidden_size])?;
        Ok(Self { decoder, cache, batch: Batch::for_limits(&limits), states })
    }

    fn run(&mut self, ctx: &Context, texts: &[&[u32]], last: bool) -> Result<Vec<Vec<f32>>> {
        let Self { decoder, cache, batch, states } = self;
        let (most, width) = (decoder.limits().max_rows, decoder.config().hidden_size);
        let tokens: usize = texts.iter().map(|text| text.len()).sum();
        if blocks(tokens) > cache.layout().num_blocks() {
            *cache = new_cache(ctx, decoder.config(), decoder.precision(), tokens)?;
        }
        let mut sequences: Vec<_> = texts.iter().map(|text| cache.sequence(text.len())).collect();
        let mut of_texts = vec![Vec::new(); texts.len()];
        // All texts in one step, or one text in several.
        let steps = tokens.div_ceil(most);
        for step in 0..steps {
            batch.clear();
            let mut ends = Vec::with_capacity(texts.len());
            for (sequence, text) in sequences.iter_mut().zip(texts) {
                let part = match steps {
                    1 => text,
                    _ => &text[step * most..text.len().min((step + 1) * most)],
                };
                let wanted = match last {
                    false => Wanted::All,
                    true if step + 1 == steps => Wanted::Last,
                    true => Wanted::None,
                };
                sequence.append(part.len())?;
                batch.push(sequence, part, wanted)?;
                ends.push(batch.wanted().len());
            }
            decoder.forward(ctx, cache, batch)?;
            let n = batch.wanted().len();
            decoder.hidden(ctx, batch.wanted(), states)?;
            let rows: Vec<f32> = states.with_layout(Layout::contiguous(&[n, width])?)?.to_vec_on(&**ctx.stream())?;
            let mut start = 0;
            for (of_text, end) in of_texts.iter_mut().zip(ends) {
                of_text.extend_from_slice(&rows[start * width..end * width]);
                start = end;
            }
        }
        Ok(of_texts)
    }
}

/// The longest text of a decoder: no longer than keeps its rotary embedding as it was first trained.
pub(super) fn longest(config: &DecoderConfig) -> usize {
    let unchanged = config.ropes.iter().filter_map(|rope| rope.scaling.changes_beyond()).min();
    config.max_position_embeddings.min(unchanged.unwrap_or(usize::MAX))
}

/// Blocks for tokens of any number of texts that share a pass: each may leave one unfilled.
fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_SIZE).saturating_add(MAX_TEXTS)
}

fn new_cache(ctx: &Context, config: &DecoderConfig, precision: Precision, tokens: usize) -> Result<KvCache> {
    let (kv_heads, head_dim) = (config.num_key_value_heads, config.head_dim);
    let layout = PagedLayout::new(blocks(tokens), kv_heads, BLOCK_SIZE, head_dim, precision.kv)?;
    let bytes = KvCache::bytes_for(config.num_hidden_layers(), &layout);
    check_memory(ctx, &format!("keys and values of {tokens} tokens"), bytes)?;
    KvCache::new(ctx, config.num_hidden_layers(), layout)
}

/// Refuses what the free memory of the device cannot hold before any of it is allocated.
fn check_memory(ctx: &Context, what: &str, bytes: Option<usize>) -> Result<()> {
    let available = ctx.device().memory()?.available;
    if bytes.is_some_and(|bytes| bytes <= available) {
        return Ok(());
    }
    let needed = bytes.map_or_else(|| "more bytes than can be counted".to_owned(), |n| format!("{n} bytes"));
    Err(Error::Input(format!("{what} take {needed}; {available} are free")))
}
