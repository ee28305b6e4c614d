//! RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT whose positions begin after the padding
//! token's.

use super::{Architecture, bert};
use crate::config::{EncoderConfig, EncoderDefaults, EncoderNames, LearnedPositions, ModelConfig};
use crate::error::Result;
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture =
    Architecture { name: "RoBERTa, XLM-RoBERTa", model_types: &["roberta", "xlm-roberta"], read };

const NAMES: EncoderNames = EncoderNames {
    prefixes: &["", "roberta.", "model."],
    masked_head: ["lm_head.bias", "lm_head.decoder"],
    ..bert::LAYERS
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    bert::refuse_kin(config)?;
    let defaults = EncoderDefaults {
        norm_eps: ("layer_norm_eps", 1e-12),
        hidden_act: "hidden_act",
        max_position_embeddings: 512,
        pad_token_id: 1,
    };
    let encoder = EncoderConfig::read(config, &NAMES, &defaults)?;
    // Row `pad_token_id` of the table is the padding's own: in text, too, and without being counted.
    let padding = config.required("pad_token_id", encoder.pad_token_id)?;
    let (first, rows) = (padding + 1, encoder.max_position_embeddings);
    let max_position_embeddings = match rows.checked_sub(first as usize) {
        Some(positions) if positions > 0 => positions,
        _ => {
            let problem = format!("is {rows}, and positions begin at {first}, after pad_token_id");
            return Err(config.problem("max_position_embeddings", &problem));
        }
    };
    let learned_positions = Some(LearnedPositions { first, padding: Some(padding) });
    Ok(ModelConfig::Encoder(EncoderConfig { max_position_embeddings, learned_positions, ..encoder }))
}
