//! Gemma 2 (Gemma Team 2024): norms on both sides of each sublayer, bounded scores and logits, and windows in every
//! other layer.

use super::{Architecture, llama};
use crate::config::fields::read_window;
use crate::config::{
    DecoderConfig, Defaults, FieldNames, ModelConfig, NormKind, RopeConfig, RopeDefaults, TensorNames,
};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Gemma 2", model_types: &["gemma2"], read };

pub(super) const NAMES: TensorNames = TensorNames {
    attention_output_norm: Some("post_attention_layernorm"),
    mlp_norm: Some("pre_feedforward_layernorm"),
    mlp_output_norm: Some("post_feedforward_layernorm"),
    ..llama::NAMES
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: None,
    num_attention_heads: None,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    norm_eps: 1e-6,
    hidden_act: "gelu_pytorch_tanh",
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_id: Some(1),
    rope: RopeDefaults::USUAL,
};

/// What the older files call `hidden_act` is not what counts.
const FIELDS: FieldNames = FieldNames { hidden_act: "hidden_activation", ..FieldNames::USUAL };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = read_decoder(config, &DEFAULTS, &NAMES, [Some(50.0), Some(30.0)], |layer| layer % 2 == 1)?;
    model.add_rope(RopeConfig::read(config, DEFAULTS.rope, model.max_position_embeddings)?);
    Ok(ModelConfig::Decoder(model))
}

/// What Gemma 2 and 3 share: all but the rotary embeddings. `softcaps` of scores and logits, and the layers that are
/// `full`, are those where the config says nothing.
pub(super) fn read_decoder(
    config: &Fields<'_>,
    defaults: &Defaults,
    names: &'static TensorNames,
    softcaps: [Option<f64>; 2],
    full: impl Fn(usize) -> bool,
) -> Result<DecoderConfig> {
    let mut model = DecoderConfig::read(config, defaults, &FIELDS, names)?;
    let softcap = |name: &str, default: Option<f64>| match config.mentions(name) {
        true => config.positive(name),
        false => Ok(default),
    };
    model.attention_softcap = softcap("attn_logit_softcapping", softcaps[0])?;
    model.logit_softcap = softcap("final_logit_softcapping", softcaps[1])?;
    model.norm = NormKind::RmsOffset;
    model.embedding_scale = Some((model.hidden_size as f64).sqrt());
    model.read_attention_bias(config, false)?;
    let scale = config.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5);
    let window = config.required("sliding_window", read_window(config, Some(4096))?)?;
    model.read_windows(config, Some(window), full)?;
    model.layers.iter_mut().for_each(|layer| layer.attention_scale = scale);
    Ok(model)
}
