//! The memory that a model takes on its device.
//!
//! What a model is made of is declared once, and given to what loads it and to what counts its bytes. Bytes that are too
//! many to count are [`usize::MAX`].

use crate::activations::sum;

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
pub struct DeviceBytes {
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

impl DeviceBytes {
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
