//! GPT-NeoX and Pythia (Black et al. 2022): layer norms, attention and feed-forward side by side, and a part of each
//! head rotated.

use super::{Architecture, llama};
use crate::config::{
    DecoderConfig, Defaults, FieldNames, ModelConfig, NormKind, Qkv, RopeConfig, RopeDefaults, TensorNames, Up,
};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture =
    Architecture { name: "GPT-NeoX, Pythia", model_types: &["gpt_neox"], read };

const NAMES: TensorNames = TensorNames {
    prefixes: &["gpt_neox.", ""],
    embedding: "embed_in",
    qkv: Qkv::ByHead("attention.query_key_value"),
    attention_output: "attention.dense",
    up: Up::Plain("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    norm: "final_layer_norm",
    // transformers 5 calls the module `lm_head` and saves it as `embed_out`; safetensors' `save_model` does not rename it.
    heads: &["embed_out", "lm_head"],
    spare: &["attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"],
    ..llama::NAMES
};

const DEFAULTS: Defaults = Defaults {
    norm_eps: 1e-5,
    hidden_act: "gelu",
    bos_token_id: Some(0),
    rope: RopeDefaults { theta_field: "rotary_emb_base", partial: Some((0.25, "rotary_pct")), ..RopeDefaults::USUAL },
    ..llama::DEFAULTS
};

const FIELDS: FieldNames = FieldNames { norm_eps: "layer_norm_eps", ..FieldNames::USUAL };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read(config, &DEFAULTS, &FIELDS, &NAMES)?;
    // It has no field for these, and every head has its own.
    model.num_key_value_heads = model.num_attention_heads;
    model.norm = NormKind::Layer;
    model.parallel_residual = config.flag("use_parallel_residual")?.unwrap_or(true);
    model.read_attention_bias(config, true)?;
    model.mlp_bias = true;
    model.add_rope(RopeConfig::read(config, DEFAULTS.rope, model.max_position_embeddings)?);
    Ok(ModelConfig::Decoder(model))
}
