//! `config.json`, read into a description that has been checked.
//!
//! Architectures that differ in a bias or a norm share one [`DecoderConfig`] with a switch for each difference,
//! so that a layer asks the description and never the name of the model. The names are those of `config.json`.
//! What is not implemented is refused here, before anything large is read.

use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;
use sinew_ops::layers::Activation;

use crate::architectures;
use crate::error::{Error, Result};
use crate::files::{self, Fields, as_count, brief};

mod encoder;
mod rope;

pub use encoder::{EncoderConfig, Positions};
pub(crate) use encoder::{EncoderDefaults, Names};
pub use rope::{RopeConfig, RopeScaling};

/// No size in a config may exceed this: an index into one dimension then fits an `i32`, and the product of any two
/// fits 64 bits.
pub(crate) const MAX_SIZE: usize = i32::MAX as usize;
/// Published heads have up to 576 elements. Tables of rotary positions are as wide, before any tensor is looked at.
const MAX_HEAD_DIM: usize = 1 << 14;
/// No published model has a thousand layers; a list per layer of this length costs nothing.
const MAX_LAYERS: usize = 1 << 16;

const SUPPORTED_MODELS: &str = "llama, qwen2, qwen3, bert, roberta, xlm-roberta, modernbert";

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
    /// assert!(config.qkv_bias && !config.o_bias && !config.qk_norm);
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
        // Before the fields of the architecture, so that a model that cannot run at all says so first.
        let switches = match model_type {
            "llama" => Switches::llama(&fields)?,
            "qwen2" => Switches::qwen2(),
            "qwen3" => Switches::qwen3(&fields)?,
            other => {
                if let Some(encoder) = architectures::encoder(other, &fields) {
                    refuse_quantized(&fields)?;
                    return encoder.map(ModelConfig::Encoder);
                }
                return Err(Error::Unsupported {
                    what: format!("model_type `{}`", other.escape_debug()),
                    supported: SUPPORTED_MODELS.to_owned(),
                });
            }
        };
        refuse_quantized(&fields)?;
        DecoderConfig::read(&fields, model_type, switches).map(ModelConfig::Decoder)
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
                supported: "decoders (llama, qwen2, qwen3); encoders serve `embed` and `logits`".to_owned(),
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

/// The activation that a config names in transformers' spelling.
fn activation(name: &str) -> Result<Activation> {
    name.parse().map_err(|_| Error::Unsupported {
        what: format!("hidden_act `{}`", name.escape_debug()),
        supported: "silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu, relu2".to_owned(),
    })
}

/// A causal language model: embedding, layers of attention and gated feed-forward with RMS norms before each,
/// norm, head.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// `llama`, `qwen2` or `qwen3`; for messages.
    pub model_type: String,
    /// The width of the residual stream.
    pub hidden_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// The width of one head; even.
    pub head_dim: usize,
    /// The width of the feed-forward layer.
    pub intermediate_size: usize,
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Whether the head is the embedding, unless the checkpoint holds a head of its own; without either, loading fails.
    pub tie_word_embeddings: bool,
    /// The function on the gate.
    pub hidden_act: Activation,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// A bias on attention's output projection.
    pub o_bias: bool,
    /// Biases on the three projections of the feed-forward layer.
    pub mlp_bias: bool,
    /// RMS norms over `head_dim` of every query and key head, before the rotation.
    pub qk_norm: bool,
    /// For each layer, how many of the latest positions it attends to, its own included; `None` is all.
    pub sliding_window: Vec<Option<usize>>,
    /// The longest sequence that the model was made for.
    pub max_position_embeddings: usize,
    /// The tokens that end a text: those of the config, then those that `generation_config.json` adds.
    pub eos_token_ids: Vec<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The dtype that the config says the weights have (`torch_dtype` or `dtype`); the checkpoint decides.
    pub dtype: Option<Dtype>,
}

/// What tells the decoders apart beyond the fields that they share.
struct Switches {
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    /// Whether the architecture looks at `use_sliding_window` and `layer_types`.
    windows: bool,
    /// Where the config has none: `None` is `hidden_size / num_attention_heads`.
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
}

impl Switches {
    fn llama(config: &Fields<'_>) -> Result<Self> {
        let attention_bias = config.flag("attention_bias")?.unwrap_or(false);
        Ok(Self {
            qkv_bias: attention_bias,
            o_bias: attention_bias,
            mlp_bias: config.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: false,
            windows: false,
            head_dim: None,
            max_position_embeddings: 2048,
            bos_token_id: Some(1),
            eos_token_id: Some(2),
        })
    }

    fn qwen2() -> Self {
        Self {
            qkv_bias: true,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            windows: true,
            head_dim: None,
            max_position_embeddings: 32768,
            bos_token_id: None,
            eos_token_id: None,
        }
    }

    fn qwen3(config: &Fields<'_>) -> Result<Self> {
        let attention_bias = config.flag("attention_bias")?.unwrap_or(false);
        Ok(Self {
            qkv_bias: attention_bias,
            o_bias: attention_bias,
            qk_norm: true,
            head_dim: Some(128),
            ..Self::qwen2()
        })
    }
}

impl DecoderConfig {
    /// Adds the end tokens of a `generation_config.json`, and takes its begin token where the config has none.
    ///
    /// Chat models often list the end of a turn only there, and the end of a text only in the config; a text
    /// ends at either.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] and [`Error::Config`], as for the config.
    pub fn add_generation_config(&mut self, text: &str) -> Result<()> {
        let file = "generation_config.json";
        let value = files::parse(text, file)?;
        let fields = Fields::of(&value, file, "")?;
        for id in token_ids(&fields, "eos_token_id", self.vocab_size)? {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
        if self.bos_token_id.is_none() {
            self.bos_token_id = token_ids(&fields, "bos_token_id", self.vocab_size)?.first().copied();
        }
        Ok(())
    }

    /// Floating-point operations of one token in all layers, a multiply-add being two, when it attends to `keys` keys
    /// on average. The head is [`head_flops`](Self::head_flops).
    pub fn flops_per_token(&self, keys: f64) -> f64 {
        let (hidden, width) = (self.hidden_size as f64, self.intermediate_size as f64);
        let (q, kv) = (self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim);
        let products = hidden * (2 * q + 2 * kv) as f64 + 3.0 * hidden * width;
        2.0 * self.num_hidden_layers as f64 * (products + 2.0 * q as f64 * keys)
    }

    /// Floating-point operations of one row of logits.
    pub fn head_flops(&self) -> f64 {
        2.0 * self.hidden_size as f64 * self.vocab_size as f64
    }

    fn read(config: &Fields<'_>, model_type: &str, switches: Switches) -> Result<Self> {
        if config.flag("is_causal")? == Some(false) || config.flag("use_bidirectional_attention")? == Some(true) {
            return Err(Error::Unsupported {
                what: format!("bidirectional attention in a {model_type} model"),
                supported: "causal attention".to_owned(),
            });
        }
        let size = |name: &str| config.required(name, config.size(name, MAX_SIZE)?);
        let hidden_size = size("hidden_size")?;
        let num_hidden_layers = config.required("num_hidden_layers", config.size("num_hidden_layers", MAX_LAYERS)?)?;
        let num_attention_heads = size("num_attention_heads")?;
        let num_key_value_heads = config.size("num_key_value_heads", MAX_SIZE)?.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            return Err(config.problem(
                "num_key_value_heads",
                &format!("is {num_key_value_heads}, which does not divide num_attention_heads, {num_attention_heads}"),
            ));
        }
        let head_dim = match config.size("head_dim", MAX_SIZE)?.or(switches.head_dim) {
            Some(head_dim) => head_dim,
            None => derived_head_dim(config, hidden_size, num_attention_heads)?,
        };
        if head_dim > MAX_HEAD_DIM {
            return Err(config.problem("head_dim", &format!("is {head_dim}; at most {MAX_HEAD_DIM} is supported")));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(config.problem("head_dim", &format!("is {head_dim}, and rotary embedding needs an even one")));
        }
        let max_position_embeddings =
            config.size("max_position_embeddings", MAX_SIZE)?.unwrap_or(switches.max_position_embeddings);
        let vocab_size = size("vocab_size")?;

        let mut eos_token_ids = token_ids(config, "eos_token_id", vocab_size)?;
        if !config.mentions("eos_token_id") {
            eos_token_ids.extend(switches.eos_token_id);
        }
        let bos_token_id = match config.mentions("bos_token_id") {
            true => token_ids(config, "bos_token_id", vocab_size)?.first().copied(),
            false => switches.bos_token_id,
        };
        let sliding_window = match switches.windows {
            true => read_windows(config, num_hidden_layers)?,
            false => vec![None; num_hidden_layers],
        };

        let decoder = Self {
            model_type: model_type.to_owned(),
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size: size("intermediate_size")?,
            vocab_size,
            rms_norm_eps: read_eps(config, "rms_norm_eps", 1e-6)?,
            rope: RopeConfig::read(config, max_position_embeddings)?,
            tie_word_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(false),
            hidden_act: read_activation(config, "silu")?,
            qkv_bias: switches.qkv_bias,
            o_bias: switches.o_bias,
            mlp_bias: switches.mlp_bias,
            qk_norm: switches.qk_norm,
            sliding_window,
            max_position_embeddings,
            eos_token_ids,
            bos_token_id,
            dtype: read_dtype(config)?,
        };
        let q = product(&[num_attention_heads, head_dim]);
        let kv = product(&[num_key_value_heads, head_dim]);
        let per_layer = q
            .zip(kv)
            .and_then(|(q, kv)| q.checked_add(kv)?.checked_mul(2))
            .and_then(|heads| heads.checked_mul(hidden_size))
            .zip(product(&[3, hidden_size, decoder.intermediate_size]))
            .and_then(|(attention, mlp)| attention.checked_add(mlp));
        check_total(config, per_layer, num_hidden_layers, product(&[2, vocab_size, hidden_size]))?;
        Ok(decoder)
    }
}

fn refuse_quantized(config: &Fields<'_>) -> Result<()> {
    for name in ["quantization_config", "compression_config"] {
        if let Some(value) = config.get(name) {
            let method = value.get("quant_method").unwrap_or(value);
            return Err(Error::Unsupported {
                what: format!("{name} ({})", brief(method)),
                supported: "checkpoints in f32, f16, bf16 or f64".to_owned(),
            });
        }
    }
    Ok(())
}

fn derived_head_dim(config: &Fields<'_>, hidden_size: usize, heads: usize) -> Result<usize> {
    if !hidden_size.is_multiple_of(heads) {
        return Err(config
            .problem("num_attention_heads", &format!("is {heads}, which does not divide hidden_size, {hidden_size}")));
    }
    Ok(hidden_size / heads)
}

/// The window of each layer, as Qwen2 and Qwen3 read it: only with `use_sliding_window`, and then in the layers
/// that `layer_types` names or, without it, from `max_window_layers` on.
fn read_windows(config: &Fields<'_>, num_hidden_layers: usize) -> Result<Vec<Option<usize>>> {
    const DEFAULT_WINDOW: usize = 4096;
    const DEFAULT_MAX_WINDOW_LAYERS: usize = 28;
    let enabled = config.flag("use_sliding_window")?.unwrap_or(false);
    let window = match (enabled, config.mentions("sliding_window")) {
        (false, _) => None,
        (true, true) => config.size("sliding_window", MAX_SIZE)?,
        (true, false) => Some(DEFAULT_WINDOW),
    };
    let Some(layer_types) = config.list("layer_types")? else {
        let first = config.count("max_window_layers", MAX_SIZE)?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
        return Ok((0..num_hidden_layers).map(|layer| window.filter(|_| layer >= first)).collect());
    };
    if layer_types.len() != num_hidden_layers {
        return Err(
            config.problem("layer_types", &format!("has {} entries for {num_hidden_layers} layers", layer_types.len()))
        );
    }
    let of_layer = |layer_type: &Value| match layer_type.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") if window.is_some() => Ok(window),
        Some("sliding_attention") => Err(config.problem(
            "layer_types",
            "asks for sliding_attention, but use_sliding_window and sliding_window give no window",
        )),
        _ => Err(Error::Unsupported {
            what: format!("layer type {}", brief(layer_type)),
            supported: "full_attention, sliding_attention".to_owned(),
        }),
    };
    layer_types.iter().map(of_layer).collect()
}

fn read_eps(config: &Fields<'_>, name: &str, default: f64) -> Result<f64> {
    let eps = config.number(name)?.unwrap_or(default);
    // Above one the norm would no longer normalise anything.
    if !(0.0..=1.0).contains(&eps) {
        return Err(config.problem(name, &format!("must be from 0 to 1, found {eps}")));
    }
    Ok(eps)
}

fn read_activation(config: &Fields<'_>, default: &str) -> Result<Activation> {
    activation(config.text("hidden_act")?.unwrap_or(default))
}

fn read_dtype(config: &Fields<'_>) -> Result<Option<Dtype>> {
    // transformers 5 writes `dtype`, older ones `torch_dtype`.
    let name = match config.text("dtype")? {
        Some(name) => Some(name),
        None => config.text("torch_dtype")?,
    };
    match name.map(|name| name.trim_start_matches("torch.")) {
        None | Some("auto") => Ok(None),
        Some("float32") => Ok(Some(Dtype::F32)),
        Some("float16") => Ok(Some(Dtype::F16)),
        Some("bfloat16") => Ok(Some(Dtype::BF16)),
        Some("float64") => Ok(Some(Dtype::F64)),
        Some(other) => Err(Error::Unsupported {
            what: format!("dtype `{}`", other.escape_debug()),
            supported: "float32, float16, bfloat16, float64".to_owned(),
        }),
    }
}

/// An id or a list of them. Ids that the model cannot produce are dropped with a warning: published configs hold
/// -1 for "none", and an id beyond the vocabulary can never end a text.
fn token_ids(config: &Fields<'_>, name: &str, vocab_size: usize) -> Result<Vec<u32>> {
    let values: &[Value] = match config.get(name) {
        None => &[],
        Some(Value::Array(values)) => values,
        Some(value) => std::slice::from_ref(value),
    };
    let mut ids = Vec::new();
    for value in values {
        if !value.is_number() {
            return Err(config.problem(name, &format!("must be a token id or a list of them, found {}", brief(value))));
        }
        match as_count(value).filter(|&id| id < vocab_size) {
            // Vocabularies end below 2^31.
            Some(id) => ids.push(id as u32),
            None => {
                tracing::warn!(field = name, id = %value, "token id outside the vocabulary, ignored")
            }
        }
    }
    Ok(ids)
}

fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |all, &n| all.checked_mul(n))
}

/// Refuses sizes whose weights could not be addressed, so that later products need no check.
fn check_total(config: &Fields<'_>, per_layer: Option<usize>, layers: usize, embeddings: Option<usize>) -> Result<()> {
    /// The widest element that weights are held in.
    const MAX_ELEMENT_BYTES: usize = 8;
    per_layer
        .and_then(|n| n.checked_mul(layers))
        .zip(embeddings)
        .and_then(|(layers, embeddings)| layers.checked_add(embeddings))
        .and_then(|elements| elements.checked_mul(MAX_ELEMENT_BYTES))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(|_| ())
        .ok_or_else(|| config.problem("hidden_size", "and the other sizes describe more weights than can be addressed"))
}

#[cfg(test)]
mod tests;
