//! `config.json`, read into a description that has been checked.
//!
//! Architectures that differ in a bias or a norm share one [`DecoderConfig`] with a field for each difference,
//! so that a layer asks the description and never the name of the model. The names are those of `config.json`.
//! What is not implemented is refused here, before anything large is read.

use crate::architectures;
use crate::error::{Error, Result};
use crate::files::{self, Fields};
use crate::folder::{FileName, Folder};

mod decoder;
mod encoder;
pub(crate) mod fields;
mod rope;

pub use decoder::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig, NormKind, QkNorm};
pub(crate) use decoder::{Defaults, FieldNames};
pub use encoder::{EncoderConfig, Positions};
pub(crate) use encoder::{EncoderDefaults, EncoderNames};
pub(crate) use rope::RopeDefaults;
pub use rope::{RopeConfig, RopeScaling};

use self::fields::refuse_quantized;

/// The description of a model, from its `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelConfig {
    /// A causal language model.
    Decoder(DecoderConfig),
    /// A bidirectional encoder.
    Encoder(EncoderConfig),
}

impl ModelConfig {
    /// Reads `config.json`, and the end tokens in `generation_config.json` where there is one.
    pub(crate) fn read(folder: &Folder) -> Result<Self> {
        let path = folder.path();
        if path.is_file() {
            let path = path.display();
            return Err(Error::Input(format!(
                "{path} is a file; a folder with config.json and safetensors is expected"
            )));
        }
        let mut config = Self::from_json(&folder.text(FileName::CONFIG)?)?;
        if let ModelConfig::Decoder(decoder) = &mut config
            && let Some(text) = folder.text_if_present(FileName::GENERATION_CONFIG)?
        {
            decoder.add_generation_config(&text)?;
        }
        Ok(config)
    }

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
        let file = "config.json";
        let value = files::parse(text, file)?;
        let fields = Fields::of(&value, file, "")?;
        let model_type = fields.required("model_type", fields.text("model_type")?)?;
        let Some(architecture) = architectures::find(model_type) else {
            return Err(Error::Unsupported {
                what: format!("model_type `{}`", model_type.escape_debug()),
                supported: architectures::supported(),
            });
        };
        refuse_quantized(&fields)?;
        let model = (architecture.read)(&fields)?;
        if let ModelConfig::Decoder(decoder) = &model {
            decoder.check(&fields)?;
        }
        Ok(model)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for an encoder.
    pub fn as_decoder(&self) -> Result<&DecoderConfig> {
        match self {
            Self::Decoder(config) => Ok(config),
            Self::Encoder(_) => Err(Error::Unsupported {
                what: format!("generating with the encoder `{}`", self.model_type()),
                supported: "decoders; encoders serve `embed` and `logits`".to_owned(),
            }),
        }
    }

    /// The `model_type` that the config names.
    pub fn model_type(&self) -> &str {
        match self {
            ModelConfig::Decoder(config) => &config.model_type,
            ModelConfig::Encoder(config) => &config.model_type,
        }
    }
}

#[cfg(test)]
mod tests;
