//! The memory that a model takes, and what would take less, before anything but headers is read; and whether there is
//! room for it.

mod footprint;
mod planner;

use sinew_memory::Bytes;
use sinew_ops::Context;

pub use self::footprint::{Footprint, SequenceBytes};
pub use self::planner::{Change, Planner, Saving};
use crate::activations::sum;
pub use crate::load::DeviceBytes;
use crate::load::Taken;
pub use crate::load_options::Limits;
use crate::{DecoderConfig, Error, Folder, ModelConfig, Result};

/// The use that a model is planned for, with its config.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// Generation, by a decoder with a head.
    Generate(&'a DecoderConfig),
    /// Vectors of texts, by an encoder or a decoder without a head. Only the options of weights apply:
    /// [`passes`](crate::passes) decides how large passes are.
    Embed(&'a ModelConfig),
}

impl<'a> Purpose<'a> {
    /// Reads the purpose of the model in a folder.
    ///
    /// # Errors
    /// Fails where [`Folder::embeds`] does.
    pub fn of(folder: &'a Folder) -> Result<Self> {
        let config = folder.config()?;
        Ok(match folder.embeds()? {
            true => Self::Embed(config),
            false => Self::Generate(config.as_decoder()?),
        })
    }

    /// The decoder of a model that generates.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for one that embeds.
    pub fn generating(self) -> Result<&'a DecoderConfig> {
        match self {
            Self::Generate(config) => Ok(config),
            Self::Embed(config) => Err(Error::Unsupported {
                what: format!("a number or length of sequences of `{}`, which embeds texts", config.model_type()),
                supported: "models that generate; texts share passes of one size, however many they are".to_owned(),
            }),
        }
    }
}

/// Refuses parts of a model that the free memory of a context's device, or its limit, cannot hold together, before any
/// of them is allocated; `work` is what they would be for, in words, and `would_fit`, which is asked where they are refused, says
/// what would not be.
///
/// # Errors
/// [`Error::Input`], which says what takes how much, what holds the rest, and what would fit.
pub(crate) fn refuse_beyond_memory(
    ctx: &Context,
    parts: &[Taken],
    work: &str,
    would_fit: impl FnOnce(usize) -> Result<String>,
) -> Result<()> {
    let (available, total) = (ctx.available_memory()?, sum(parts.iter().map(|(_, bytes)| *bytes)));
    if total <= available {
        return Ok(());
    }
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(what, bytes)| format!("{what} {}", Bytes(*bytes))).collect();
    Err(Error::Input(format!(
        "the model takes {} for {work} ({}); {}; {}",
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
