//! The registry of Sinew's own rows: one line per operator.

use crate::{
    Registry, activation, attention, cast, elementwise, embedding, gather, gemm, kv_append, norm, reduce, rotary,
    sample, softmax, topk,
};

impl Registry {
    /// Every operator of Sinew with all its rows.
    pub fn standard() -> Self {
        let mut registry = Self::empty();
        registry.add(activation::rows());
        registry.add(attention::rows());
        registry.add(cast::rows());
        registry.add(elementwise::binary_rows());
        registry.add(elementwise::unary_rows());
        registry.add(elementwise::where_rows());
        registry.add(embedding::rows());
        registry.add(gather::rows());
        registry.add(gemm::rows());
        registry.add(kv_append::rows());
        registry.add(norm::rows());
        registry.add(reduce::rows());
        registry.add(rotary::rows());
        registry.add(sample::rows());
        registry.add(softmax::rows());
        registry.add(topk::rows());
        registry
    }
}
