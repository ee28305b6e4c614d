//! `config.json`, read into a description that has been checked.
//!
//! Architectures that differ in a bias or a norm share one [`DecoderConfig`] with a field for each difference,
//! so that a layer asks the description and never the name of the model. The names are those of `config.json`.
//! What is not implemented is refused here, before anything large is read.

use std::path::Path;

use crate::error::{Error, Result};
use crate::files;

mod decoder;
mod encoder;
pub(crate) mod fields;
mod names;
mod rope;

pub use decoder::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig, NormKind, QkNorm};
pub(crate) use decoder::{Defaults, FieldNames};
pub(crate) use encoder::EncoderDefaults;
pub use encoder::{EncoderConfig, Positions};
pub(crate) use names::{EncoderNames, Experts, Qkv, TensorNames, Up};
pub(crate) use rope::RopeDefaults;
pub use rope::{RopeConfig, RopeScaling};

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
    /// Reads `config.json` in `folder`, and the end tokens in `generation_config.json` where there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] for a path that is a file, [`Error::Io`] and [`Error::Json`] for a file that cannot be read,
    /// [`Error::Config`] for a field that is missing or impossible, [`Error::Unsupported`] for a model that is not
    /// implemented.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        if folder.is_file() {
            let path = folder.display();
            return Err(Error::Input(format!(
                "{path} is a file; a folder with config.json and safetensors is expected"
            )));
        }
        let mut config = Self::from_json(&files::read_text(&folder.join("config.json"))?)?;
        if let ModelConfig::Decoder(decoder) = &mut config
            && let Some(text) = files::read_optional(&folder.join("generation_config.json"))?
        {
            decoder.add_generation_config(&text)?;
        }
        Ok(config)
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
