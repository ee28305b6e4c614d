//! How large the steps of a model are, and the memory that it takes on its device for them.
//!
//! What a model is made of is declared once, and given to what loads it and to what counts its bytes. Bytes that are too
//! many to count are [`usize::MAX`].

use sinew_ops::Context;

use crate::scratch::sum;
use crate::{Error, Result};

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
    /// Rows of logits at once; 0 loads no head, for models of which only hidden states are asked.
    pub max_logits: usize,
}

impl Limits {
    /// The same with no more rows of logits than a step has rows.
    pub(crate) fn capped(self) -> Self {
        Self { max_logits: self.max_logits.min(self.max_rows), ..self }
    }

    /// Rows of a step that are asked for at once.
    pub(crate) fn max_wanted(&self) -> usize {
        if self.max_logits == 0 { self.max_rows } else { self.max_logits }
    }
}

/// Bytes on the device of a model that is loaded, by what they are for.
///
/// Not counted are what kernels work on while they run, which is known once they are chosen, and what a pool rounds up:
/// a [`Footprint`](crate::Footprint) has them.
///
/// ```no_run
/// use sinew_memory::Cpu;
/// use sinew_models::{Folder, LanguageModel, Load, LoadOptions};
///
/// let folder = Folder::new("path/to/model");
/// let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(Load::Mmap)?);
/// let plan = LanguageModel::plan(config, &checkpoint, &LoadOptions::default(), &*Cpu::get())?;
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
        let &Self { weights, cache, activations, tables, logits } = self;
        sum([weights, cache, activations, tables, logits])
    }

    /// Refuses what the free memory of a context's device, or its limit, cannot hold, before any of it is allocated;
    /// `purpose` says for how much work it would be.
    ///
    /// # Errors
    /// [`Error::Input`], which says what takes how much.
    pub fn refuse_beyond_memory(&self, ctx: &Context, purpose: &str) -> Result<()> {
        let available = ctx.available_memory()?;
        if self.total() <= available {
            return Ok(());
        }
        let &Self { weights, cache, activations, tables, logits } = self;
        let parts = [
            ("weights", weights),
            ("KV cache", cache),
            ("activations", activations),
            ("rotary tables", tables),
            ("logits", logits),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(what, bytes)| format!("{what} {}", counted(*bytes)))
            .collect();
        Err(Error::Input(format!(
            "the model takes {} for {purpose} ({}); {available} bytes are free on {}",
            counted(self.total()),
            parts.join(", "),
            ctx.device().id()
        )))
    }
}

fn counted(bytes: usize) -> String {
    match bytes {
        usize::MAX => "more bytes than can be counted".to_owned(),
        _ => format!("{bytes} bytes"),
    }
}
