//! The architectures: a file for each, with what its `config.json` says and what its checkpoints call their tensors.
//!
//! To add one is to write such a file and a line here.

use crate::config::ModelConfig;
use crate::documents::FileName;
use crate::error::{Error, Result};
use crate::json::{self, Fields};
use crate::quantized::Quantization;

mod bert;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod llama;
mod mistral;
mod mixtral;
mod modernbert;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod roberta;
mod smollm3;

/// How a kind of model is read.
struct Architecture {
    name: &'static str,
    model_types: &'static [&'static str],
    /// Its config, whose `model_type` is one of these.
    read: fn(&Fields<'_>) -> Result<ModelConfig>,
}

static ARCHITECTURES: [&Architecture; 18] = [
    &llama::ARCHITECTURE,
    &mistral::ARCHITECTURE,
    &mixtral::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen3_moe::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gpt_neox::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &olmo3::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &bert::ARCHITECTURE,
    &roberta::ARCHITECTURE,
    &modernbert::ARCHITECTURE,
];

/// The architectures: the name of each, and the `model_type`s that it has in a config.
///
/// ```
/// let mut all = sinew_models::architectures::all();
/// assert_eq!(all.next(), Some(("Llama 2, 3", &["llama"][..])));
/// ```
pub fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    ARCHITECTURES.iter().map(|architecture| (architecture.name, architecture.model_types))
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// ```
    /// use sinew_models::ModelConfig;
    ///
    /// let text = r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
    ///     "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
    ///     "vocab_size": 151936, "rope_theta": 1000000.0, "tie_word_embeddings": true}"#;
    /// let ModelConfig::Decoder(config) = ModelConfig::from_json(text)? else { panic!("qwen2 is a decoder") };
    /// assert_eq!(config.head_dim, 64);
    /// assert!(config.qkv_bias && !config.o_bias && config.qk_norm.is_none());
    /// # Ok::<(), sinew_models::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Json`] for what is no JSON, [`Error::Config`] for a field that is missing or impossible,
    /// [`Error::Unsupported`] for a model that is not implemented.
    pub fn from_json(text: &str) -> Result<Self> {
        let file = FileName::Config.as_str();
        let value = json::parse(text, file)?;
        let fields = Fields::of(&value, file, "")?;
        let model_type = fields.required("model_type", fields.text("model_type")?)?;
        let Some(architecture) = find(model_type) else {
            return Err(Error::Unsupported {
                what: format!("model_type `{}`", model_type.escape_debug()),
                supported: supported(),
            });
        };
        // A method that is not known is told before files are opened.
        Quantization::parse(&value, file, None)?;
        let model = (architecture.read)(&fields)?;
        if let ModelConfig::Decoder(decoder) = &model {
            decoder.check(&fields)?;
        }
        Ok(model)
    }
}

/// That of a config's `model_type`.
fn find(model_type: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.into_iter().find(|architecture| architecture.model_types.contains(&model_type))
}

/// Every `model_type`, for messages.
fn supported() -> String {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.model_types).copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    mod decoders;
    mod encoders;
}
