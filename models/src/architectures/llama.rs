//! Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024): the pattern that most decoders follow.

use super::Architecture;
use crate::config::{
    DecoderConfig, Defaults, ExpertMatrices, Experts, ModelConfig, Qkv, RopeDefaults, TensorNames, Up,
};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Llama 2, 3", model_types: &["llama"], read };

pub(super) const NAMES: TensorNames = TensorNames {
    prefixes: &["model.", ""],
    embedding: "embed_tokens",
    positions: "",
    layer: "layers.",
    attention_norm: Some("input_layernorm"),
    qkv: Qkv::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    sinks: None,
    attention_output: "self_attn.o_proj",
    attention_output_norm: None,
    mlp_norm: Some("post_attention_layernorm"),
    up: Up::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    mlp_output_norm: None,
    experts: Experts {
        router: "mlp.gate",
        matrices: ExpertMatrices::Each { expert: "mlp.experts.", gate: "gate_proj", up: "up_proj", down: "down_proj" },
    },
    norm: "norm",
    heads: &["lm_head"],
    transposed: false,
    spare: &["rotary_emb.inv_freq"],
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: None,
    num_attention_heads: None,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    norm_eps: 1e-6,
    hidden_act: "silu",
    tie_word_embeddings: false,
    bos_token_id: Some(1),
    eos_token_id: Some(2),
    rope: RopeDefaults::USUAL,
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &NAMES)?;
    read_biases(config, &mut model)?;
    Ok(ModelConfig::Decoder(model))
}

/// Biases of attention's four products and of the feed-forward layer's three.
pub(super) fn read_biases(config: &Fields<'_>, model: &mut DecoderConfig) -> Result<()> {
    model.read_attention_bias(config, false)?;
    model.mlp_bias = config.flag("mlp_bias")?.unwrap_or(false);
    Ok(())
}
