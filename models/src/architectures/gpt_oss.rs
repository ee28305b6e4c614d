//! gpt-oss (OpenAI 2025): layers of experts with biases, attention whose heads have sinks, and a window in every other
//! layer. Its checkpoints have the experts in MXFP4.

use sinew_ops::layers::Activation;

use super::{Architecture, llama};
use crate::config::fields::{MAX_SIZE, read_window};
use crate::config::{
    DecoderConfig, Defaults, ExpertMatrices, Experts, ExpertsConfig, FeedForward, ModelConfig, RopeDefaults,
    TensorNames,
};
use crate::error::{Error, Result};
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "gpt-oss", model_types: &["gpt_oss"], read };

const NAMES: TensorNames = TensorNames {
    sinks: Some("self_attn.sinks"),
    experts: Experts {
        router: "mlp.router",
        matrices: ExpertMatrices::StackedInterleaved {
            gate_up: "mlp.experts.gate_up_proj",
            down: "mlp.experts.down_proj",
        },
    },
    ..llama::NAMES
};

const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(201_088),
    num_attention_heads: Some(64),
    num_key_value_heads: Some(8),
    head_dim: Some(64),
    max_position_embeddings: 131_072,
    norm_eps: 1e-5,
    bos_token_id: None,
    eos_token_id: None,
    hidden_act: "swigluoai",
    rope: RopeDefaults::theta(150_000.0),
    ..llama::DEFAULTS
};

const WINDOW: usize = 128;

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    // The activation is the one of its experts, whatever `hidden_act` says.
    for (name, only) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
        if let Some(found) = config.number(name)?.filter(|&found| found != only) {
            return Err(Error::Unsupported {
                what: format!("{name} {found} in a gpt_oss model"),
                supported: only.to_string(),
            });
        }
    }
    // Without either transformers takes YaRN with numbers of its own, which no checkpoint relies on.
    if ["rope_parameters", "rope_scaling"].iter().all(|name| config.get(name).is_none()) {
        return Err(config.problem("rope_scaling", "is missing"));
    }
    let mut model = DecoderConfig::read_with_rope(config, &DEFAULTS, &NAMES)?;
    model.hidden_act = Activation::SwigluOai;
    model.read_attention_bias(config, true)?;
    model.read_windows(config, read_window(config, Some(WINDOW))?, |layer| layer % 2 == 1)?;
    let count = config.size("num_local_experts", MAX_SIZE)?.or(config.size("num_experts", MAX_SIZE)?).unwrap_or(128);
    let per_token = config.size("num_experts_per_tok", MAX_SIZE)?.unwrap_or(4);
    for layer in &mut model.layers {
        let width = match layer.feed_forward.width() {
            0 => 2880,
            width => width,
        };
        layer.feed_forward =
            FeedForward::Experts(ExpertsConfig { count, per_token, width, renormalize: true, bias: true });
    }
    Ok(ModelConfig::Decoder(model))
}
