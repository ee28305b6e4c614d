//! Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows on request.

use super::{Architecture, llama};
use crate::config::fields::{MAX_SIZE, read_window};
use crate::config::{DecoderConfig, Defaults, ModelConfig};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Qwen2, Qwen2.5", model_types: &["qwen2"], read };

pub(super) const DEFAULTS: Defaults =
    Defaults { max_position_embeddings: 32768, bos_token_id: None, eos_token_id: None, ..llama::DEFAULTS };

const WINDOW: usize = 4096;
const MAX_WINDOW_LAYERS: usize = 28;

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &llama::NAMES)?;
    model.qkv_bias = true;
    read_windows(config, &mut model)?;
    Ok(ModelConfig::Decoder(model))
}

/// Windows only with `use_sliding_window`, and then in the layers that `layer_types` names or, without it, from
/// `max_window_layers` on.
pub(super) fn read_windows(config: &Fields<'_>, model: &mut DecoderConfig) -> Result<()> {
    let window = match config.flag("use_sliding_window")?.unwrap_or(false) {
        true => read_window(config, Some(WINDOW))?,
        false => None,
    };
    let first = config.count("max_window_layers", MAX_SIZE)?.unwrap_or(MAX_WINDOW_LAYERS);
    model.read_windows(config, window, |layer| window.is_none() || layer < first)
}
