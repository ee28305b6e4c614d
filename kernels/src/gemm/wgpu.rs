//! Products in WGSL: tiles in shared memory, and two ways for few rows, of which one is by subgroups.
//!
//! All have one arithmetic, so that a weight is decoded with as it was prefilled with: an f32 chain over
//! each [`CHAIN`] steps of K, begun with zero, and the chains' sums added in order.

use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::{A, B, BIAS, Compute, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, takes_rows};
use crate::wgpu::{Call, Part, aligned, arithmetic, least_subgroup, needs_subgroups};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

const CHAINED: Arithmetic = arithmetic("gemm.wgpu");
/// Steps of a chain: long enough that a thread reads its part of a weight in whole cache lines, short enough that many
/// threads share a row of the weight.
const CHAIN: usize = 32;
/// Rows and outputs of a tile.
const TILE: usize = 64;
/// Outputs of a workgroup, where rows are few, and the most rows.
const OUTPUTS: usize = 8;
const FEW: usize = 8;

/// Threads of a workgroup whose subgroups share outputs, four to one.
const SUBGROUPS: usize = 64;

/// Best first.
pub(super) const ROWS: [Row<Gemm>; 3] = [
    Row {
        name: "gemm.wgpu.tiled",
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(fixed),
        cost: |fixed, call, hardware| {
            let tiles = call.batch * call.m.div_ceil(TILE) * fixed.n.div_ceil(TILE);
            let flops = 2.0 * (tiles * TILE * TILE) as f64 * fixed.k as f64;
            cost(hardware, flops / 0.3, Gemm::work(fixed, call).bytes / 0.5, tiles)
        },
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(Way::Tiled, launch, fixed, call, operands),
    },
    Row {
        name: "gemm.wgpu.gemv",
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(fixed),
        cost: |fixed, call, hardware| few_cost(fixed, call, hardware, 0.6, 0.05),
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(Way::Gemv, launch, fixed, call, operands),
    },
    Row {
        name: "gemm.wgpu.gemv.subgroup",
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, hardware| {
            needs_subgroups(hardware)?;
            takes_rows(fixed)
        },
        // Weights are read side by side; what a row adds is read and exchanged anew for every four outputs.
        cost: |fixed, call, hardware| few_cost(fixed, call, hardware, 0.8, 0.04),
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(Way::Subgroups, launch, fixed, call, operands),
    },
];

/// Predicted seconds for few rows, at a share of the rates at which weights are read along K and products computed.
fn few_cost(fixed: &GemmStatic, call: &GemmDynamic, hardware: &Hardware, reads: f64, computes: f64) -> f64 {
    let work = Gemm::work(fixed, call);
    let passes = call.m.div_ceil(FEW);
    // The right operand is read for every few rows anew.
    let reads = if matches!(fixed.b, Rhs::Packed(_)) { reads } else { 0.3 };
    let groups = call.batch * passes * fixed.n.div_ceil(OUTPUTS);
    cost(hardware, work.flops / computes, work.bytes * passes as f64 / reads, groups)
}

/// Predicted seconds, where `groups` workgroups share the work.
fn cost(hardware: &Hardware, flops: f64, bytes: f64, groups: usize) -> f64 {
    let busy = (groups as f64 / hardware.threads as f64).clamp(1e-3, 1.0);
    let rates = &hardware.rates;
    let computing = flops / (rates.f32_flops_per_s * hardware.threads as f64);
    rates.launch_s + (bytes / rates.read_bytes_per_s).max(computing) / busy
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Tiled,
    Gemv,
    Subgroups,
}

/// Steps between elements of an operand `[batch, rows, columns]`.
fn strides(view: &View<'_>) -> [usize; 3] {
    [view.strides()[0], view.strides()[1], view.strides()[2]]
}

fn run(way: Way, launch: &Launch<'_>, fixed: &GemmStatic, call: &GemmDynamic, operands: Operands<'_>) -> Result<()> {
    let columns = fixed.columns();
    if call.batch == 0 || call.m == 0 || columns == 0 {
        return Ok(());
    }
    let b = operands.input(Gemm::NAME, B, "B")?;
    let halves = if fixed.epilogue.gated { 2 } else { 1 };
    let right = match fixed.b {
        Rhs::Packed(format) => {
            let strides = [0, halves * fixed.k, fixed.k, 1];
            Right { dtype: format.dtype(), strides, quads: quads(b, format.dtype()) && fixed.k.is_multiple_of(4) }
        }
        Rhs::Strided(dtype) => {
            let [batch, step, column] = strides(b);
            let quads = step == 1 && quads(b, dtype) && [batch, column].iter().all(|s| s.is_multiple_of(4));
            Right { dtype, strides: [batch, column, columns * column, step], quads }
        }
    };
    dispatch(way, launch, fixed, call, operands, &right)
}

/// The right operand as kernels see it.
struct Right {
    dtype: DType,
    /// Of products, columns, from a column's gate to its up, and along K.
    strides: [usize; 4],
    /// Whether it can be read in vectors of four words along K.
    quads: bool,
}

/// Whether a view begins where four of its elements of `dtype` do.
fn quads(view: &View<'_>, dtype: DType) -> bool {
    let begins = view.buffer().span().offset + view.layout().offset() * view.dtype().size();
    begins.is_multiple_of(4 * dtype.size())
}

fn dispatch(
    way: Way,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    operands: Operands<'_>,
    right: &Right,
) -> Result<()> {
    let epilogue = &fixed.epilogue;
    let (a, b) = (operands.input(Gemm::NAME, A, "A")?, operands.input(Gemm::NAME, B, "B")?);
    let d = operands.output(Gemm::NAME, D, "D")?.view();
    let (bias, residual) = (operands.optional(BIAS), operands.optional(RESIDUAL));
    let gated = usize::from(epilogue.gated);
    let (rounds, low) = (|dtype| dtype != DType::BF16, fixed.compute == Compute::Bf16);
    let [a_batch, a_row, a_step] = strides(a);
    let [b_batch, b_column, b_half, b_step] = right.strides;
    let mut kernel = match way {
        Way::Tiled => {
            const BODY: &str = concat!(
                include_str!("../wgpu/math.wgsl"),
                include_str!("../activation/wgpu_function.wgsl"),
                include_str!("wgpu_operands.wgsl"),
                include_str!("wgpu_tiled.wgsl")
            );
            let mut kernel = Call::new(launch, "gemm.wgpu.tiled", BODY)?;
            kernel.option("A_BY_ROWS", u32::from(a_row == 1 && a_step != 1))?;
            kernel.option("B_BY_OUTPUTS", u32::from(b_column == 1 && b_step != 1 && gated == 0))?;
            kernel
        }
        Way::Gemv => {
            const BODY: &str = concat!(
                include_str!("../wgpu/math.wgsl"),
                include_str!("../activation/wgpu_function.wgsl"),
                include_str!("wgpu_operands.wgsl"),
                include_str!("wgpu_gemv.wgsl")
            );
            let rows = gemv_rows(call.m);
            let mut kernel = Call::new(launch, "gemm.wgpu.gemv", BODY)?;
            kernel.option("ROWS", rows as u32)?;
            // As many threads as share the staged rows: 16 KiB of shared memory hold those and the sums.
            kernel.option("CHAINS", (64 / rows).min(32) as u32)?;
            kernel
        }
        Way::Subgroups => {
            const BODY: &str = concat!(
                include_str!("../wgpu/math.wgsl"),
                include_str!("../activation/wgpu_function.wgsl"),
                include_str!("wgpu_operands.wgsl"),
                include_str!("wgpu_gemv_subgroup.wgsl")
            );
            let mut kernel = Call::new(launch, "gemm.wgpu.gemv.subgroup", BODY)?;
            kernel.option("ROWS", gemv_rows(call.m) as u32)?;
            kernel.option("THREADS", SUBGROUPS as u32)?;
            kernel.option("OUTPUTS", outputs_of(way, launch) as u32)?;
            kernel
        }
    };
    kernel.option("CHAIN", CHAIN as u32)?;
    kernel.option("GATED", gated as u32)?;
    kernel.option("HAS_ACTIVATION", u32::from(epilogue.activation.is_some()))?;
    kernel.option("ACTIVATION", epilogue.activation.map_or(0, |activation| activation as u32))?;
    kernel.option("IN_PLACE", u32::from(epilogue.residual == Some(Residual::Output)))?;
    kernel.option("ROUND_A", u32::from(low && rounds(fixed.a)))?;
    kernel.option("ROUND_B", u32::from(low && rounds(right.dtype) && matches!(fixed.b, Rhs::Strided(_))))?;

    let left = Part::read(a);
    kernel.part("a", if a_step == 1 && aligned(a, 4) { left.quads() } else { left })?;
    let part = Part::read(b).of(right.dtype);
    kernel.part("b", if right.quads { part.quads() } else { part })?;
    kernel.write("d", d)?;
    kernel.optional("bias", bias)?;
    kernel.optional("residual", residual)?;

    let [d_batch, d_row, d_step] = strides(d);
    let [residual_batch, residual_row, residual_step] = residual.map_or([0; 3], strides);
    let batch = [("a", a_batch), ("b", b_batch), ("d", d_batch), ("residual", residual_batch)];
    kernel.dimension(("batch", call.batch), None, &batch)?;
    kernel.dimension(("rows", call.m), None, &[("a", a_row), ("d", d_row), ("residual", residual_row)])?;
    let columns = [("b", b_column), ("d", d_step), ("residual", residual_step)];
    kernel.dimension(("count", fixed.columns()), Some("first"), &columns)?;
    for (name, value) in ["a_batch", "a_row", "a_step"].into_iter().zip([a_batch, a_row, a_step]) {
        kernel.param(name, value)?;
    }
    let names = ["b_batch", "b_column", "b_half", "b_step"];
    for (name, value) in names.into_iter().zip([b_batch, b_column, b_half, b_step]) {
        kernel.param(name, value)?;
    }
    for (name, value) in ["d_batch", "d_row", "d_step"].into_iter().zip([d_batch, d_row, d_step]) {
        kernel.param(name, value)?;
    }
    let names = ["residual_batch", "residual_row", "residual_step"];
    for (name, value) in names.into_iter().zip([residual_batch, residual_row, residual_step]) {
        kernel.param(name, value)?;
    }
    kernel.param("bias_step", bias.map_or(0, |bias| bias.strides()[0]))?;
    kernel.param("columns", fixed.columns())?;
    kernel.param("k", fixed.k)?;
    kernel.param_f32("alpha", epilogue.alpha)?;
    kernel.param_f32("beta", epilogue.beta)?;
    kernel.dispatch_in_parts(|p| {
        let (rows, outputs) = (p("rows"), p("count") << gated);
        p("batch")
            * match way {
                Way::Tiled => rows.div_ceil(TILE) * outputs.div_ceil(TILE),
                Way::Gemv | Way::Subgroups => {
                    rows.div_ceil(gemv_rows(call.m)) * outputs.div_ceil(outputs_of(way, launch))
                }
            }
    })
}

/// Outputs of a workgroup where rows are few: by subgroups as many as keep the smallest of them busy.
fn outputs_of(way: Way, launch: &Launch<'_>) -> usize {
    let offers = launch.stream().device().hardware().accelerator.as_ref();
    match offers.and_then(least_subgroup) {
        Some(least) if way == Way::Subgroups => 4 * (SUBGROUPS / least).max(1),
        _ => OUTPUTS,
    }
}

/// Rows that a workgroup takes where they are few.
fn gemv_rows(m: usize) -> usize {
    m.next_power_of_two().clamp(1, FEW)
}
