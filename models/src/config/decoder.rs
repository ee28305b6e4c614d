//! The description of a causal language model.
//!
//! What sets architectures apart is a field here, so that a layer asks the description and never the name of the
//! model. The files in `architectures` fill it in.

use safetensors::Dtype;
use sinew_ops::layers::Activation;

use super::fields::MAX_SIZE;
use super::names::TensorNames;
use super::{RopeConfig, RopeScaling};

mod read;
mod work;

pub(crate) use self::read::{Defaults, FieldNames};

/// A causal language model: embedding, layers of attention and feed-forward, norm, head.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecoderConfig {
    /// As `config.json` has it; for messages.
    pub model_type: String,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// The width of one head.
    pub head_dim: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// What sets each layer apart.
    pub layers: Vec<LayerConfig>,
    /// The norms of layers and of the end.
    pub norm: NormKind,
    /// Added to the mean square or the variance in norms.
    pub norm_eps: f64,
    /// Norms of queries and keys before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Whether attention and feed-forward both read the stream as it was before the layer.
    pub parallel_residual: bool,
    /// Rotary position embeddings, of which each layer has one or none.
    pub ropes: Vec<RopeConfig>,
    /// Whether a learned vector for each position is added to the embedding.
    pub learned_positions: bool,
    /// What embeddings are multiplied by.
    pub embedding_scale: Option<f64>,
    /// Bound on the magnitude of attention's scores: `c · tanh(s / c)`.
    pub attention_softcap: Option<f64>,
    /// Bound on the magnitude of logits.
    pub logit_softcap: Option<f64>,
    /// Whether the head is the embedding, unless the checkpoint holds a head of its own; without either, loading fails.
    pub tie_word_embeddings: bool,
    /// The function on the gate, or between the two products of a feed-forward layer without one.
    pub hidden_act: Activation,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// A bias on attention's output projection.
    pub o_bias: bool,
    /// Biases on the projections of the feed-forward layer.
    pub mlp_bias: bool,
    /// The longest sequence that the model was made for.
    pub max_position_embeddings: usize,
    /// The tokens that end a text: those of the config, then those that `generation_config.json` adds.
    pub eos_token_ids: Vec<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The dtype that the config says the weights have (`torch_dtype` or `dtype`); the checkpoint decides.
    pub dtype: Option<Dtype>,
    pub(crate) names: &'static TensorNames,
}

/// What sets a layer apart from the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// How many of the latest positions it attends to, its own included; `None` is all.
    pub window: Option<usize>,
    /// Which of [`DecoderConfig::ropes`] turns its queries and keys; `None` leaves them as they are.
    pub rope: Option<usize>,
    /// What attention's scores are multiplied by.
    pub attention_scale: f64,
    /// Its feed-forward layer.
    pub feed_forward: FeedForward,
}

/// A feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedForward {
    /// One for all tokens.
    Dense {
        /// The number of its inner values.
        width: usize,
    },
    /// Several, of which each token goes through some.
    Experts(ExpertsConfig),
}

/// A mixture of experts: each token goes through those with the most probable scores (Shazeer et al. 2017).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: usize,
    /// How many a token goes through.
    pub per_token: usize,
    /// The number of inner values of each.
    pub width: usize,
    /// Whether the weights of a token's experts are made to sum to 1.
    pub renormalize: bool,
    /// Biases on the scores and on the projections of each.
    pub bias: bool,
}

/// A norm, with a weight for each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// `x / √(mean(x²) + eps) · w`.
    Rms,
    /// `x / √(mean(x²) + eps) · (1 + w)`.
    RmsOffset,
    /// `(x - mean) / √(variance + eps) · w + b`.
    Layer,
}

/// Which values a norm of queries or keys is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkNorm {
    /// Those of each head, with one weight for all heads.
    Head,
    /// Those of all heads of a token.
    Token,
}

impl FeedForward {
    /// The number of inner values, of one expert where there are several.
    pub fn width(&self) -> usize {
        match *self {
            Self::Dense { width } | Self::Experts(ExpertsConfig { width, .. }) => width,
        }
    }
}

impl DecoderConfig {
    /// The windows that its layers have, each once, in the order in which they come.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let mut windows = Vec::new();
        for layer in &self.layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        windows
    }

    /// Whether each head has a logit of its own that takes part in attention's softmax and has no value.
    pub fn has_sinks(&self) -> bool {
        self.names.sinks.is_some()
    }

    /// The number of layers.
    pub fn num_hidden_layers(&self) -> usize {
        self.layers.len()
    }

    /// The longest sequence that can be run: `max_position_embeddings`, and more where the rotary embedding stretches
    /// with the sequence.
    pub fn longest_context(&self) -> usize {
        let stretch = |rope: &RopeConfig| match rope.scaling {
            RopeScaling::Dynamic { factor, .. } => factor.max(1.0),
            _ => 1.0,
        };
        let most = self.ropes.iter().map(stretch).fold(1.0, f64::max);
        // A float cast saturates.
        ((self.max_position_embeddings as f64 * most) as usize).min(MAX_SIZE)
    }

    /// The context of a model that is loaded without one being asked for: what the model was made for, at most 4,096,
    /// as few prompts fill more, and no more than keeps the rotary embedding as it was first trained.
    pub fn usual_context(&self) -> usize {
        const USUAL: usize = 4096;
        self.trained_context().min(USUAL)
    }

    /// Whether models that are loaded for these contexts turn queries and keys alike. Dynamic scaling of the rotary
    /// embedding does not beyond the context in training, and LongRoPE has one embedding up to there and one beyond.
    pub fn rotates_alike(&self, one: usize, other: usize) -> bool {
        let alike = |rope: &RopeConfig| rope.frequencies(self.head_dim, one) == rope.frequencies(self.head_dim, other);
        one == other || self.ropes.iter().all(alike)
    }

    /// The longest sequence that keeps the rotary embedding as it was first trained.
    pub(crate) fn trained_context(&self) -> usize {
        let unchanged = self.ropes.iter().filter_map(|rope| rope.scaling.changes_beyond()).min();
        self.max_position_embeddings.min(unchanged.unwrap_or(usize::MAX))
    }

    /// The number of inner values of feed-forward layers that are one for all tokens; 0 where none is.
    pub(crate) fn dense_width(&self) -> usize {
        let width = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Dense { width } => width,
            FeedForward::Experts(_) => 0,
        };
        self.layers.iter().map(width).max().unwrap_or(0)
    }

    /// The experts of layers that have some. No architecture has others in other layers.
    pub(crate) fn experts(&self) -> Option<ExpertsConfig> {
        self.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::Dense { .. } => None,
        })
    }
}
