//! ModernBERT (Warner et al. 2024): rotary positions, norms first, gated feed-forward, and layers that see all tokens
//! among layers that see those near.

use crate::EncoderConfig;
use crate::config::{EncoderDefaults, MAX_SIZE, Names, RopeConfig, RopeScaling};
use crate::error::{Error, Result};
use crate::files::{Fields, brief};

const NAMES: Names = Names {
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
};

pub(super) fn read(config: &Fields<'_>) -> Result<EncoderConfig> {
    let defaults = EncoderDefaults {
        norm_eps: ("norm_eps", 1e-5),
        hidden_act: "hidden_activation",
        max_position_embeddings: 8192,
        pad_token_id: 50283,
    };
    let encoder = EncoderConfig::read(config, "modernbert", &NAMES, &defaults)?;
    let flag = |name: &str| Ok::<_, Error>(config.flag(name)?.unwrap_or(false));
    let encoder = EncoderConfig {
        type_vocab_size: 0,
        norm_first: true,
        norm_bias: flag("norm_bias")?,
        attention_bias: flag("attention_bias")?,
        mlp_bias: flag("mlp_bias")?,
        gated: true,
        window: windows(config, encoder.num_hidden_layers)?,
        ..encoder
    };
    let [full, local] = ropes(config)?;
    encoder.with_rotary(config, full, local)
}

/// `layer_types`, or without it every `global_attn_every_n_layers`th layer from the first on, sees all tokens; the others
/// see half of `local_attention` on either side, and the token itself.
fn windows(config: &Fields<'_>, num_hidden_layers: usize) -> Result<Vec<Option<usize>>> {
    let local = config.size("local_attention", MAX_SIZE)?.unwrap_or(128) / 2 + 1;
    let Some(layer_types) = config.list("layer_types")? else {
        let every = config.size("global_attn_every_n_layers", MAX_SIZE)?.unwrap_or(3);
        return Ok((0..num_hidden_layers).map(|layer| (!layer.is_multiple_of(every)).then_some(local)).collect());
    };
    if layer_types.len() != num_hidden_layers {
        let problem = format!("has {} entries for {num_hidden_layers} layers", layer_types.len());
        return Err(config.problem("layer_types", &problem));
    }
    let of_layer = |layer_type: &serde_json::Value| match layer_type.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(Some(local)),
        _ => Err(Error::Unsupported {
            what: format!("layer type {}", brief(layer_type)),
            supported: "full_attention, sliding_attention".to_owned(),
        }),
    };
    layer_types.iter().map(of_layer).collect()
}

/// The embeddings of layers that see all tokens, and of the others: in `rope_parameters` by the layer's type, in older
/// files beside the rest.
fn ropes(config: &Fields<'_>) -> Result<[RopeConfig; 2]> {
    let by_type = config.section("rope_parameters")?;
    let scaling = config.section("rope_scaling")?;
    let rope = |layer_type: &'static str, old_name: &str, default: f64| -> Result<RopeConfig> {
        let section = by_type.map(|section| section.section(layer_type)).transpose()?.flatten();
        for kind in [section, scaling].into_iter().flatten() {
            let kind = kind.text("rope_type")?.or(kind.text("type")?).unwrap_or("default");
            if kind != "default" {
                return Err(Error::Unsupported {
                    what: format!("rope type `{}` in a modernbert model", kind.escape_debug()),
                    supported: "default".to_owned(),
                });
            }
        }
        let theta = match section.map(|section| section.positive("rope_theta")).transpose()?.flatten() {
            Some(theta) => theta,
            None => config.positive(old_name)?.unwrap_or(default),
        };
        Ok(RopeConfig { theta, partial_rotary_factor: 1.0, scaling: RopeScaling::None })
    };
    let full = rope("full_attention", "global_rope_theta", 160_000.0)?;
    // An older file that says `null` asks for the same in all layers.
    let same = config.mentions("local_rope_theta") && config.get("local_rope_theta").is_none();
    let local = rope("sliding_attention", "local_rope_theta", if same { full.theta } else { 10_000.0 })?;
    Ok([full, local])
}
