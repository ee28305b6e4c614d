//! Attention on the CPU: one body over the products' ways.

use sinew_memory::{DeviceKind, Hardware, SimdLevel};
use sinew_tensor::DType;

use super::plan::Plan;
use super::products::{Float, Products};
use super::task::run_body;
use super::{Attention, AttentionDynamic, AttentionStatic};
#[cfg(target_arch = "x86_64")]
use crate::cpu::leveled::needs;
use crate::rates::predicted;
use crate::simd::{self, Simd};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// The portable row, and the body at AVX2 and AVX-512.
pub(super) fn rows() -> Vec<Row<Attention>> {
    let row = |name, arithmetic| Row {
        name,
        device: DeviceKind::CPU,
        arithmetic,
        admits: |_, _| Ok(()),
        cost: |fixed, call, hardware| cost(SimdLevel::Portable, fixed, call, hardware),
        workspace: workspace::<Float<simd::Portable>>,
        run: run_portable,
    };
    let portable = row("attention.cpu.portable", Arithmetic::named("attention.tiles.mul-add"));
    #[cfg(not(target_arch = "x86_64"))]
    return vec![portable];
    #[cfg(target_arch = "x86_64")]
    {
        let fused = Arithmetic::named("attention.tiles.fma16");
        let avx2 = Row {
            admits: |_, hardware| needs(SimdLevel::Avx2, hardware),
            cost: |fixed, call, hardware| cost(SimdLevel::Avx2, fixed, call, hardware),
            workspace: workspace::<Float<simd::Avx2>>,
            run: run_avx2,
            ..row("attention.cpu.avx2", fused)
        };
        let avx512 = Row {
            admits: |_, hardware| needs(SimdLevel::Avx512, hardware),
            cost: |fixed, call, hardware| cost(SimdLevel::Avx512, fixed, call, hardware),
            workspace: workspace::<Float<simd::Avx512>>,
            run: run_avx512,
            ..row("attention.cpu.avx512", fused)
        };
        vec![portable, avx2, avx512]
    }
}

/// Predicted seconds of the row of a level. The shares of its peak that rows reach are rounded from `attention-rates` of
/// `benches/`, as are the query rows whose products take as long as it takes to fetch and pack their keys and values:
/// that is most of the time of decoding.
pub(super) fn cost(level: SimdLevel, fixed: &AttentionStatic, call: &AttentionDynamic, hardware: &Hardware) -> f64 {
    let (share, packing) = match level {
        SimdLevel::Portable => (0.4, 4.0),
        SimdLevel::Avx2 => (0.5, 8.0),
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni => (0.7, 16.0),
        SimdLevel::Avx512Bf16 => (0.6, 16.0),
    };
    let peak = match level {
        SimdLevel::Avx512Bf16 => predicted::bf16_rate(hardware),
        _ => predicted::f32_rate(hardware, level),
    };
    let packing = if fixed.kv == DType::F32 { 2.0 * packing } else { packing };
    let rows = call.max_query.max(1) as f64 * fixed.group() as f64;
    predicted::by_rate(Attention::work(fixed, call), hardware, peak * share * rows / (rows + packing))
}

pub(super) fn workspace<P: Products>(fixed: &AttentionStatic, call: &AttentionDynamic, hardware: &Hardware) -> usize {
    Plan::new::<P>(fixed, call, hardware.threads).bytes(hardware.threads)
}

macro_rules! run_at {
    ($($name:ident, $simd:ident;)*) => {$(
        unsafe fn $name(
            launch: &Launch<'_>,
            fixed: &AttentionStatic,
            call: &AttentionDynamic,
            operands: Operands<'_>,
        ) -> Result<()> {
            // SAFETY: the operands were checked, the row was admitted, and bodies are made by `run_body` only.
            unsafe {
                run_body::<Float<simd::$simd>>(launch, fixed, call, operands, &|team, tasks, body| {
                    simd::launch(simd::$simd::LEVEL, team, tasks, body);
                })
            }
        }
    )*};
}
run_at! { run_portable, Portable; }
#[cfg(target_arch = "x86_64")]
run_at! { run_avx2, Avx2; run_avx512, Avx512; }
