//! Finds the names of tensors for which checkpoints have several names.

use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::config::{EncoderNames, ExpertMatrices, Experts, TensorNames};

/// Says where a checkpoint has the embedding.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EmbeddingSource {
    /// The names of all modules but the head begin with this prefix.
    pub prefix: &'static str,
    /// The weight of this module is the embedding.
    pub module: String,
}

impl EmbeddingSource {
    /// Finds the embedding `name` behind one of `prefixes`, or the weight of a head that the config ties to it. The
    /// second case exists because safetensors' `save_model` writes a shared tensor under one name only. The prefix then
    /// comes from `in_layer`, a module that every model has.
    ///
    /// # Errors
    /// [`Error::MissingTensor`](crate::Error::MissingTensor) if the checkpoint has neither, or an error of
    /// [`Checkpoint::has_weight`].
    fn find(
        checkpoint: &Checkpoint,
        prefixes: &[&'static str],
        name: &str,
        tied_heads: &[&'static str],
        in_layer: &str,
    ) -> Result<Self> {
        if let Some(prefix) = checkpoint.find_prefix(name, prefixes)? {
            return Ok(Self { prefix, module: format!("{prefix}{name}") });
        }
        for head in tied_heads {
            if checkpoint.has_weight(head)?
                && let Some(prefix) = checkpoint.find_prefix(in_layer, prefixes)?
            {
                return Ok(Self { prefix, module: (*head).to_owned() });
            }
        }
        Err(checkpoint.missing_weight(name, prefixes))
    }
}

impl Experts {
    /// transformers 5 stacks the experts that models publish as a module each, and safetensors' `save_model` writes
    /// them so.
    const STACKED_BY_SAVE_MODEL: Self = Self {
        router: "mlp.gate",
        matrices: ExpertMatrices::StackedHalves { gate_up: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj" },
    };

    /// Returns the names of a layer in a checkpoint, whose tensors are called `at(..)`.
    pub(crate) fn in_layer(&'static self, checkpoint: &Checkpoint, at: &dyn Fn(&str) -> String) -> &'static Self {
        match (&self.matrices, &Self::STACKED_BY_SAVE_MODEL.matrices) {
            (ExpertMatrices::Each { .. }, ExpertMatrices::StackedHalves { gate_up, .. })
                if checkpoint.contains(&at(gate_up)) =>
            {
                &Self::STACKED_BY_SAVE_MODEL
            }
            _ => self,
        }
    }
}

impl TensorNames {
    /// Finds the embedding of a checkpoint, which may be the weight of a head that is `tied` to it.
    ///
    /// # Errors
    /// Fails if the checkpoint has none.
    pub(crate) fn embedding_source(&self, tied: bool, checkpoint: &Checkpoint) -> Result<EmbeddingSource> {
        let heads = if tied { self.heads } else { &[] };
        let in_layer = format!("{}0.{}", self.layer, self.attention_output);
        EmbeddingSource::find(checkpoint, self.prefixes, self.embedding, heads, &in_layer)
    }
}

impl EncoderNames {
    /// Finds the embedding of a checkpoint, which may be the weight of a masked-word head that is `tied` to it.
    ///
    /// # Errors
    /// Fails if the checkpoint has none.
    pub(crate) fn embedding_source(&self, tied: bool, checkpoint: &Checkpoint) -> Result<EmbeddingSource> {
        let heads = if tied { &self.masked_head[1..] } else { &[] };
        let in_layer = format!("{}.0.{}", self.layer, self.output);
        EmbeddingSource::find(checkpoint, self.prefixes, self.word, heads, &in_layer)
    }
}
