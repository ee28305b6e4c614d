//! Qwen3-MoE (Yang et al. 2025): Qwen3 whose feed-forward layers, all or some, are experts.

use std::collections::HashSet;

use serde_json::Value;

use super::{Architecture, qwen2, qwen3};
use crate::config::fields::{MAX_SIZE, read_window};
use crate::config::{Defaults, ExpertsConfig, FeedForward, ModelConfig};
use crate::error::Result;
use crate::json::{Fields, as_count, brief};

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "Qwen3-MoE", model_types: &["qwen3_moe"], read };

const DEFAULTS: Defaults = Defaults { num_key_value_heads: Some(4), ..qwen2::DEFAULTS };

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    let mut model = qwen3::read_decoder(config, &DEFAULTS)?;
    // Unlike Qwen3 it has a window in every layer or in none.
    let sliding = config.flag("use_sliding_window")?.unwrap_or(false);
    model.set_window(if sliding { read_window(config, Some(4096))? } else { None });
    // transformers 5 writes the name that other architectures have.
    let named = |name: &str| config.count(name, MAX_SIZE);
    let count = named("num_experts")?.or(named("num_local_experts")?).unwrap_or(128);
    let per_token = config.size("num_experts_per_tok", MAX_SIZE)?.unwrap_or(8);
    let width = config.size("moe_intermediate_size", MAX_SIZE)?.unwrap_or(768);
    let renormalize = config.flag("norm_topk_prob")?.unwrap_or(false);
    let step = config.size("decoder_sparse_step", MAX_SIZE)?.unwrap_or(1);
    let layer_number = |value: &Value| {
        let problem = || config.problem("mlp_only_layers", &format!("must be a list of layers, has {}", brief(value)));
        as_count(value).ok_or_else(problem)
    };
    let dense =
        config.list("mlp_only_layers")?.unwrap_or(&[]).iter().map(layer_number).collect::<Result<HashSet<_>>>()?;
    for (index, layer) in model.layers.iter_mut().enumerate() {
        if count > 0 && (index + 1).is_multiple_of(step) && !dense.contains(&index) {
            layer.feed_forward =
                FeedForward::Experts(ExpertsConfig { count, per_token, width, renormalize, bias: false });
        }
    }
    Ok(ModelConfig::Decoder(model))
}
