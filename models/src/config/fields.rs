//! What the readers of configs share.

use safetensors::Dtype;
use serde_json::Value;
use sinew_ops::layers::Activation;

use crate::error::{Error, Result};
use crate::json::{Fields, as_count, brief};

/// No size in a config may exceed this: an index into one dimension then fits an `i32`, and the product of any two
/// fits 64 bits.
pub(crate) const MAX_SIZE: usize = i32::MAX as usize;
/// Published heads have up to 576 elements. Tables of rotary positions are as wide, before any tensor is looked at.
pub(crate) const MAX_HEAD_DIM: usize = 1 << 14;
/// No published model has a thousand layers; a list per layer of this length costs nothing.
pub(crate) const MAX_LAYERS: usize = 1 << 16;

/// What `layer_types` says of a layer's attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LayerType {
    Full,
    Sliding,
}

/// The type of each layer: what `layer_types` says, or else `default` of the layer's number.
pub(crate) fn read_layer_types(
    config: &Fields<'_>,
    layers: usize,
    default: impl Fn(usize) -> LayerType,
) -> Result<Vec<LayerType>> {
    let Some(types) = config.list("layer_types")? else { return Ok((0..layers).map(default).collect()) };
    if types.len() != layers {
        return Err(config.problem("layer_types", &format!("has {} entries for {layers} layers", types.len())));
    }
    let of_layer = |layer_type: &Value| match layer_type.as_str() {
        Some("full_attention") => Ok(LayerType::Full),
        Some("sliding_attention") => Ok(LayerType::Sliding),
        _ => Err(Error::Unsupported {
            what: format!("layer type {}", brief(layer_type)),
            supported: "full_attention, sliding_attention".to_owned(),
        }),
    };
    types.iter().map(of_layer).collect()
}

/// The window `sliding_window`, or `default` where the config does not mention it; `null` is none.
pub(crate) fn read_window(config: &Fields<'_>, default: Option<usize>) -> Result<Option<usize>> {
    match config.mentions("sliding_window") {
        true => config.size("sliding_window", MAX_SIZE),
        false => Ok(default),
    }
}

pub(crate) fn derived_head_dim(config: &Fields<'_>, hidden_size: usize, name: &str, heads: usize) -> Result<usize> {
    if !hidden_size.is_multiple_of(heads) {
        return Err(config.problem(name, &format!("is {heads}, which does not divide hidden_size, {hidden_size}")));
    }
    Ok(hidden_size / heads)
}

pub(crate) fn read_eps(config: &Fields<'_>, name: &str, default: f64) -> Result<f64> {
    let eps = config.number(name)?.unwrap_or(default);
    // Above one the norm would no longer normalise anything.
    if !(0.0..=1.0).contains(&eps) {
        return Err(config.problem(name, &format!("must be from 0 to 1, found {eps}")));
    }
    Ok(eps)
}

/// The activation that a config names in transformers' spelling, which has none for gpt-oss's: that is its alone.
pub(crate) fn read_activation(config: &Fields<'_>, field: &str, default: &str) -> Result<Activation> {
    let name = config.text(field)?.unwrap_or(default);
    let found = name.parse().ok().filter(|found| *found != Activation::SwigluOai || name == default);
    found.ok_or_else(|| Error::Unsupported {
        what: format!("{field} `{}`", name.escape_debug()),
        supported: "silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu, relu2".to_owned(),
    })
}

pub(crate) fn read_dtype(config: &Fields<'_>) -> Result<Option<Dtype>> {
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

/// An id or a list of them: [`known_tokens`].
pub(crate) fn token_ids(config: &Fields<'_>, name: &str, vocab_size: usize) -> Result<Vec<u32>> {
    let values: &[Value] = match config.get(name) {
        None => &[],
        Some(Value::Array(values)) => values,
        Some(value) => std::slice::from_ref(value),
    };
    /// More end tokens than any vocabulary has use for.
    const MAX_IDS: usize = 1 << 12;
    if values.len() > MAX_IDS {
        return Err(config.problem(name, &format!("has {} tokens, expected up to {MAX_IDS}", values.len())));
    }
    known_tokens(config, name, values, vocab_size)
}

/// The ids among the values of a field that are in a vocabulary of at most 2^31. The others are dropped with a warning:
/// published configs hold -1 for "none", and an id beyond the vocabulary can never come.
pub(crate) fn known_tokens(config: &Fields<'_>, name: &str, values: &[Value], vocab_size: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::with_capacity(values.len());
    let mut dropped = None;
    for value in values {
        if !value.is_number() {
            return Err(config.problem(name, &format!("must hold token ids, has {}", brief(value))));
        }
        match as_count(value).filter(|&id| id < vocab_size) {
            Some(id) => ids.push(id as u32),
            None => dropped = dropped.or(Some(value)),
        }
    }
    if let Some(value) = dropped {
        let others = match values.len() - ids.len() {
            1 => String::new(),
            all => format!(", and {} others", all - 1),
        };
        let ignored =
            config.problem(name, &format!("has {value}, which is no token of the vocabulary{others}: ignored"));
        tracing::warn!("{ignored}");
    }
    Ok(ids)
}

pub(crate) fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |all, &n| all.checked_mul(n))
}

/// Refuses more weights than can be addressed.
pub(crate) fn check_total(config: &Fields<'_>, weights: Option<usize>) -> Result<()> {
    /// The widest element that weights are held in.
    const MAX_ELEMENT_BYTES: usize = 8;
    weights
        .and_then(|elements| elements.checked_mul(MAX_ELEMENT_BYTES))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .map(|_| ())
        .ok_or_else(|| config.problem("hidden_size", "and the other sizes describe more weights than can be addressed"))
}
