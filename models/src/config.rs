//! `config.json`, read into a description that has been checked.
//!
//! Architectures that differ in a bias or a norm share one [`DecoderConfig`] with a field for each difference,
//! so that a layer asks the description and never the name of the model. The names are those of `config.json`.
//! What is not implemented is refused here, before anything large is read.

use std::path::Path;

use safetensors::Dtype;
use sinew_ops::layers::Activation;

use crate::architectures;
use crate::error::{Error, Result};
use crate::files::{self, Fields};

mod decoder;
pub(crate) mod fields;
mod rope;

pub use decoder::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig, NormKind, QkNorm};
pub(crate) use decoder::{Defaults, FieldNames};
pub(crate) use rope::RopeDefaults;
pub use rope::{RopeConfig, RopeScaling};

use self::fields::{
    MAX_LAYERS, MAX_SIZE, check_total, derived_head_dim, product, read_activation, read_dtype, read_eps,
    refuse_quantized, token_ids,
};

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
    /// As [`from_folder`](Self::from_folder), but for the files.
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
            ModelConfig::Encoder(_) => "bert",
        }
    }
}

/// A bidirectional encoder in the manner of BERT: embeddings with learned absolute positions, layers of attention
/// and feed-forward with layer norms after each.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of heads; divides `hidden_size`.
    pub num_attention_heads: usize,
    /// `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// The width of the feed-forward layer.
    pub intermediate_size: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// The number of rows of the position embedding.
    pub max_position_embeddings: usize,
    /// The number of rows of the segment embedding.
    pub type_vocab_size: usize,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f64,
    /// The function between the two projections of the feed-forward layer.
    pub hidden_act: Activation,
    /// The token that fills up a batch.
    pub pad_token_id: Option<u32>,
    /// The dtype that the config says the weights have (`torch_dtype` or `dtype`); the checkpoint decides.
    pub dtype: Option<Dtype>,
}

impl EncoderConfig {
    /// Floating-point operations of one token's products, in texts of `keys` tokens.
    pub fn flops_per_token(&self, keys: f64) -> f64 {
        let (hidden, width) = (self.hidden_size as f64, self.intermediate_size as f64);
        let products = 4.0 * hidden * hidden + 2.0 * hidden * width;
        2.0 * self.num_hidden_layers as f64 * (products + 2.0 * hidden * keys)
    }

    pub(crate) fn read(config: &Fields<'_>) -> Result<Self> {
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
                    what: format!("{decoder_only} in a bert model"),
                    supported: "bidirectional encoders".to_owned(),
                });
            }
        }
        let size = |name: &str| config.required(name, config.size(name, MAX_SIZE)?);
        let hidden_size = size("hidden_size")?;
        let num_hidden_layers = config.required("num_hidden_layers", config.size("num_hidden_layers", MAX_LAYERS)?)?;
        let num_attention_heads = size("num_attention_heads")?;
        let head_dim = derived_head_dim(config, hidden_size, "num_attention_heads", num_attention_heads)?;
        let vocab_size = size("vocab_size")?;
        let pad_token_id = match config.mentions("pad_token_id") {
            true => token_ids(config, "pad_token_id", vocab_size)?.first().copied(),
            false => Some(0),
        };
        let encoder = Self {
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            head_dim,
            intermediate_size: size("intermediate_size")?,
            vocab_size,
            max_position_embeddings: config.size("max_position_embeddings", MAX_SIZE)?.unwrap_or(512),
            type_vocab_size: config.size("type_vocab_size", MAX_SIZE)?.unwrap_or(2),
            layer_norm_eps: read_eps(config, "layer_norm_eps", 1e-12)?,
            hidden_act: read_activation(config, "hidden_act", "gelu")?,
            pad_token_id,
            dtype: read_dtype(config)?,
        };
        let per_layer = product(&[4, hidden_size, hidden_size])
            .zip(product(&[2, hidden_size, encoder.intermediate_size]))
            .and_then(|(attention, mlp)| attention.checked_add(mlp));
        let rows = vocab_size
            .checked_add(encoder.max_position_embeddings)
            .and_then(|rows| rows.checked_add(encoder.type_vocab_size))
            .and_then(|rows| rows.checked_mul(hidden_size));
        let layers = per_layer.and_then(|n| n.checked_mul(num_hidden_layers));
        check_total(config, layers.zip(rows).and_then(|(layers, rows)| layers.checked_add(rows)))?;
        Ok(encoder)
    }
}

#[cfg(test)]
mod tests;
