//! Which weight gives logits.

use crate::checkpoint::Checkpoint;
use crate::checkpoint_names::EmbeddingSource;
use crate::{DecoderConfig, Result};

/// What logits are products with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// The embedding.
    Tied,
    /// A weight of this name.
    Own(&'static str),
    /// The same, though the config ties it to the embedding: other programs know it by its usual tensor alone.
    OwnThoughTied(&'static str),
}

impl Head {
    /// The head of a checkpoint whose embedding is at `source`. A weight that the checkpoint has beside the embedding
    /// is used, whether the config ties the head or not.
    pub(crate) fn of(config: &DecoderConfig, checkpoint: &Checkpoint, source: &EmbeddingSource) -> Result<Self> {
        let (heads, is_tied) = (config.names.heads, config.tie_word_embeddings);
        for head in heads {
            if *head == source.module {
                return Ok(Self::Tied);
            }
            if checkpoint.has_weight(head)? {
                return Ok(if is_tied { Self::OwnThoughTied(head) } else { Self::Own(head) });
            }
        }
        Ok(if is_tied { Self::Tied } else { Self::Own(heads.first().copied().unwrap_or_default()) })
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;
    use serde_json::json;

    use super::*;
    use crate::{ModelConfig, Tensors};

    #[test]
    fn a_head_is_the_embedding_where_the_config_says_so_and_there_is_none() {
        let source = |module: &str| EmbeddingSource { prefix: "model.", module: module.to_owned() };
        let head = |is_tied: bool, source: &EmbeddingSource, names: &[&str]| {
            let config = json!({
                "model_type": "llama", "hidden_size": 8, "vocab_size": 16, "intermediate_size": 8,
                "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
                "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": is_tied,
            });
            let config = ModelConfig::from_json(&config.to_string()).expect("a config");
            let view = |name| (name, TensorView::new(Dtype::BF16, vec![1], &[0; 2]).expect("a number"));
            let file = safetensors::serialize(names.iter().map(view), None).expect("a file");
            let checkpoint = Checkpoint::new(Tensors::from_bytes(file).expect("tensors"), None);
            Head::of(config.as_decoder().expect("a decoder"), &checkpoint, source).expect("a head")
        };
        let (own, none) = (&["lm_head.weight", "other"][..], &["other"][..]);
        let table = &source("model.embed_tokens");
        let heads = |names| (head(false, table, names), head(true, table, names));
        assert_eq!(heads(own), (Head::Own("lm_head"), Head::OwnThoughTied("lm_head")));
        // Loading says that a tensor is missing.
        assert_eq!(heads(none), (Head::Own("lm_head"), Head::Tied));
        assert_eq!(head(true, &source("lm_head"), own), Head::Tied);
    }
}
