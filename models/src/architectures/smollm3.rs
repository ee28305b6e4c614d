//! SmolLM3 (Hugging Face 2025): Llama with a layer in four that knows no positions.

use serde_json::Value;

use super::{Architecture, llama};
use crate::config::fields::{MAX_SIZE, read_window};
use crate::config::{DecoderConfig, Defaults, ModelConfig, RopeDefaults};
use crate::error::Result;
use crate::json::{Fields, as_count, brief};

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "SmolLM3", model_types: &["smollm3"], read };

const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(4),
    max_position_embeddings: 32768,
    tie_word_embeddings: true,
    bos_token_id: Some(128_000),
    eos_token_id: Some(128_001),
    rope: RopeDefaults::theta(2e6),
    ..llama::DEFAULTS
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &llama::NAMES)?;
    llama::read_biases(config, &mut model)?;
    let window = match config.flag("use_sliding_window")?.unwrap_or(false) {
        true => read_window(config, None)?,
        false => None,
    };
    let rotated = read_rotated(config, model.layers.len())?;
    model.read_windows(config, window, |layer| window.is_none() || rotated[layer])?;
    for (layer, rotated) in model.layers.iter_mut().zip(&rotated) {
        layer.rope = rotated.then_some(0);
    }
    Ok(ModelConfig::Decoder(model))
}

/// Which layers have a rotary embedding: 1 in `no_rope_layers`, despite the name.
fn read_rotated(config: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let Some(flags) = config.list("no_rope_layers")? else {
        let interval = config.size("no_rope_layer_interval", MAX_SIZE)?.unwrap_or(4);
        return Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    if flags.len() < layers {
        return Err(config.problem("no_rope_layers", &format!("has {} entries for {layers} layers", flags.len())));
    }
    let flag = |value: &Value| match as_count(value) {
        Some(flag @ (0 | 1)) => Ok(flag == 1),
        _ => Err(config.problem("no_rope_layers", &format!("must hold 0 and 1, has {}", brief(value)))),
    };
    flags[..layers].iter().map(flag).collect()
}
