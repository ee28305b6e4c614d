//! The architectures: a file for each, with what its `config.json` says and what its checkpoints call their tensors.
//!
//! To add one is to write such a file and a line here.

use crate::config::ModelConfig;
use crate::error::Result;
use crate::files::Fields;

mod bert;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod llama;
mod mistral;
mod mixtral;
mod modernbert;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod roberta;
mod smollm3;

/// How a kind of model is read.
pub(crate) struct Architecture {
    name: &'static str,
    model_types: &'static [&'static str],
    /// Its config, whose `model_type` is one of these.
    pub read: fn(&Fields<'_>) -> Result<ModelConfig>,
}

static ARCHITECTURES: [&Architecture; 17] = [
    &llama::ARCHITECTURE,
    &mistral::ARCHITECTURE,
    &mixtral::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen3_moe::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gpt_neox::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &olmo3::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &bert::ARCHITECTURE,
    &roberta::ARCHITECTURE,
    &modernbert::ARCHITECTURE,
];

/// The architectures: the name of each, and the `model_type`s that it has in a config.
///
/// ```
/// let mut all = sinew_models::architectures::all();
/// assert_eq!(all.next(), Some(("Llama 2, 3", &["llama"][..])));
/// ```
pub fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    ARCHITECTURES.iter().map(|architecture| (architecture.name, architecture.model_types))
}

/// That of a config's `model_type`.
pub(crate) fn find(model_type: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.into_iter().find(|architecture| architecture.model_types.contains(&model_type))
}

/// Every `model_type`, for messages.
pub(crate) fn supported() -> String {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.model_types).copied().collect::<Vec<_>>().join(", ")
}

/// What a decoder's checkpoints call their tensors, less `.weight` and `.bias`.
#[derive(Debug, PartialEq)]
pub(crate) struct TensorNames {
    /// What all but the head may begin with: the first is right under which the embedding is found.
    pub prefixes: &'static [&'static str],
    pub embedding: &'static str,
    /// A vector for each position.
    pub positions: &'static str,
    /// Before the number of a layer; what follows is in a layer.
    pub layer: &'static str,
    /// The norm before attention, where there is one.
    pub attention_norm: Option<&'static str>,
    pub qkv: Qkv,
    /// Norms of queries and of keys, where the config has them.
    pub qk_norms: [&'static str; 2],
    pub attention_output: &'static str,
    /// The norm of what attention adds to the stream, where there is one.
    pub attention_output_norm: Option<&'static str>,
    /// The norm before the feed-forward layer, where there is one.
    pub mlp_norm: Option<&'static str>,
    pub up: Up,
    pub down: &'static str,
    pub mlp_output_norm: Option<&'static str>,
    /// Layers of which a token goes through some.
    pub experts: Experts,
    /// The norm before the head.
    pub norm: &'static str,
    /// The head, whole: the first that is found.
    pub heads: &'static [&'static str],
    /// Whether matrices of layers are `[inputs, outputs]`.
    pub transposed: bool,
}

/// The matrices of queries, keys and values.
#[derive(Debug, PartialEq)]
pub(crate) enum Qkv {
    /// One for each.
    Separate([&'static str; 3]),
    /// All queries, all keys, all values.
    Stacked(&'static str),
    /// For each head its query, key and value; there are as many heads of each.
    ByHead(&'static str),
}

/// The matrices into a feed-forward layer.
#[derive(Debug, PartialEq)]
pub(crate) enum Up {
    /// Gate and up.
    Gated([&'static str; 2]),
    /// Gate and up in one.
    Stacked(&'static str),
    /// No gate.
    Plain(&'static str),
}

/// The matrices of a layer of experts.
#[derive(Debug, PartialEq)]
pub(crate) struct Experts {
    pub router: &'static str,
    /// Before the number of an expert.
    pub expert: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

impl TensorNames {
    /// Whether feed-forward layers have a gate.
    pub(crate) fn is_gated(&self) -> bool {
        !matches!(self.up, Up::Plain(_))
    }
}

#[cfg(test)]
mod tests;
