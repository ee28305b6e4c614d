//! What rows predict of themselves: estimates, of which only the order decides.

use sinew_memory::{Hardware, SimdLevel};

use super::cores;
use crate::Work;

/// f32 operations per second and thread that a level reaches on hardware whose best level is another.
pub(crate) fn f32_rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    hardware.rates.f32_flops_per_s * level.f32_lanes() as f64 / hardware.simd.f32_lanes() as f64
}

/// Operations per second and thread of bf16 dot products, on hardware that has them.
pub(crate) fn bf16_rate(hardware: &Hardware) -> f64 {
    hardware.rates.f32_flops_per_s * cores::known().bf16_ratio
}

/// Seconds of a row that computes at `rate` operations per second and thread, or at the memory's rate where that takes
/// longer.
pub(crate) fn by_rate(work: Work, hardware: &Hardware, rate: f64) -> f64 {
    let compute = work.flops / (rate * hardware.threads as f64);
    let rates = &hardware.rates;
    // The sum, not the larger: of two rows that memory bounds, the one that computes faster still comes first.
    rates.launch_s + (work.bytes / rates.read_bytes_per_s).max(compute) + 0.01 * compute
}

/// Seconds of a row that reads or computes, whichever is longer, at shares of the machine's rates.
pub(crate) fn by_shares(work: Work, hardware: &Hardware, reads: f64, computes: f64) -> f64 {
    let rates = &hardware.rates;
    let reading = work.bytes / (rates.read_bytes_per_s * reads);
    let computing = work.flops / (rates.f32_flops_per_s * hardware.threads as f64 * computes);
    rates.launch_s + reading.max(computing)
}
