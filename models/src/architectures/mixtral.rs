//! Mixtral (Jiang et al. 2024): Mistral whose feed-forward layers are experts.

use super::{Architecture, llama, mistral};
use crate::config::fields::{MAX_SIZE, read_window};
use crate::config::{
    DecoderConfig, Defaults, ExpertMatrices, Experts, ExpertsConfig, FeedForward, ModelConfig, RopeDefaults,
    TensorNames,
};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Mixtral", model_types: &["mixtral"], read };

const NAMES: TensorNames = TensorNames {
    experts: Experts {
        router: "block_sparse_moe.gate",
        matrices: ExpertMatrices::Each { expert: "block_sparse_moe.experts.", gate: "w1", up: "w3", down: "w2" },
    },
    ..llama::NAMES
};

const DEFAULTS: Defaults = Defaults { norm_eps: 1e-5, rope: RopeDefaults::theta(1e6), ..mistral::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &NAMES)?;
    model.set_window(read_window(config, None)?);
    let count = config.size("num_local_experts", MAX_SIZE)?.unwrap_or(8);
    let per_token = config.size("num_experts_per_tok", MAX_SIZE)?.unwrap_or(2);
    for layer in &mut model.layers {
        let width = layer.feed_forward.width();
        layer.feed_forward =
            FeedForward::Experts(ExpertsConfig { count, per_token, width, renormalize: true, bias: false });
    }
    Ok(ModelConfig::Decoder(model))
}
