//! Rows of one multiply-add chain per output, in f32: portable, AVX2, AVX-512.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};

use super::{Gemm, GemmDynamic, GemmStatic, Rhs, driver, tile};
use crate::cpu_row::needs;
use crate::packed::PanelKind;
use crate::{Arithmetic, Operator, Refusal, Result, Row, Work};

pub(crate) const PORTABLE: Arithmetic = Arithmetic::named("gemm.mul-add-chain");
pub(crate) const FUSED: Arithmetic = Arithmetic::named("gemm.fma-chain");

/// Best first.
pub(super) const ROWS: [Row<Gemm>; 3] = [
    Row {
        name: "gemm.cpu.avx512",
        device: DeviceKind::CPU,
        arithmetic: FUSED,
        admits: |fixed, hardware| admit(fixed, hardware, SimdLevel::Avx512).map(drop),
        cost: |fixed, call, hardware| cost(fixed, call, hardware, f32_rate(hardware, SimdLevel::Avx512) * 0.85),
        workspace: |fixed, call, hardware| driver::workspace(&tile::AVX512, fixed, call, hardware),
        // SAFETY: the row admits machines with the level only.
        run: |launch, fixed, call, operands| unsafe { driver::run(&tile::AVX512, launch, fixed, call, operands) },
    },
    Row {
        name: "gemm.cpu.avx2",
        device: DeviceKind::CPU,
        arithmetic: FUSED,
        admits: |fixed, hardware| admit(fixed, hardware, SimdLevel::Avx2).map(drop),
        cost: |fixed, call, hardware| cost(fixed, call, hardware, f32_rate(hardware, SimdLevel::Avx2) * 0.8),
        workspace: |fixed, call, hardware| driver::workspace(&tile::AVX2, fixed, call, hardware),
        // SAFETY: the row admits machines with the level only.
        run: |launch, fixed, call, operands| unsafe { driver::run(&tile::AVX2, launch, fixed, call, operands) },
    },
    Row {
        name: "gemm.cpu.portable",
        device: DeviceKind::CPU,
        arithmetic: PORTABLE,
        admits: |fixed, hardware| admit(fixed, hardware, SimdLevel::Portable).map(drop),
        cost: |fixed, call, hardware| cost(fixed, call, hardware, f32_rate(hardware, SimdLevel::Portable) * 0.4),
        workspace: |fixed, call, hardware| driver::workspace(&tile::PORTABLE, fixed, call, hardware),
        // SAFETY: every machine has the portable level.
        run: |launch, fixed, call, operands| unsafe { driver::run(&tile::PORTABLE, launch, fixed, call, operands) },
    },
];

/// Refuses machines below a level, and right operands that no panel holds. Says which panels are multiplied.
pub(crate) fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<PanelKind, Refusal> {
    needs(level, hardware)?;
    fixed.panel_kind().ok_or_else(|| "multiplies panels and right operands of f32, f16 and bf16 only".into())
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
