//! Gemma 3 (Gemma Team 2025), its text model: Gemma 2 with norms of queries and keys in place of bounded scores, five
//! layers with a window to one without, and a rotary embedding for each of the two. The model that sees images, too,
//! has this one inside.

use super::{Architecture, gemma2};
use crate::config::fields::{MAX_SIZE, token_ids};
use crate::config::{Defaults, ModelConfig, QkNorm, RopeConfig, RopeDefaults, TensorNames};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture =
    Architecture { name: "Gemma 3 (text)", model_types: &["gemma3_text", "gemma3"], read };

const NAMES: TensorNames = TensorNames {
    prefixes: &["model.", "language_model.model.", "model.language_model.", ""],
    heads: &["lm_head", "language_model.lm_head"],
    ..gemma2::NAMES
};

/// Files of the model that sees images leave out the sizes that are these.
const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(262_208),
    num_attention_heads: Some(8),
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    norm_eps: 1e-6,
    hidden_act: "gelu_pytorch_tanh",
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_id: Some(1),
    rope: RopeDefaults::theta(1e6),
};

const SLIDING_ROPE: RopeDefaults =
    RopeDefaults { theta_field: "rope_local_base_freq", ..RopeDefaults::theta(10_000.0) };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let root = config;
    let text = config.section("text_config")?;
    let config = &text.unwrap_or(*root);
    let pattern = config.size("sliding_window_pattern", MAX_SIZE)?.unwrap_or(6);
    let full = |layer: usize| (layer + 1).is_multiple_of(pattern);
    let mut model = gemma2::read_decoder(config, &DEFAULTS, &NAMES, [None, None], full)?;
    if text.is_some() && !config.mentions("eos_token_id") && root.mentions("eos_token_id") {
        model.eos_token_ids = token_ids(root, "eos_token_id", model.vocab_size)?;
    }
    if text.is_some() {
        // transformers ties by what the whole model says.
        model.tie_word_embeddings = root.flag("tie_word_embeddings")?.unwrap_or(true);
    }
    // The field is left from Gemma 2; transformers passes it over.
    model.attention_softcap = None;
    model.qk_norm = Some(QkNorm::Head);
    let ropes = [DEFAULTS.rope, SLIDING_ROPE];
    model.ropes = RopeConfig::read_by_layer_type(config, ropes, model.max_position_embeddings)?.to_vec();
    for layer in &mut model.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    Ok(ModelConfig::Decoder(model))
}
