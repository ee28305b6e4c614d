//! BERT (Devlin et al. 2018): learned positions, token types, layer norms after attention and feed-forward.

use super::Architecture;
use crate::config::{EncoderConfig, EncoderDefaults, EncoderNames, ModelConfig};
use crate::error::{Error, Result};
use crate::json::Fields;

pub(super) static ARCHITECTURE: Architecture = Architecture { name: "BERT", model_types: &["bert"], read };

const NAMES: EncoderNames = EncoderNames { prefixes: &["", "bert.", "model."], ..LAYERS };

/// The names that RoBERTa has, too.
pub(super) const LAYERS: EncoderNames = EncoderNames {
    prefixes: &[""],
    word: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    token_types: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    layer: "encoder.layer",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    final_norm: "",
    masked_head: ["cls.predictions.bias", "cls.predictions.decoder"],
    spare: &["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"],
};

fn read(config: &Fields<'_>) -> Result<ModelConfig> {
    refuse_kin(config)?;
    let defaults = EncoderDefaults {
        norm_eps: ("layer_norm_eps", 1e-12),
        hidden_act: "hidden_act",
        max_position_embeddings: 512,
        pad_token_id: 0,
    };
    EncoderConfig::read(config, &NAMES, &defaults).map(ModelConfig::Encoder)
}

/// Refuses what BERT and RoBERTa can also be: decoders, and models with relative positions.
pub(super) fn refuse_kin(config: &Fields<'_>) -> Result<()> {
    let positions = config.text("position_embedding_type")?.unwrap_or("absolute");
    if positions != "absolute" {
        return Err(Error::Unsupported {
            what: format!("position_embedding_type `{}`", positions.escape_debug()),
            supported: "absolute".to_owned(),
        });
    }
    for decoder_only in ["is_decoder", "add_cross_attention"] {
        if config.flag(decoder_only)? == Some(true) {
            return Err(Error::Unsupported {
                what: format!("{decoder_only} in an encoder"),
                supported: "bidirectional encoders".to_owned(),
            });
        }
    }
    Ok(())
}
