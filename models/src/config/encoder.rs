//! The description of an encoder: one for all, with a switch for each difference.

use safetensors::Dtype;
use sinew_ops::layers::Activation;

use super::RopeConfig;
use super::fields::{
    MAX_HEAD_DIM, MAX_LAYERS, MAX_SIZE, check_total, derived_head_dim, product, read_activation, read_dtype, read_eps,
    token_ids,
};
use super::names::EncoderNames;
use crate::error::{Error, Result};
use crate::json::Fields;

/// A bidirectional encoder: embeddings, layers of attention and feed-forward with layer norms after or before each.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EncoderConfig {
    /// `bert`, `roberta`, `xlm-roberta` or `modernbert`; for messages.
    pub model_type: String,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The number of heads; divides `hidden_size`.
    pub num_attention_heads: usize,
    /// `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// The width of the feed-forward layer.
    pub intermediate_size: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// The longest text, in tokens.
    pub max_position_embeddings: usize,
    /// What sets each layer apart.
    pub layers: Vec<EncoderLayerConfig>,
    /// Rotary position embeddings, of which each layer has one or none.
    pub ropes: Vec<RopeConfig>,
    /// A learned vector for each position, which is added to the embedding.
    pub learned_positions: Option<LearnedPositions>,
    /// A head for masked words has the table of words as its weight.
    pub tie_word_embeddings: bool,
    /// The number of rows of the segment embedding; 0 for a model without one.
    pub type_vocab_size: usize,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f64,
    /// Norms stand before attention and feed-forward, with one more at the end, and not after each. The first layer's
    /// attention then reads the embeddings, which have been normed already, as they are.
    pub norm_first: bool,
    /// Layer norms have a bias.
    pub norm_bias: bool,
    /// Biases on attention's projections.
    pub attention_bias: bool,
    /// Biases on the projections of the feed-forward layer.
    pub mlp_bias: bool,
    /// The feed-forward layer is `act(gate) · up`, both from one tensor.
    pub gated: bool,
    /// The function between the projections of the feed-forward layer, or on the gate.
    pub hidden_act: Activation,
    /// The token that fills up a batch.
    pub pad_token_id: Option<u32>,
    /// The dtype that the config says the weights have (`torch_dtype` or `dtype`); the checkpoint decides.
    pub dtype: Option<Dtype>,
    pub(crate) names: &'static EncoderNames,
}

/// What sets a layer apart from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderLayerConfig {
    /// A token sees those less than this far from it, on both sides; `None` is all.
    pub window: Option<usize>,
    /// Which of [`EncoderConfig::ropes`] turns its queries and keys; `None` leaves them as they are.
    pub rope: Option<usize>,
}

/// Which vectors of a learned table of positions tokens have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// The row of a text's first token.
    pub first: u32,
    /// A token that has the row before the first, and is not counted, wherever it stands.
    pub padding: Option<u32>,
}

/// What the encoders' configs do not have in common: the names of fields, and what their absence means.
pub(crate) struct EncoderDefaults {
    pub norm_eps: (&'static str, f64),
    pub hidden_act: &'static str,
    pub max_position_embeddings: usize,
    pub pad_token_id: u32,
}

impl EncoderConfig {
    /// Floating-point operations of one token's products, in texts of `keys` tokens.
    pub fn flops_per_token(&self, keys: f64) -> f64 {
        let (hidden, width) = (self.hidden_size as f64, self.intermediate_size as f64);
        let products = 4.0 * hidden * hidden + if self.gated { 3.0 } else { 2.0 } * hidden * width;
        let seen = |window| keys.min(2.0 * window as f64 - 1.0);
        let seen: f64 = self.layers.iter().map(|layer| layer.window.map_or(keys, seen)).sum();
        2.0 * (self.layers.len() as f64 * products + 2.0 * hidden * seen)
    }

    /// Reads the fields that all encoders have. The switches are BERT's: its embeddings, biases everywhere, norms after
    /// each part, every token seen.
    pub(crate) fn read(config: &Fields<'_>, names: &'static EncoderNames, defaults: &EncoderDefaults) -> Result<Self> {
        let size = |name: &str| config.required(name, config.size(name, MAX_SIZE)?);
        let hidden_size = size("hidden_size")?;
        let num_hidden_layers = config.required("num_hidden_layers", config.size("num_hidden_layers", MAX_LAYERS)?)?;
        let num_attention_heads = size("num_attention_heads")?;
        let head_dim = derived_head_dim(config, hidden_size, "num_attention_heads", num_attention_heads)?;
        let intermediate_size = size("intermediate_size")?;
        let vocab_size = size("vocab_size")?;
        let max_position_embeddings =
            config.size("max_position_embeddings", MAX_SIZE)?.unwrap_or(defaults.max_position_embeddings);
        let type_vocab_size = config.size("type_vocab_size", MAX_SIZE)?.unwrap_or(2);
        let pad_token_id = match config.mentions("pad_token_id") {
            true => token_ids(config, "pad_token_id", vocab_size)?.first().copied(),
            false => Some(defaults.pad_token_id),
        };
        let (eps, eps_default) = defaults.norm_eps;
        // Feed-forward layers count as gated, which is the most that they can be.
        let per_layer = product(&[4, hidden_size, hidden_size])
            .zip(product(&[3, hidden_size, intermediate_size]))
            .and_then(|(attention, mlp)| attention.checked_add(mlp));
        let rows = vocab_size
            .checked_add(max_position_embeddings)
            .and_then(|rows| rows.checked_add(type_vocab_size))
            .and_then(|rows| rows.checked_mul(hidden_size));
        let layers = per_layer.and_then(|n| n.checked_mul(num_hidden_layers));
        check_total(config, layers.zip(rows).and_then(|(layers, rows)| layers.checked_add(rows)))?;
        Ok(Self {
            model_type: config.text("model_type")?.unwrap_or_default().to_owned(),
            hidden_size,
            num_attention_heads,
            head_dim,
            intermediate_size,
            vocab_size,
            max_position_embeddings,
            layers: vec![EncoderLayerConfig { window: None, rope: None }; num_hidden_layers],
            ropes: Vec::new(),
            learned_positions: Some(LearnedPositions { first: 0, padding: None }),
            tie_word_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(true),
            type_vocab_size,
            layer_norm_eps: read_eps(config, eps, eps_default)?,
            norm_first: false,
            norm_bias: true,
            attention_bias: true,
            mlp_bias: true,
            gated: false,
            hidden_act: read_activation(config, defaults.hidden_act, "gelu")?,
            pad_token_id,
            dtype: read_dtype(config)?,
            names,
        })
    }

    /// Checks its rotary embeddings.
    pub(crate) fn check_ropes(&self, config: &Fields<'_>) -> Result<()> {
        let head_dim = self.head_dim;
        if !self.ropes.is_empty() && head_dim > MAX_HEAD_DIM {
            let problem = format!("makes heads of {head_dim}; at most {MAX_HEAD_DIM} is supported");
            return Err(config.problem("num_attention_heads", &problem));
        }
        for rope in &self.ropes {
            rope.check(config, head_dim)?;
            if rope.scaling.changes_beyond().is_some() {
                return Err(Error::Unsupported {
                    what: format!(
                        "a rotary embedding that depends on the length of a text in a {} model",
                        self.model_type
                    ),
                    supported: "rope types default, linear, llama3, yarn".to_owned(),
                });
            }
        }
        Ok(())
    }
}
