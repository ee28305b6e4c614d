//! `config.json`, read into a description that has been checked.
//!
//! Architectures that differ in a bias or a norm share one [`DecoderConfig`] with a field for each difference,
//! so that a layer asks the description and never the name of the model. The names are those of `config.json`.
//! What is not implemented is refused here, before anything large is read.

use std::io;

use crate::contents;
use crate::documents::{Documents, FileName};
use crate::error::{Error, Result};
use crate::json::Fields;

mod decoder;
mod encoder;
pub(crate) mod fields;
mod names;
mod rope;

pub use decoder::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig, NormKind, QkNorm};
pub(crate) use decoder::{Defaults, FieldNames};
pub(crate) use encoder::EncoderDefaults;
pub use encoder::{EncoderConfig, EncoderLayerConfig, LearnedPositions};
pub(crate) use names::{EncoderNames, ExpertMatrices, Experts, Qkv, TensorNames, Up};
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
    /// Reads `config.json`, and the end tokens in `generation_config.json` where there is one. What else that says may be
    /// wrong: it is for who generates.
    pub(crate) fn read(documents: &Documents) -> Result<Self> {
        let path = documents.path();
        if path.is_file() {
            let path = path.display();
            return Err(Error::Input(format!(
                "{path} is a file; a folder with config.json and safetensors is expected"
            )));
        }
        let Some(text) = documents.text_if_present(FileName::Config)? else { return Err(no_config(documents)) };
        let mut config = Self::from_json(&text)?;
        if let ModelConfig::Decoder(decoder) = &mut config
            && let Some(value) = documents.json_if_present(FileName::GenerationConfig)?
        {
            decoder.add_generation_config(&Fields::of(value, FileName::GenerationConfig.as_str(), "")?)?;
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

    /// Refuses tokens that the model has no row for.
    ///
    /// # Errors
    ///
    /// [`Error::Input`].
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.vocab_size())
    }

    /// Refuses a text that is no text of an embedding model: with tokens that it has no row for, or more of them than it
    /// has positions.
    ///
    /// # Errors
    ///
    /// [`Error::Input`].
    pub fn check_text(&self, tokens: &[u32]) -> Result<()> {
        self.check_tokens(tokens)?;
        check_positions(tokens.len(), self.text_positions())
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        match self {
            ModelConfig::Decoder(config) => config.vocab_size,
            ModelConfig::Encoder(config) => config.vocab_size,
        }
    }

    /// The most tokens of a text that is embedded.
    pub fn text_positions(&self) -> usize {
        match self {
            ModelConfig::Encoder(config) => config.max_position_embeddings,
            ModelConfig::Decoder(config) => config.trained_context(),
        }
    }

    /// Floating-point operations of one token of a text of so many that is embedded, a multiply-add being two.
    pub fn text_flops_per_token(&self, tokens: usize) -> f64 {
        match self {
            ModelConfig::Encoder(config) => config.flops_per_token(tokens as f64),
            // Each sees those before it: half of them on average.
            ModelConfig::Decoder(config) => config.flops_per_token(tokens as f64 / 2.0),
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

/// The error for a folder without `config.json`.
fn no_config(documents: &Documents) -> Error {
    let config = FileName::Config.as_str();
    let folder = match documents.weights() {
        Ok(folder) => folder,
        Err(error) => return error,
    };
    match contents::instead_of_weights_in(&folder) {
        Some(instead) => {
            let problem = format!("has no {config}, only {instead}");
            Error::Checkpoint { file: folder.display().to_string(), problem }
        }
        None => {
            let path = folder.join(config);
            let absent = std::fs::metadata(&path).err().unwrap_or_else(|| io::ErrorKind::NotFound.into());
            Error::io("read", &path, absent)
        }
    }
}

pub(crate) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(token) => Err(Error::Input(format!("token {token} is not in the vocabulary of {vocab_size} tokens"))),
        None => Ok(()),
    }
}

pub(crate) fn check_positions(tokens: usize, positions: usize) -> Result<()> {
    match tokens > positions {
        true => Err(Error::Input(format!("a text of {tokens} tokens; the model has {positions} positions"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
