//! How large the passes of an embedding model are, and the memory that it takes for them.

use sinew_memory::DeviceKind;

use crate::cache::CacheShape;
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::load::{DeviceBytes, Maker, Sizes};
use crate::load_options::Limits;
use crate::precision::Precision;
use crate::{DecoderConfig, EncoderConfig, ModelConfig, Result};

/// The most texts in one pass.
pub(crate) const MAX_TEXTS: usize = 32;

/// Tokens in a block of a decoder's cache.
const BLOCK_SIZE: usize = 16;

/// Tokens in one pass, which several texts share, and which the longest text of an encoder may exceed: on a CPU few
/// enough that what one layer hands to the next stays in its caches.
pub(crate) fn tokens(device: DeviceKind) -> usize {
    if device == DeviceKind::CPU { 512 } else { 2048 }
}

/// Tokens of an encoder's pass: several texts, or the longest.
pub(crate) fn rows(config: &EncoderConfig, device: DeviceKind) -> usize {
    config.max_position_embeddings.max(tokens(device))
}

/// How large the steps of a decoder are, which may take several for its longest text.
pub(crate) fn limits(config: &DecoderConfig, device: DeviceKind) -> Limits {
    Limits {
        max_rows: tokens(device),
        max_sequences: MAX_TEXTS,
        context: config.trained_context(),
        block_size: BLOCK_SIZE,
        max_logits: None,
    }
}

/// Blocks for tokens of any number of texts that share a pass: each may leave one unfilled.
pub(crate) fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_SIZE).saturating_add(MAX_TEXTS)
}

/// A cache for `tokens` tokens in every layer.
pub(crate) fn cache_shape(config: &DecoderConfig, precision: Precision, tokens: usize) -> Result<CacheShape> {
    CacheShape::of_blocks(config, &precision, BLOCK_SIZE, |_| blocks(tokens))
}

pub(crate) fn cache_bytes(config: &DecoderConfig, precision: Precision, tokens: usize) -> usize {
    cache_shape(config, precision, tokens).map_or(usize::MAX, |shape| shape.bytes())
}

/// What a model would take; a decoder's cache grows where one text is longer than a pass.
///
/// # Errors
/// Tensors that are missing or of another shape than the config says.
pub(crate) fn device_bytes(config: &ModelConfig, sizes: &mut Sizes<'_>) -> Result<DeviceBytes> {
    let device = sizes.device();
    match config {
        ModelConfig::Encoder(config) => {
            Encoder::count(sizes, config, rows(config, device), MAX_TEXTS)?;
            Ok(sizes.device_bytes())
        }
        ModelConfig::Decoder(config) => {
            let limits = limits(config, device);
            Decoder::count(sizes, config, &limits)?;
            let cache = cache_bytes(config, sizes.precision(), limits.max_rows);
            Ok(DeviceBytes { cache, ..sizes.device_bytes() })
        }
    }
}
