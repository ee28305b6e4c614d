//! How large the steps of a model are, and the memory that it takes on its device for them.
//!
//! What a model is made of is declared once, and given to what loads it and to what counts its bytes. Bytes that are too
//! many to count are [`usize::MAX`].

use sinew_memory::Bytes;
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
/// let (config, checkpoint) = (folder.config()?.as_decoder()?, folder.checkpoint(Load::Mmap)?);
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

/// Refuses parts of a model that the free memory of a context's device, or its limit, cannot hold together, before any
/// of them is allocated; `purpose` says for how much work they would be, and `would_fit`, which is asked where they are
/// refused, what would not be.
///
/// # Errors
/// [`Error::Input`], which says what takes how much, what holds the rest, and what would fit.
pub(crate) fn refuse_beyond_memory(
    ctx: &Context,
    parts: &[Taken],
    purpose: &str,
    would_fit: impl FnOnce(usize) -> Result<String>,
) -> Result<()> {
    let (available, total) = (ctx.available_memory()?, sum(parts.iter().map(|(_, bytes)| *bytes)));
    if total <= available {
        return Ok(());
    }
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(what, bytes)| format!("{what} {}", Bytes(*bytes))).collect();
    Err(Error::Input(format!(
        "the model takes {} for {purpose} ({}); {}; {}",
        Bytes(total).beside([available]).0,
        parts.join(", "),
        free(ctx, total, available)?,
        would_fit(available)?
    )))
}

/// How much of a device's memory is free where so much was `asked`, or of what a context may take of it, and what holds
/// the rest.
fn free(ctx: &Context, asked: usize, available: usize) -> Result<String> {
    let (report, limit) = (ctx.memory_report(), ctx.pool().config().limit_bytes);
    let total = ctx.device().memory()?.total.min(limit);
    let pooled = report.stats.pooled_bytes;
    let of_tags = report.live.iter().map(|usage| (usage.tag.as_str(), usage.bytes));
    let others = total.saturating_sub(sum([available, report.used_bytes, pooled]));
    // Of a limit nobody else takes anything: what is missing is rounded up.
    let others = if total < limit { others } else { 0 };
    let holders = of_tags.chain([("free buffers", pooled), ("others", others)]).filter(|(_, bytes)| *bytes > 0);
    let holders: Vec<String> = holders.map(|(holder, bytes)| format!("{holder} {}", Bytes(bytes))).collect();
    let rest = if holders.is_empty() { String::new() } else { format!(", the rest is held by {}", holders.join(", ")) };
    let (_, [available, total]) = Bytes(asked).beside([available, total]);
    Ok(format!("{available} of {total} are free on {}{rest}", ctx.device().id()))
}

/// The largest number up to `limit` of which `fits` holds, or 0; more of it never takes less.
pub(crate) fn most_that_fits(limit: usize, mut fits: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let (mut most, mut too_many) = (0, None);
    while most < too_many.map_or(limit, |too_many| too_many - 1) {
        // Doubled until it is too many, as most limits are far away.
        let at = too_many.map_or_else(|| most.saturating_mul(2).clamp(1, limit), |too_many| most.midpoint(too_many));
        if fits(at)? {
            most = at;
        } else {
            too_many = Some(at);
        }
    }
    Ok(most)
}
