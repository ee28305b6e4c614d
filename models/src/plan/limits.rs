//! How large the steps of a model are, and the memory that it takes on its device for them.
//!
//! What a model is made of is declared once, and given to what loads it and to what counts its bytes. Bytes that are too
//! many to count are [`usize::MAX`].

use crate::steps::scratch::sum;

/// How large a step of a decoder can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step.
    pub max_rows: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens of one sequence, prompt and answer.
    pub context: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Rows of logits at once; without any no head is loaded, for models of which only hidden states are asked.
    pub max_logits: Option<usize>,
}

impl Limits {
    /// The same with no more rows of logits than a step has rows.
    pub(crate) fn capped(self) -> Self {
        Self { max_logits: self.max_logits.map(|most| most.min(self.max_rows)), ..self }
    }

    /// Rows of a step that are asked for at once.
    pub(crate) fn max_wanted(&self) -> usize {
        self.max_logits.unwrap_or(self.max_rows)
    }
}

/// Bytes on the device of a model that is loaded, by what they are for.
///
/// Not counted are what kernels work on while they run, which is known once they are chosen, and what a pool rounds up:
/// a [`Footprint`](crate::Footprint) has them.
///
/// ```no_run
/// use sinew_models::{Folder, LanguageModel, Load, LoadOptions};
/// use sinew_ops::Context;
///
/// let folder = Folder::new("path/to/model");
/// let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(Load::default())?);
/// let plan = LanguageModel::plan(config, &checkpoint, &LoadOptions::default(), &Context::cpu()?)?;
/// println!("{} bytes, {} of them weights", plan.total(), plan.weights);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// Packed weights, embedding tables, biases and the weights of norms.
    pub weights: usize,
    /// Keys and values.
    pub cache: usize,
    /// What a step works on and is given.
    pub activations: usize,
    /// Rotary embeddings by position.
    pub tables: usize,
    /// Rows of logits.
    pub logits: usize,
}

impl Plan {
    /// All of them.
    pub fn total(&self) -> usize {
        sum(self.parts().map(|(_, bytes)| bytes))
    }

    /// Each with its name.
    pub(crate) fn parts(&self) -> [Taken; 5] {
        let &Self { weights, cache, activations, tables, logits } = self;
        [
            ("weights", weights),
            ("KV cache", cache),
            ("activations", activations),
            ("rotary tables", tables),
            ("logits", logits),
        ]
    }
}

/// What takes so many bytes.
pub(crate) type Taken = (&'static str, usize);
