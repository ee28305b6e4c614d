//! How language models are loaded, and how large their steps are.

use sinew_memory::DeviceKind;
use sinew_ops::Context;
use sinew_ops::layers::OldKv;
use sinew_tensor::DType;

use crate::cache::CacheShape;
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::load::{DeviceBytes, Maker, Sizes};
use crate::precision::{Precision, WeightOptions};
use crate::steps::logits::Logits;
use crate::{DecoderConfig, Error, Result};

/// How a model is loaded and how large its steps may be.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// The weights.
    pub weights: WeightOptions,
    /// Tokens of one sequence, prompt and answer; [`DecoderConfig::usual_context`] where it is `None`. A rotary embedding
    /// that depends on the length of sequences is that of this length for all of them, whatever a prompt or a request of
    /// an engine needs, until [`LanguageModel::rotate_for`](crate::LanguageModel::rotate_for) says else.
    pub context: Option<usize>,
    /// Tokens in one step of a prompt.
    pub prefill_chunk: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens that the cache has room for, in whole blocks; every sequence at its longest where it is `None`.
    pub cache_tokens: Option<usize>,
    /// Tokens that there is room for on the host, of sequences that make room for others in an engine.
    pub swap_tokens: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Dtype of the cache: f32, f16, bf16, or, on CPUs, int8 or fp8 (e4m3) with a scale for each token and head; that of
    /// [`Precision::of`] where it is `None`.
    pub kv: Option<DType>,
    /// In what form old keys and values are kept, on CPUs: int8 or fp8 (e4m3) with a scale for each token and head, while
    /// recent ones stay in `kv`. The token at position `p` sees those below `64 · ⌊(p + 1 - recent) / 64⌋` so, whatever
    /// step it is run in; layers whose window has no more than the recent ones have none. `None` keeps all alike.
    pub old_kv: Option<OldKv>,
    /// Rows of logits held at once; a step may have more rows.
    pub max_logits: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            weights: WeightOptions::default(),
            context: None,
            prefill_chunk: 512,
            max_sequences: 1,
            cache_tokens: None,
            swap_tokens: 0,
            block_size: 16,
            kv: None,
            old_kv: None,
            max_logits: 1,
        }
    }
}

impl LoadOptions {
    /// The precision of a model with these weights and this cache on a device.
    ///
    /// # Errors
    /// Those of [`WeightOptions::precision`], [`Precision::with_kv`] and [`Precision::with_old_kv`].
    pub fn precision(&self, checkpoint: &Checkpoint, ctx: &Context) -> Result<Precision> {
        let precision = self.weights.precision(checkpoint, ctx)?;
        precision.with_kv(self.kv, ctx)?.with_old_kv(self.old_kv, ctx)
    }

    /// How large the steps of a model are.
    ///
    /// # Errors
    /// Sizes of 0, or a context that the model does not have.
    pub fn limits(&self, config: &DecoderConfig) -> Result<Limits> {
        let &Self { max_sequences, block_size, .. } = self;
        let longest = config.longest_context();
        let context = self.context.unwrap_or(config.usual_context());
        if context == 0 || context > longest {
            return Err(Error::Input(format!("a context of {context} tokens; the model has {longest} positions")));
        }
        if block_size == 0 || self.prefill_chunk == 0 || max_sequences == 0 {
            return Err(Error::Input("block size, prefill chunk and sequences must be at least 1".to_owned()));
        }
        // No more than all sequences have at their longest.
        let max_rows = self.prefill_chunk.min(context.saturating_mul(max_sequences)).max(max_sequences);
        let max_logits = Some(self.max_logits.max(max_sequences));
        Ok(Limits { max_rows, max_sequences, context, block_size, max_logits }.capped())
    }

    /// What loading makes of a checkpoint of such sizes.
    pub(crate) fn device_bytes(&self, config: &DecoderConfig, sizes: &mut Sizes<'_>) -> Result<DeviceBytes> {
        let limits = self.limits(config)?;
        Decoder::count(sizes, config, &limits)?;
        let cache = self.cache_shape(config, sizes.precision()).map_or(usize::MAX, |shape| {
            // What is swapped out is in the same memory on a CPU.
            let host = if sizes.device() == DeviceKind::CPU { shape.host_bytes(self.swap_tokens) } else { 0 };
            shape.bytes().saturating_add(host)
        });
        let logits = Logits::bytes(config.vocab_size, limits.max_wanted());
        Ok(DeviceBytes { cache, logits, ..sizes.device_bytes() })
    }

    /// The cache.
    pub(crate) fn cache_shape(&self, config: &DecoderConfig, precision: Precision) -> Result<CacheShape> {
        CacheShape::new(config, &precision, &self.limits(config)?, self.cache_tokens)
    }
}

/// How large a step of a decoder can be.
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
    /// Rows of logits at once. `None` loads no head: the model then gives hidden states only.
    pub max_logits: Option<usize>,
}

impl Limits {
    /// These limits, with at most one row of logits for each row of a step.
    pub(crate) fn capped(self) -> Self {
        Self { max_logits: self.max_logits.map(|most| most.min(self.max_rows)), ..self }
    }

    /// Maximum number of rows of a step whose logits are computed at once.
    pub(crate) fn max_wanted(&self) -> usize {
        self.max_logits.unwrap_or(self.max_rows)
    }
}
