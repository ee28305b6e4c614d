//! OLMo 2 (OLMo Team 2025): Llama whose norms are of what a sublayer adds, not of what it reads, and of all queries and
//! all keys of a token.

use super::{Architecture, llama};
use crate::config::{DecoderConfig, Defaults, ModelConfig, QkNorm, TensorNames};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "OLMo 2", model_types: &["olmo2"], read };

pub(super) const NAMES: TensorNames = TensorNames {
    attention_norm: None,
    attention_output_norm: Some("post_attention_layernorm"),
    mlp_norm: None,
    mlp_output_norm: Some("post_feedforward_layernorm"),
    ..llama::NAMES
};

pub(super) const DEFAULTS: Defaults =
    Defaults { norm_eps: 1e-5, bos_token_id: None, eos_token_id: Some(50279), ..llama::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &NAMES)?;
    read_attention(config, &mut model)?;
    Ok(ModelConfig::Decoder(model))
}

pub(super) fn read_attention(config: &Fields<'_>, model: &mut DecoderConfig) -> Result<()> {
    model.qk_norm = Some(QkNorm::Token);
    model.read_attention_bias(config, false)?;
    Ok(())
}
