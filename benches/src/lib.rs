//! What the benches share: every row of every table, ready to be timed, the context that chooses among them, and the
//! protocol of the round robin with other libraries.

pub mod contender;

use std::sync::Arc;

use sinew_kernels::accuracy::Run;
use sinew_kernels::case::Depth;
use sinew_kernels::rates::{Meter, Peaks};
use sinew_kernels::{Compute, Registry, Result};
use sinew_memory::Device;
use sinew_ops::{Context, Policy};

use contender::Measured;

/// Every row of `registry` that runs on `device`, with each of its cases.
///
/// # Errors
/// Operands that cannot be made.
pub fn runs(registry: &Registry, device: &Arc<dyn Device>) -> Result<Vec<Run>> {
    let mut all = Vec::new();
    for table in registry.tables() {
        all.extend(table.runs(device, Depth::Quick)?);
    }
    Ok(all)
}

/// A context that chooses rows on `device` as it is done for whoever asks for nothing special.
///
/// # Errors
/// A device that cannot make a stream.
pub fn context(device: &Arc<dyn Device>) -> sinew_ops::Result<Context> {
    Context::new(device.clone(), Arc::new(Registry::standard()), Policy::of(device.id().kind))
}

/// What `of` makes of the seconds that `work` says it took, and of the `least` that the limits allow, which are
/// measured before it and after.
///
/// # Errors
/// Those of `work`, and of a meter.
pub fn beside_limits(
    meter: &Meter,
    work: impl FnOnce() -> Result<f64, contender::Error>,
    least: impl Fn(&Peaks) -> f64,
    of: impl Fn(f64) -> f64,
) -> Result<Measured, contender::Error> {
    let before = least(&meter.glance()?);
    let seconds = work()?;
    let after = least(&meter.glance()?);
    Ok(Measured { value: of(seconds), limit: of((before + after) / 2.0) })
}

/// The measured limit of arithmetic, which every CPU has.
pub fn flops_limit(peaks: &Peaks, compute: Compute) -> f64 {
    peaks.flops_per_s(compute).unwrap_or(f64::NAN)
}

/// Seconds of so many operations and bytes at the limits, whichever takes longer.
pub fn least_seconds(peaks: &Peaks, compute: Compute, flops: f64, bytes: f64) -> f64 {
    (flops / flops_limit(peaks, compute)).max(bytes / peaks.memory_bytes_per_s)
}
