//! Rows of one multiply-add chain per output, in f32: portable, AVX2, AVX-512.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};

use super::{Compute, Gemm, GemmDynamic, GemmStatic, Rhs, driver, tile};
use crate::cpu_row::needs;
use crate::packed::PanelKind;
use crate::{Arithmetic, Operator, Refusal, Result, Row, Work};

pub(crate) const PORTABLE: Arithmetic = Arithmetic::named("gemm.mul-add-chain");
#[cfg(target_arch = "x86_64")]
pub(crate) const FUSED: Arithmetic = Arithmetic::named("gemm.fma-chain");

/// The row of one multiply-add chain per output at a level, which reaches a share of its peak.
macro_rules! chain {
    ($name:literal, $arithmetic:expr, $level:expr, $share:literal, $tiles:expr) => {
        Row {
            name: $name,
            device: DeviceKind::CPU,
            arithmetic: $arithmetic,
            admits: |fixed, hardware| admit(fixed, hardware, $level).map(drop),
            cost: |fixed, call, hardware| cost(fixed, call, hardware, f32_rate(hardware, $level) * $share),
            workspace: |fixed, call, hardware| driver::workspace($tiles, fixed, call, hardware),
            // SAFETY: the row admits machines with the level only.
            run: |launch, fixed, call, operands| unsafe { driver::run($tiles, launch, fixed, call, operands) },
        }
    };
}

/// Best first.
pub(super) fn rows() -> Vec<Row<Gemm>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        chain!("gemm.cpu.avx512", FUSED, SimdLevel::Avx512, 0.85, &tile::AVX512),
        #[cfg(target_arch = "x86_64")]
        chain!("gemm.cpu.avx2", FUSED, SimdLevel::Avx2, 0.8, &tile::AVX2),
        chain!("gemm.cpu.portable", PORTABLE, SimdLevel::Portable, 0.4, &tile::PORTABLE),
    ]
}

/// Refuses machines below a level, and right operands that no panel holds. Says which panels are multiplied.
pub(crate) fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<PanelKind, Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind() {
        Some(PanelKind::I8) => Err("multiplies no int8".into()),
        Some(_) if fixed.compute == Compute::Int8 => Err("does not compute in int8".into()),
        Some(kind) => Ok(kind),
        None => Err("multiplies panels and right operands of f32, f16 and bf16 only".into()),
    }
}

/// f32 operations per second and thread that a level reaches on hardware whose best level is another.
pub(crate) fn f32_rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let lanes = |level| match level {
        SimdLevel::Portable => 4.0,
        SimdLevel::Avx2 => 16.0,
        SimdLevel::Avx512 | SimdLevel::Avx512Bf16 => 32.0,
    };
    hardware.rates.f32_flops_per_s * lanes(level) / lanes(hardware.simd)
}

/// Seconds at `rate` operations per second and thread, or at the memory's rate where that takes longer.
pub(super) fn cost(fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware, rate: f64) -> f64 {
    let mut work = Gemm::work(fixed, call);
    if let Rhs::Strided(_) = fixed.b {
        // Packing a value of B costs about as much as 32 operations with it.
        work.flops += 32.0 * (call.batch * fixed.n * fixed.k) as f64;
    }
    seconds(work, hardware, rate)
}

/// [`cost`] of some work.
pub(crate) fn seconds(work: Work, hardware: &Hardware, rate: f64) -> f64 {
    let compute = work.flops / (rate * hardware.threads as f64);
    let rates = &hardware.rates;
    // The sum, not the larger: of two rows that memory bounds, the one that computes faster still comes first.
    rates.launch_s + (work.bytes / rates.read_bytes_per_s).max(compute) + 0.01 * compute
}
