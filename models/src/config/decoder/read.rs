//! Reading a decoder's `config.json`.

use super::{DecoderConfig, ExpertsConfig, FeedForward, LayerConfig, NormKind};
use crate::config::fields::{
    LayerType, MAX_HEAD_DIM, MAX_LAYERS, MAX_SIZE, check_total, derived_head_dim, read_activation, read_dtype,
    read_eps, read_layer_types, token_ids,
};
use crate::config::{RopeConfig, RopeDefaults, TensorNames};
use crate::error::{Error, Result};
use crate::json::Fields;

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
            hidden_act: read_activation(config, fields.hidden_act, defaults.hidden_act)?,
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
        check_total(config, self.weights())
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
}
