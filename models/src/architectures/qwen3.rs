//! Qwen3 (Yang et al. 2025): Qwen2 with norms of each query and key instead of biases; and Qwen3-Embedding.

use super::{Architecture, llama, qwen2};
use crate::config::{DecoderConfig, Defaults, ModelConfig, QkNorm};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture =
    Architecture { name: "Qwen3, Qwen3-Embedding", model_types: &["qwen3"], read };

const DEFAULTS: Defaults = Defaults { head_dim: Some(128), ..qwen2::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    Ok(ModelConfig::Decoder(read_decoder(config, &DEFAULTS)?))
}

pub(super) fn read_decoder(config: &Fields<'_>, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut model = DecoderConfig::read_with_rope(config, defaults, &llama::NAMES)?;
    model.read_attention_bias(config, false)?;
    model.qk_norm = Some(QkNorm::Head);
    qwen2::read_windows(config, &mut model)?;
    Ok(model)
}
