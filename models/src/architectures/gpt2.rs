//! GPT-2 (Radford et al. 2019): layer norms, learned positions, no gate, and matrices stored the other way round.

use super::{Architecture, llama};
use crate::config::{DecoderConfig, Defaults, FeedForward, FieldNames, ModelConfig, NormKind, Qkv, TensorNames, Up};
use crate::error::{Error, Result};
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "GPT-2", model_types: &["gpt2"], read };

const NAMES: TensorNames = TensorNames {
    prefixes: &["transformer.", ""],
    embedding: "wte",
    positions: "wpe",
    layer: "h.",
    attention_norm: Some("ln_1"),
    qkv: Qkv::Stacked("attn.c_attn"),
    attention_output: "attn.c_proj",
    mlp_norm: Some("ln_2"),
    up: Up::Plain("mlp.c_fc"),
    down: "mlp.c_proj",
    norm: "ln_f",
    transposed: true,
    spare: &["attn.bias", "attn.masked_bias"],
    ..llama::NAMES
};

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 1024,
    norm_eps: 1e-5,
    hidden_act: "gelu_new",
    tie_word_embeddings: true,
    bos_token_id: Some(50256),
    eos_token_id: Some(50256),
    ..llama::DEFAULTS
};

const FIELDS: FieldNames = FieldNames {
    hidden_size: "n_embd",
    num_hidden_layers: "n_layer",
    num_attention_heads: "n_head",
    intermediate_size: "n_inner",
    max_position_embeddings: "n_positions",
    norm_eps: "layer_norm_epsilon",
    hidden_act: "activation_function",
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    if config.flag("add_cross_attention")? == Some(true) {
        return Err(Error::Unsupported {
            what: "add_cross_attention in a gpt2 model".to_owned(),
            supported: "decoders without an encoder".to_owned(),
        });
    }
    let mut model = DecoderConfig::read(config, &DEFAULTS, &FIELDS, &NAMES)?;
    model.norm = NormKind::Layer;
    model.learned_positions = true;
    (model.qkv_bias, model.o_bias, model.mlp_bias) = (true, true, true);
    let scaled = config.flag("scale_attn_weights")?.unwrap_or(true);
    let by_layer = config.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    for (index, layer) in model.layers.iter_mut().enumerate() {
        let scale = if scaled { layer.attention_scale } else { 1.0 };
        layer.attention_scale = if by_layer { scale / (index + 1) as f64 } else { scale };
        if layer.feed_forward.width() == 0 {
            layer.feed_forward = FeedForward::Dense { width: 4 * model.hidden_size };
        }
    }
    Ok(ModelConfig::Decoder(model))
}
