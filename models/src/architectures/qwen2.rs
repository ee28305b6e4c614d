//! Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values, and windows on request.

use super::{Architecture, llama};
use crate::config::fields::{LayerType, MAX_SIZE, read_layer_types, read_window};
use crate::config::{DecoderConfig, Defaults, ModelConfig};
use crate::error::Result;
use crate::files::Fields;

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
    let sliding = |layer| window.is_some() && layer >= first;
    let by_number = |layer| if sliding(layer) { LayerType::Sliding } else { LayerType::Full };
    let types = read_layer_types(config, model.layers.len(), by_number)?;
    if window.is_none() && types.contains(&LayerType::Sliding) {
        return Err(config.problem(
            "layer_types",
            "asks for sliding_attention, but use_sliding_window and sliding_window give no window",
        ));
    }
    for (layer, layer_type) in model.layers.iter_mut().zip(types) {
        layer.window = window.filter(|_| layer_type == LayerType::Sliding);
    }
    Ok(())
}
