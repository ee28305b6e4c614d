//! OLMo 3 (OLMo Team 2025): OLMo 2 with windows in three layers of four, and a longer context in the others.

use super::{Architecture, olmo2};
use crate::config::fields::{LayerType, read_layer_types, read_window};
use crate::config::{DecoderConfig, Defaults, FieldNames, ModelConfig, RopeConfig, RopeDefaults};
use crate::error::Result;
use crate::files::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "OLMo 3", model_types: &["olmo3"], read };

const DEFAULTS: Defaults = Defaults { rope: RopeDefaults::theta(500_000.0), ..olmo2::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read(config, &DEFAULTS, &FieldNames::USUAL, &olmo2::NAMES)?;
    olmo2::read_attention(config, &mut model)?;
    let ropes = [DEFAULTS.rope; 2];
    model.ropes = RopeConfig::read_by_layer_type(config, ropes, model.max_position_embeddings)?.to_vec();
    let window = config.required("sliding_window", read_window(config, Some(4096))?)?;
    let by_number = |layer: usize| if (layer + 1).is_multiple_of(4) { LayerType::Full } else { LayerType::Sliding };
    let types = read_layer_types(config, model.layers.len(), by_number)?;
    for (layer, layer_type) in model.layers.iter_mut().zip(types) {
        let sliding = layer_type == LayerType::Sliding;
        layer.window = sliding.then_some(window);
        layer.rope = Some(usize::from(sliding));
    }
    Ok(ModelConfig::Decoder(model))
}
