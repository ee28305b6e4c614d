//! OLMo 3 (OLMo Team 2025): OLMo 2 with windows in three layers of four, and a longer context in the others.

use super::{Architecture, olmo2};
use crate::config::fields::read_window;
use crate::config::{DecoderConfig, Defaults, FieldNames, ModelConfig, RopeConfig, RopeDefaults};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "OLMo 3", model_types: &["olmo3"], read };

const DEFAULTS: Defaults = Defaults { rope: RopeDefaults::theta(500_000.0), ..olmo2::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read(config, &DEFAULTS, &FieldNames::USUAL, &olmo2::NAMES)?;
    olmo2::read_attention(config, &mut model)?;
    let ropes = [DEFAULTS.rope; 2];
    let theta = config.positive("rope_theta")?.unwrap_or(DEFAULTS.rope.theta);
    if theta != DEFAULTS.rope.theta && config.section("rope_parameters")?.is_none() {
        // Versions of transformers differ in whether it is that of layers with a window, too.
        return Err(
            config.problem("rope_theta", "is not the usual one, and does not say of which layers: use rope_parameters")
        );
    }
    model.ropes = RopeConfig::read_by_layer_type(config, ropes, model.max_position_embeddings)?.to_vec();
    let window = config.required("sliding_window", read_window(config, Some(4096))?)?;
    model.read_windows(config, Some(window), |layer| (layer + 1).is_multiple_of(4))?;
    for layer in &mut model.layers {
        layer.rope = Some(usize::from(layer.window.is_some()));
    }
    Ok(ModelConfig::Decoder(model))
}
