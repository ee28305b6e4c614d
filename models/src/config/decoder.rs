//! The description of a causal language model.
//!
//! What sets architectures apart is a field here, so that a layer asks the description and never the name of the
//! model. The files in `architectures` fill it in.

use safetensors::Dtype;
use sinew_ops::layers::Activation;

use super::fields::{
    LayerType, MAX_HEAD_DIM, MAX_LAYERS, MAX_SIZE, derived_head_dim, product, read_dtype, read_eps, read_layer_types,
    token_ids,
};
use super::names::TensorNames;
use super::{RopeConfig, RopeDefaults, RopeScaling};
use crate::error::{Error, Result};
use crate::files::Fields;

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

    /// How often a token's values go through inner layers.
    fn passes(&self) -> usize {
        match *self {
            Self::Dense { .. } => 1,
            Self::Experts(experts) => experts.per_token,
        }
    }

    /// Weights, where `products` matrices go in and out of each inner layer.
    fn weights(&self, hidden_size: usize, products: usize) -> Option<usize> {
        match *self {
            Self::Dense { width } => product(&[products, hidden_size, width]),
            Self::Experts(ExpertsConfig { count, width, .. }) => {
                product(&[products, hidden_size, width, count])?.checked_add(hidden_size.checked_mul(count)?)
            }
        }
    }
}

/// What an architecture assumes where `config.json` says nothing.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    /// `None` has to be in the config.
    pub vocab_size: Option<usize>,
    /// `None` has to be in the config.
    pub num_attention_heads: Option<usize>,
    /// `None` is `num_attention_heads`.
    pub num_key_value_heads: Option<usize>,
    /// `None` is `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub norm_eps: f64,
    pub hidden_act: &'static str,
    pub tie_word_embeddings: bool,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub rope: RopeDefaults,
}

/// What fields are called whose names differ between architectures.
pub(crate) struct FieldNames {
    pub hidden_size: &'static str,
    pub num_hidden_layers: &'static str,
    pub num_attention_heads: &'static str,
    pub intermediate_size: &'static str,
    pub max_position_embeddings: &'static str,
    pub norm_eps: &'static str,
    pub hidden_act: &'static str,
}

impl FieldNames {
    /// Those of most architectures.
    pub const USUAL: Self = Self {
        hidden_size: "hidden_size",
        num_hidden_layers: "num_hidden_layers",
        num_attention_heads: "num_attention_heads",
        intermediate_size: "intermediate_size",
        max_position_embeddings: "max_position_embeddings",
        norm_eps: "rms_norm_eps",
        hidden_act: "hidden_act",
    };
}

impl DecoderConfig {
    /// The fields that architectures share: a model without biases, windows or norms of queries, every layer of which
    /// is like Llama's, but for the rotary embedding, of which it has none yet.
    pub(crate) fn read(
        config: &Fields<'_>,
        defaults: &Defaults,
        fields: &FieldNames,
        names: &'static TensorNames,
    ) -> Result<Self> {
        let model_type = config.required("model_type", config.text("model_type")?)?;
        if config.flag("is_causal")? == Some(false) || config.flag("use_bidirectional_attention")? == Some(true) {
            return Err(Error::Unsupported {
                what: format!("bidirectional attention in a {model_type} model"),
                supported: "causal attention".to_owned(),
            });
        }
        let hidden_size = config.required(fields.hidden_size, config.size(fields.hidden_size, MAX_SIZE)?)?;
        let layers = fields.num_hidden_layers;
        let num_hidden_layers = config.required(layers, config.size(layers, MAX_LAYERS)?)?;
        let or = |name: &str, default| config.required(name, config.size(name, MAX_SIZE)?.or(default));
        let num_attention_heads = or(fields.num_attention_heads, defaults.num_attention_heads)?;
        // `null` is not the same as nothing.
        let kv_default = defaults.num_key_value_heads.filter(|_| !config.mentions("num_key_value_heads"));
        let num_key_value_heads = or("num_key_value_heads", kv_default.or(Some(num_attention_heads)))?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let heads = fields.num_attention_heads;
            return Err(config.problem(
                "num_key_value_heads",
                &format!("is {num_key_value_heads}, which does not divide {heads}, {num_attention_heads}"),
            ));
        }
        let head_dim = match config.size("head_dim", MAX_SIZE)?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None => derived_head_dim(config, hidden_size, fields.num_attention_heads, num_attention_heads)?,
        };
        if head_dim > MAX_HEAD_DIM {
            return Err(config.problem("head_dim", &format!("is {head_dim}; at most {MAX_HEAD_DIM} is supported")));
        }
        let max_position_embeddings =
            config.size(fields.max_position_embeddings, MAX_SIZE)?.unwrap_or(defaults.max_position_embeddings);
        let vocab_size = or("vocab_size", defaults.vocab_size)?;

        let mut eos_token_ids = token_ids(config, "eos_token_id", vocab_size)?;
        if !config.mentions("eos_token_id") {
            eos_token_ids.extend(defaults.eos_token_id.filter(|&id| (id as usize) < vocab_size));
        }
        let bos_token_id = match config.mentions("bos_token_id") {
            true => token_ids(config, "bos_token_id", vocab_size)?.first().copied(),
            false => defaults.bos_token_id.filter(|&id| (id as usize) < vocab_size),
        };
        // Architectures that give the inner width a default or several values have it read by themselves.
        let width = config.size(fields.intermediate_size, MAX_SIZE)?.unwrap_or(0);
        let layer = LayerConfig {
            window: None,
            rope: None,
            attention_scale: (head_dim as f64).powf(-0.5),
            feed_forward: FeedForward::Dense { width },
        };
        Ok(Self {
            model_type: model_type.to_owned(),
            hidden_size,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size,
            layers: vec![layer; num_hidden_layers],
            norm: NormKind::Rms,
            norm_eps: read_eps(config, fields.norm_eps, defaults.norm_eps)?,
            qk_norm: None,
            parallel_residual: false,
            ropes: Vec::new(),
            learned_positions: false,
            embedding_scale: None,
            attention_softcap: None,
            logit_softcap: None,
            tie_word_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
            hidden_act: super::fields::read_activation(config, fields.hidden_act, defaults.hidden_act)?,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            max_position_embeddings,
            eos_token_ids,
            bos_token_id,
            dtype: read_dtype(config)?,
            names,
        })
    }

    /// As [`read`](Self::read), with the one rotary embedding of the config in every layer.
    pub(crate) fn read_with_rope(
        config: &Fields<'_>,
        defaults: &Defaults,
        names: &'static TensorNames,
    ) -> Result<Self> {
        let mut decoder = Self::read(config, defaults, &FieldNames::USUAL, names)?;
        decoder.add_rope(RopeConfig::read(config, defaults.rope, decoder.max_position_embeddings)?);
        Ok(decoder)
    }

    /// Turns queries and keys of every layer by `rope`.
    pub(crate) fn add_rope(&mut self, rope: RopeConfig) {
        self.ropes = vec![rope];
        self.layers.iter_mut().for_each(|layer| layer.rope = Some(0));
    }

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

    /// Gives every layer the same window.
    pub(crate) fn set_window(&mut self, window: Option<usize>) {
        self.layers.iter_mut().for_each(|layer| layer.window = window);
    }

    /// Gives the layers with sliding attention this window: those that `layer_types` names, or else those that are not
    /// `full` by their number.
    pub(crate) fn read_windows(
        &mut self,
        config: &Fields<'_>,
        window: Option<usize>,
        full: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let default = |layer| if full(layer) { LayerType::Full } else { LayerType::Sliding };
        let types = read_layer_types(config, self.layers.len(), default)?;
        if window.is_none() && types.contains(&LayerType::Sliding) {
            return Err(config.problem(
                "layer_types",
                "asks for sliding_attention, but use_sliding_window and sliding_window give no window",
            ));
        }
        for (layer, layer_type) in self.layers.iter_mut().zip(types) {
            layer.window = window.filter(|_| layer_type == LayerType::Sliding);
        }
        Ok(())
    }

    /// Biases on all four products of attention, or on none, as `attention_bias` says.
    pub(crate) fn read_attention_bias(&mut self, config: &Fields<'_>, default: bool) -> Result<()> {
        let bias = config.flag("attention_bias")?.unwrap_or(default);
        (self.qkv_bias, self.o_bias) = (bias, bias);
        Ok(())
    }

    /// Checks what the parts of an architecture make together. So that later products need no check, sizes whose weights
    /// could not be addressed are refused.
    pub(crate) fn check(&self, config: &Fields<'_>) -> Result<()> {
        debug_assert!(
            self.experts().is_none() || self.names.mlp_output_norm.is_none(),
            "experts are added as they are"
        );
        for layer in &self.layers {
            if layer.feed_forward.width() == 0 {
                return Err(config.problem("intermediate_size", "is missing"));
            }
            if let FeedForward::Experts(ExpertsConfig { count, per_token, .. }) = layer.feed_forward
                && (per_token == 0 || per_token > count)
            {
                return Err(config.problem(
                    "num_experts_per_tok",
                    &format!("is {per_token}, and must be from 1 to the number of experts, {count}"),
                ));
            }
        }
        for rope in &self.ropes {
            rope.check(config, self.head_dim)?;
        }
        let hidden = self.hidden_size;
        let attention = product(&[self.num_attention_heads, self.head_dim])
            .zip(product(&[self.num_key_value_heads, self.head_dim]))
            .and_then(|(q, kv)| q.checked_add(kv)?.checked_mul(2)?.checked_mul(hidden));
        let layers = self.layers.iter().try_fold(0usize, |all, layer| {
            all.checked_add(attention?)?.checked_add(layer.feed_forward.weights(hidden, self.mlp_products())?)
        });
        let rows = self.vocab_size.checked_mul(2).and_then(|rows| rows.checked_add(self.max_position_embeddings));
        let embeddings = rows.and_then(|rows| rows.checked_mul(hidden));
        super::fields::check_total(config, layers.zip(embeddings).and_then(|(a, b)| a.checked_add(b)))
    }

    /// Adds the end tokens of a `generation_config.json`, and takes its begin token where the config has none.
    ///
    /// Chat models often list the end of a turn only there, and the end of a text only in the config; a text
    /// ends at either.
    pub(crate) fn add_generation_config(&mut self, fields: &Fields<'_>) -> Result<()> {
        for id in token_ids(fields, "eos_token_id", self.vocab_size)? {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
        if self.bos_token_id.is_none() {
            self.bos_token_id = token_ids(fields, "bos_token_id", self.vocab_size)?.first().copied();
        }
        Ok(())
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

    /// Floating-point operations of one token in all layers, a multiply-add being two, when it attends to `keys` keys
    /// on average. The head is [`head_flops`](Self::head_flops).
    pub fn flops_per_token(&self, keys: f64) -> f64 {
        let hidden = self.hidden_size as f64;
        let (q, kv) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let layer = |layer: &LayerConfig| {
            let feed_forward = layer.feed_forward;
            let inner = (self.mlp_products() * feed_forward.width() * feed_forward.passes()) as f64;
            let router = match feed_forward {
                FeedForward::Experts(experts) => experts.count as f64,
                FeedForward::Dense { .. } => 0.0,
            };
            let seen = layer.window.map_or(keys, |window| keys.min(window as f64));
            hidden * ((2 * q + 2 * kv) as f64 + inner + router) + 2.0 * q as f64 * seen
        };
        2.0 * self.layers.iter().map(layer).sum::<f64>()
    }

    /// Floating-point operations of one row of logits.
    pub fn head_flops(&self) -> f64 {
        2.0 * self.hidden_size as f64 * self.vocab_size as f64
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

    /// Products of a feed-forward layer: gate, up and down, or the last two.
    fn mlp_products(&self) -> usize {
        2 + usize::from(self.names.is_gated())
    }
}
