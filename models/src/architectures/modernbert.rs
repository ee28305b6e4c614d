//! ModernBERT (Warner et al. 2024): rotary positions, norms first, gated feed-forward, and layers that see all tokens
//! among layers that see those near.

use super::Architecture;
use crate::config::fields::{LayerType, MAX_SIZE, read_layer_types};
use crate::config::{
    EncoderConfig, EncoderDefaults, EncoderLayerConfig, EncoderNames, ModelConfig, RopeConfig, RopeDefaults,
};
use crate::error::{Error, Result};
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "ModernBERT", model_types: &["modernbert"], read };

const NAMES: EncoderNames = EncoderNames {
    prefixes: &["", "model."],
    word: "embeddings.tok_embeddings",
    positions: "",
    token_types: "",
    embedding_norm: "embeddings.norm",
    layer: "layers",
    qkv: &["attn.Wqkv"],
    output: "attn.Wo",
    attention_norm: "attn_norm",
    up: "mlp.Wi",
    down: "mlp.Wo",
    mlp_norm: "mlp_norm",
    final_norm: "final_norm",
    masked_head: ["decoder.bias", "decoder"],
    spare: &[],
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = EncoderDefaults {
        norm_eps: ("norm_eps", 1e-5),
        hidden_act: "hidden_activation",
        max_position_embeddings: 8192,
        pad_token_id: 50283,
    };
    let encoder = EncoderConfig::read(config, &NAMES, &defaults)?;
    let flag = |name: &str| Ok::<_, Error>(config.flag(name)?.unwrap_or(false));
    let encoder = EncoderConfig {
        type_vocab_size: 0,
        norm_first: true,
        norm_bias: flag("norm_bias")?,
        attention_bias: flag("attention_bias")?,
        mlp_bias: flag("mlp_bias")?,
        gated: true,
        layers: layers(config, encoder.layers.len())?,
        ropes: ropes(config, encoder.max_position_embeddings)?.to_vec(),
        learned_positions: None,
        ..encoder
    };
    encoder.check_ropes(config)?;
    Ok(ModelConfig::Encoder(encoder))
}

/// Every `global_attn_every_n_layers`th layer from the first on, or those that `layer_types` names, see all tokens; the
/// others see half of `local_attention` on either side, and the token itself, and have a rotary embedding of their own.
/// Where there is `sliding_window`, it goes before that, and is the tokens on one side: so transformers reads it,
/// though it writes the other.
fn layers(config: &Fields<'_>, num_hidden_layers: usize) -> Result<Vec<EncoderLayerConfig>> {
    let both_sides = config.size("local_attention", MAX_SIZE)?.unwrap_or(128);
    let local = config.count("sliding_window", MAX_SIZE)?.unwrap_or(both_sides / 2) + 1;
    let every = config.size("global_attn_every_n_layers", MAX_SIZE)?.unwrap_or(3);
    let default = |layer: usize| if layer.is_multiple_of(every) { LayerType::Full } else { LayerType::Sliding };
    let types = read_layer_types(config, num_hidden_layers, default)?;
    let layer = |layer_type| match layer_type {
        LayerType::Full => EncoderLayerConfig { window: None, rope: Some(0) },
        LayerType::Sliding => EncoderLayerConfig { window: Some(local), rope: Some(1) },
    };
    Ok(types.into_iter().map(layer).collect())
}

/// The rotary embeddings of layers that see all tokens, and of the others.
fn ropes(config: &Fields<'_>, max_position_embeddings: usize) -> Result<[RopeConfig; 2]> {
    if config.section("rope_scaling")?.is_some_and(|section| !section.is_empty()) {
        return Err(Error::Unsupported {
            what: "rope_scaling in a modernbert model".to_owned(),
            supported: "rope_parameters with a section for each type of layer".to_owned(),
        });
    }
    let full = RopeDefaults { theta_field: "global_rope_theta", ..RopeDefaults::theta(160_000.0) };
    // Where the base of local layers is `null`, it is that of the others.
    let theta = match config.mentions("local_rope_theta") {
        true => config.positive(full.theta_field)?.unwrap_or(full.theta),
        false => 10_000.0,
    };
    let local = RopeDefaults { theta_field: "local_rope_theta", ..RopeDefaults::theta(theta) };
    RopeConfig::read_by_layer_type(config, [full, local], max_position_embeddings)
}
