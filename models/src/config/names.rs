//! What checkpoints call their tensors.

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
    /// The logits of the heads' attention sinks, whole, where there are some.
    pub sinks: Option<&'static str>,
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
    /// Ends of the whole names of tensors that are not needed: tables that transformers once saved and now computes.
    pub spare: &'static [&'static str],
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

/// The router and the matrices of a layer of experts.
#[derive(Debug, PartialEq)]
pub(crate) struct Experts {
    pub router: &'static str,
    pub matrices: ExpertMatrices,
}

/// The matrices of experts.
#[derive(Debug, PartialEq)]
pub(crate) enum ExpertMatrices {
    /// One module for each.
    Each {
        /// Before the number of an expert.
        expert: &'static str,
        gate: &'static str,
        up: &'static str,
        down: &'static str,
    },
    /// Parameters `[experts, inputs, outputs]`, or quantized `[experts, outputs, inputs]`, and their biases
    /// `[experts, outputs]`; outputs of gate and up take turns.
    StackedInterleaved { gate_up: &'static str, down: &'static str },
    /// The parameters are `[experts, outputs, inputs]`; all outputs of the gate precede the outputs of up.
    StackedHalves { gate_up: &'static str, down: &'static str },
}

impl TensorNames {
    /// Whether feed-forward layers have a gate.
    pub(crate) fn is_gated(&self) -> bool {
        !matches!(self.up, Up::Plain(_))
    }
}

/// What an encoder's checkpoints call their tensors, less `.weight` and `.bias`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EncoderNames {
    /// What may stand before every name.
    pub prefixes: &'static [&'static str],
    pub word: &'static str,
    /// A vector for each position.
    pub positions: &'static str,
    pub token_types: &'static str,
    pub embedding_norm: &'static str,
    /// Before the number of a layer; the names below come after it.
    pub layer: &'static str,
    /// Three tensors, or one that holds all.
    pub qkv: &'static [&'static str],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub mlp_norm: &'static str,
    /// The norm at the end, where norms come first.
    pub final_norm: &'static str,
    /// The bias of a head for masked words, and the module whose it is: its weight is the table of words.
    pub masked_head: [&'static str; 2],
    /// Ends of the whole names of tensors that are not needed, as in [`TensorNames`], and of what follows the last
    /// hidden states.
    pub spare: &'static [&'static str],
}
