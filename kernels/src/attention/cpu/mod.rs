//! Attention on the CPU: kernels, their costs, and how a call runs.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod plan;
mod products;
mod tile;

use sinew_memory::{DeviceKind, Hardware, SimdLevel, Team};
use sinew_tensor::DType;

#[cfg(target_arch = "x86_64")]
use self::bf16::Dot;
use self::plan::{AttentionCall, AttentionPlan, Packing, TaskKind};
use self::products::{Float, Products};
#[cfg(target_arch = "x86_64")]
use super::Compute;
use super::{Attention, AttentionDynamic, AttentionStatic};
#[cfg(target_arch = "x86_64")]
use crate::cpu::leveled::needs;
use crate::rates::predicted;
use crate::simd::{self, Simd};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// The kernels of f32 at each SIMD level, and that of AVX512-BF16.
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
        // `vdpbf16ps` counts subnormals as zeros.
        let arithmetic = Arithmetic { name: "attention.tiles.dot-bf16", foreign: false, flushes_subnormals: true };
        let avx512bf16 = Row {
            admits: |fixed: &AttentionStatic, hardware| {
                needs(SimdLevel::Avx512Bf16, hardware)?;
                if fixed.compute != Compute::Bf16 {
                    return Err("computes in bf16 only".into());
                }
                if fixed.kv == DType::BF16 || fixed.has_scales() {
                    return Ok(());
                }
                Err(format!("keys are {}, not bf16, int8 or fp8", fixed.kv).into())
            },
            cost: |fixed, call, hardware| cost(SimdLevel::Avx512Bf16, fixed, call, hardware),
            workspace: workspace::<Dot>,
            run: run_avx512bf16,
            ..row("attention.cpu.avx512bf16", arithmetic)
        };
        vec![portable, avx2, avx512, avx512bf16]
    }
}

/// Predicted seconds of the row of a level. The shares of its peak that rows reach are rounded from `attention-rates` of
/// `benches/`, as are the query rows whose products take as long as it takes to fetch and pack their keys and values:
/// that is most of the time of decoding.
fn cost(level: SimdLevel, fixed: &AttentionStatic, call: &AttentionDynamic, hardware: &Hardware) -> f64 {
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

fn workspace<P: Products>(fixed: &AttentionStatic, call: &AttentionDynamic, hardware: &Hardware) -> usize {
    AttentionPlan::new(P::PACKING, fixed, call, hardware.threads).bytes(hardware.threads)
}

/// Reads the contents of a call, and runs its tasks with `launch_tasks`.
///
/// # Safety
/// The operands have passed `check`; `launch_tasks` runs [`tile::run_task`] with the arithmetic of `packing` and its
/// instructions enabled.
unsafe fn run(
    packing: Packing,
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
    launch_tasks: fn(&Team, usize, &AttentionCall<'_>),
) -> Result<()> {
    let team = launch.team()?;
    let plan = AttentionPlan::new(packing, fixed, call, team.threads());
    let workspace = plan.workspace(launch, team.threads())?;
    // SAFETY: passed on; the workspace has room for the sequences.
    let tables = unsafe { plan::read(fixed, call, &plan, operands, workspace.sequences)? };
    if call.tokens == 0 {
        return Ok(());
    }
    let mut body = AttentionCall::new(fixed, plan, workspace, call.sequences, tables, operands)?;
    // SAFETY: `read` has written the sequences, and one more.
    let units = unsafe { body.units() };
    match plan.split {
        None => launch_tasks(team, units, &body),
        Some(groups) => {
            body.kind = TaskKind::Group;
            launch_tasks(team, units * groups, &body);
            body.kind = TaskKind::Merge;
            launch_tasks(team, units, &body);
        }
    }
    Ok(())
}

macro_rules! run_at {
    ($($name:ident, $simd:ident;)*) => {$(
        unsafe fn $name(
            launch: &Launch<'_>,
            fixed: &AttentionStatic,
            call: &AttentionDynamic,
            operands: Operands<'_>,
        ) -> Result<()> {
            // SAFETY: the operands were checked, the kernel was admitted, and only `run` makes calls.
            unsafe {
                run(<Float<simd::$simd>>::PACKING, launch, fixed, call, operands, |team, tasks, call| {
                    simd::launch(simd::$simd::LEVEL, team, tasks, call);
                })
            }
        }
    )*};
}
run_at! { run_portable, Portable; }
#[cfg(target_arch = "x86_64")]
run_at! { run_avx2, Avx2; run_avx512, Avx512; }

#[cfg(target_arch = "x86_64")]
unsafe fn run_avx512bf16(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn task(call: &AttentionCall<'_>, task: usize, worker: usize) {
        // SAFETY: passed on from the caller; the call's plan is of this packing.
        unsafe { tile::run_task::<Dot>(call, task, worker) }
    }
    // SAFETY: the operands were checked, and the kernel is admitted only where the instructions are.
    unsafe {
        run(Dot::PACKING, launch, fixed, call, operands, |team, tasks, call| {
            team.run(tasks, |number, worker| task(call, number, worker));
        })
    }
}
