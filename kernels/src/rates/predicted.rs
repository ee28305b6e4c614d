//! What rows predict of themselves: estimates, of which only the order decides.

use sinew_memory::{Hardware, SimdLevel};

use crate::Work;

/// f32 operations per second and thread that a level reaches on hardware whose best level is another.
pub(crate) fn f32_rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    hardware.rates.f32_flops_per_s * level.f32_lanes() as f64 / hardware.simd.f32_lanes() as f64
}

/// Operations per second and thread of bf16 dot products, on hardware that has them.
pub(crate) fn bf16_rate(hardware: &Hardware) -> f64 {
    hardware.rates.f32_flops_per_s * bf16_ratio()
}

/// How many times as many operations bf16 dot products do as f32 multiply-adds, in registers: 2, 1 or 0.5.
///
/// It is 2 on AMD's Zen 4 and 5, but 0.5 on Intel's Sapphire and Emerald Rapids, where widening to f32 is faster.
/// Measured once, in some 50 µs, and rounded to a power of two, so that noise cannot turn the choice.
#[cfg(target_arch = "x86_64")]
fn bf16_ratio() -> f64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    use super::loops::x86;

    /// A few microseconds.
    const ROUNDS: usize = 400;
    static RATIO: OnceLock<f64> = OnceLock::new();
    *RATIO.get_or_init(|| {
        if SimdLevel::detected() < SimdLevel::Avx512Bf16 {
            return 1.0;
        }
        let seconds = |rounds: unsafe fn(usize)| {
            let once = || {
                let start = Instant::now();
                // SAFETY: the level was detected just above.
                unsafe { rounds(ROUNDS) };
                start.elapsed().as_secs_f64()
            };
            // The least of a few: the first runs raise the clock, and any may be interrupted.
            (0..8).map(|_| once()).fold(f64::INFINITY, f64::min)
        };
        let ratio = 2.0 * seconds(x86::multiply_adds) / seconds(x86::bf16_dots);
        if ratio > 1.4 {
            2.0
        } else if ratio > 0.7 {
            1.0
        } else {
            0.5
        }
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_ratio() -> f64 {
    1.0
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
