//! Whether there is room for what a model takes.

use sinew_memory::Bytes;
use sinew_ops::Context;

use crate::activations::sum;
use crate::load::Taken;
use crate::{Error, Result};

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
