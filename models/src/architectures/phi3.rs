//! Phi-3 and Phi-4 (Abdin et al. 2024): Llama with fused projections, of which a part of each head may be rotated, and
//! LongRoPE.

use super::{Architecture, llama};
use crate::config::fields::read_window;
use crate::config::{DecoderConfig, Defaults, ModelConfig, Qkv, RopeDefaults, RopeScaling, TensorNames, Up};
use crate::error::{Error, Result};
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Phi-3, Phi-4", model_types: &["phi3"], read };

const NAMES: TensorNames =
    TensorNames { qkv: Qkv::Stacked("self_attn.qkv_proj"), up: Up::Stacked("mlp.gate_up_proj"), ..llama::NAMES };

const DEFAULTS: Defaults = Defaults {
    max_position_embeddings: 4096,
    norm_eps: 1e-5,
    eos_token_id: Some(32_000),
    rope: RopeDefaults {
        partial: Some((1.0, "partial_rotary_factor")),
        original_max_position_embeddings: Some(4096),
        ..RopeDefaults::USUAL
    },
    ..llama::DEFAULTS
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &NAMES)?;
    if !model.ropes.iter().all(|r| matches!(r.scaling, RopeScaling::None | RopeScaling::LongRope { .. })) {
        return Err(Error::Unsupported {
            what: "this rope type in a phi3 model".to_owned(),
            supported: "default, longrope".to_owned(),
        });
    }
    model.set_window(read_window(config, None)?);
    Ok(ModelConfig::Decoder(model))
}
