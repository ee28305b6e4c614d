//! What an embedding model runs its texts through: an encoder, or a decoder whose hidden states are taken.

use sinew_memory::DeviceKind;
use sinew_ops::Context;
use sinew_ops::layers::Place;

use crate::cache::KvCache;
use crate::decoder::Decoder;
use crate::decoder::batch::Wanted;
use crate::encoder::Encoder;
use crate::error::count_of;
use crate::load::Loader;
use crate::passes::{self, MAX_TEXTS};
use crate::plan::{most_that_fits, refuse_beyond_memory};
use crate::precision::Precision;
use crate::steps::runner::Runner;
use crate::{ModelConfig, Result};

/// Texts as tokens to hidden states.
#[derive(Debug)]
pub(super) enum Backbone {
    Encoder(Box<Encoder>),
    /// Of a decoder without a head. Its cache is as large as the longest text so far needed, and empty between passes.
    Decoder(Box<Runner>),
}

impl Backbone {
    pub(super) fn load(loader: &mut Loader<'_>, config: &ModelConfig) -> Result<Self> {
        match config {
            ModelConfig::Encoder(config) => {
                let rows = passes::rows(config, kind_of(loader));
                Ok(Self::Encoder(Box::new(Encoder::load(loader, config, rows, MAX_TEXTS)?)))
            }
            ModelConfig::Decoder(config) => {
                let (ctx, limits) = (loader.context().clone(), passes::limits(config, kind_of(loader)));
                let decoder = Decoder::load(loader, config, limits)?;
                let cache = KvCache::new(&ctx, passes::cache_shape(config, decoder.precision(), limits.max_rows)?)?;
                Ok(Self::Decoder(Box::new(Runner::new(ctx, decoder, cache))))
            }
        }
    }

    pub(super) fn hidden_size(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().hidden_size,
            Self::Decoder(runner) => runner.decoder().config().hidden_size,
        }
    }

    pub(super) fn precision(&self) -> Precision {
        match self {
            Self::Encoder(encoder) => encoder.precision(),
            Self::Decoder(runner) => runner.decoder().precision(),
        }
    }

    pub(super) fn kernels(&self) -> Vec<Place> {
        match self {
            Self::Encoder(encoder) => encoder.kernels(),
            Self::Decoder(runner) => runner.decoder().kernels(),
        }
    }

    /// The most tokens of a text.
    pub(super) fn longest(&self) -> usize {
        match self {
            Self::Encoder(encoder) => encoder.config().max_position_embeddings,
            Self::Decoder(runner) => runner.decoder().limits().context,
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
            Self::Decoder(runner) => hidden_states(runner, texts, last),
        }
    }
}

/// What [`Backbone::run`] gives of a decoder.
fn hidden_states(runner: &mut Runner, texts: &[&[u32]], last: bool) -> Result<Vec<Vec<f32>>> {
    let (most, width) = (runner.decoder().limits().max_rows, runner.decoder().config().hidden_size);
    let tokens: usize = texts.iter().map(|text| text.len()).sum();
    if runner.staging.cache().shape().groups().iter().any(|group| passes::blocks(tokens) > group.layout.num_blocks()) {
        let (config, precision) = (runner.decoder().config(), runner.decoder().precision());
        refuse_beyond_memory(
            runner.staging.context(),
            &[("KV cache", passes::cache_bytes(config, precision, tokens))],
            &format!("a text of {}", count_of(tokens, "token")),
            |available| {
                let fits = |tokens| Ok(passes::cache_bytes(config, precision, tokens) <= available);
                Ok(format!("what would fit: {}", count_of(most_that_fits(tokens, fits)?, "token")))
            },
        )?;
        runner.staging.replace_cache(passes::cache_shape(config, precision, tokens)?)?;
    }
    let mut sequences: Vec<_> = texts.iter().map(|text| runner.staging.cache().sequence(text.len())).collect();
    let mut of_texts = vec![Vec::new(); texts.len()];
    // All texts in one step, or one text in several.
    let steps = tokens.div_ceil(most);
    for step in 0..steps {
        runner.staging.begin();
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
            runner.staging.stage(sequence, part, wanted)?;
            ends.push(runner.staging.wanted());
        }
        runner.run()?;
        let rows = runner.hidden()?;
        let mut start = 0;
        for (of_text, end) in of_texts.iter_mut().zip(ends) {
            of_text.extend_from_slice(&rows[start * width..end * width]);
            start = end;
        }
    }
    Ok(of_texts)
}

fn kind_of(loader: &Loader<'_>) -> DeviceKind {
    loader.context().device().id().kind
}
