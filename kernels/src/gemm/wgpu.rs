//! Products in WGSL: tiles in shared memory, and two ways for few rows, of which one is by subgroups.
//!
//! All have one arithmetic, so that a weight is decoded with as it was prefilled with: an f32 chain over
//! each [`CHAIN`] steps of K, begun with zero, and the chains' sums added in order.

use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::{A, B, BIAS, Compute, D, Gemm, GemmDynamic, GemmStatic, RESIDUAL, Residual, Rhs, takes_rows};
use crate::packed::Format;
use crate::wgpu::{Call, Part, aligned, arithmetic, least_subgroup, needs_subgroups};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

pub(crate) const CHAINED: Arithmetic = arithmetic("gemm.wgpu");
/// Steps of a chain: long enough that a thread reads its part of a weight in whole cache lines, short enough that many
/// threads share a row of the weight.
const CHAIN: usize = 32;
/// Rows and outputs of a tile.
pub(crate) const TILE: usize = 64;
/// Outputs of a workgroup, where rows are few, and the most rows.
pub(crate) const OUTPUTS: usize = 8;
const FEW: usize = 8;

/// Threads of a workgroup whose subgroups share outputs, four to one.
const SUBGROUPS: usize = 64;

static TILED: Kernel = kernel!("gemm.wgpu.tiled", Way::Tiled, "wgpu_place.wgsl", "wgpu_tiled.wgsl");
static GEMV: Kernel = kernel!("gemm.wgpu.gemv", Way::Gemv, "wgpu_place.wgsl", "wgpu_gemv.wgsl");
static GEMV_SUBGROUP: Kernel =
    kernel!("gemm.wgpu.gemv.subgroup", Way::Subgroups, "wgpu_place.wgsl", "wgpu_gemv_subgroup.wgsl");

/// Best first.
pub(super) const ROWS: [Row<Gemm>; 3] = [
    Row {
        name: TILED.name,
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(fixed),
        cost: |fixed, call, hardware| {
            let tiles = call.batch * call.m.div_ceil(TILE) * fixed.n.div_ceil(TILE);
            let flops = 2.0 * (tiles * TILE * TILE) as f64 * fixed.k as f64;
            cost(hardware, flops / 0.3, Gemm::work(fixed, call).bytes / 0.5, tiles)
        },
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(&TILED, launch, fixed, call, operands),
    },
    Row {
        name: GEMV.name,
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(fixed),
        cost: |fixed, call, hardware| few_cost(fixed, call, hardware, 0.6, 0.05),
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(&GEMV, launch, fixed, call, operands),
    },
    Row {
        name: GEMV_SUBGROUP.name,
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, hardware| {
            needs_subgroups(hardware)?;
            takes_rows(fixed)
        },
        // Weights are read side by side; what a row adds is read and exchanged anew for every four outputs.
        cost: |fixed, call, hardware| few_cost(fixed, call, hardware, 0.8, 0.04),
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(&GEMV_SUBGROUP, launch, fixed, call, operands),
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
pub(crate) fn cost(hardware: &Hardware, flops: f64, bytes: f64, groups: usize) -> f64 {
    let busy = (groups as f64 / hardware.threads as f64).clamp(1e-3, 1.0);
    let rates = &hardware.rates;
    let computing = flops / (rates.f32_flops_per_s * hardware.threads as f64);
    rates.launch_s + (bytes / rates.read_bytes_per_s).max(computing) / busy
}

/// How a kernel multiplies.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// Tiles in shared memory.
    Tiled,
    /// Few rows.
    Gemv,
    /// Few rows, by subgroups.
    Subgroups,
}

/// A kernel of one of the ways.
pub(crate) struct Kernel {
    pub name: &'static str,
    pub way: Way,
    pub text: &'static str,
}

/// A kernel of a name, a way and that way's text, to which another says where a workgroup's rows are. Both are told by
/// their paths from the folder that names them, which is beside this one.
macro_rules! kernel {
    ($name:literal, $way:expr, $place:literal, $text:literal) => {
        Kernel {
            name: $name,
            way: $way,
            text: concat!(
                include_str!("../wgpu/math.wgsl"),
                include_str!("../activation/wgpu_function.wgsl"),
                include_str!("../gemm/wgpu_operands.wgsl"),
                include_str!($place),
                include_str!($text)
            ),
        }
    };
}
pub(crate) use kernel;

/// Steps between elements of an operand `[batch, rows, columns]`.
fn strides(view: &View<'_>) -> [usize; 3] {
    [view.strides()[0], view.strides()[1], view.strides()[2]]
}

fn run(
    kernel: &Kernel,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    call: &GemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let columns = fixed.columns();
    let b = operands.input(Gemm::NAME, B, "B")?;
    let right = match fixed.b {
        Rhs::Packed(format) => Right::packed(b, format, fixed, 0)?,
        Rhs::Strided(dtype) => {
            let [batch, step, column] = strides(b);
            let quads = step == 1 && quads(b, dtype) && [batch, column].iter().all(|s| s.is_multiple_of(4));
            Right { dtype, strides: [batch, column, columns * column, step], quads }
        }
    };
    let product = Product {
        a: operands.input(Gemm::NAME, A, "A")?,
        b,
        right,
        d: operands.output(Gemm::NAME, D, "D")?.view(),
        bias: operands.optional(BIAS),
        residual: operands.optional(RESIDUAL),
        offsets: None,
        batch: call.batch,
    };
    dispatch(kernel, launch, fixed, &product)
}

/// The right operand as kernels see it.
pub(crate) struct Right {
    dtype: DType,
    /// Of products, columns, from a column's gate to its up, and along K.
    strides: [usize; 4],
    /// Whether it can be read in vectors of four words along K.
    quads: bool,
}

impl Right {
    /// Packed weights, so many elements apart.
    ///
    /// # Errors
    /// A format of panels.
    pub(crate) fn packed(b: &View<'_>, format: &Format, fixed: &GemmStatic, apart: usize) -> Result<Self> {
        let (dtype, halves) = (format.row_dtype()?, if fixed.epilogue.gated { 2 } else { 1 });
        let strides = [apart, halves * fixed.k, fixed.k, 1];
        Ok(Self { dtype, strides, quads: quads(b, dtype) && fixed.k.is_multiple_of(4) })
    }
}

/// What is multiplied.
pub(crate) struct Product<'v, 'a> {
    /// `[batch, rows, K]`, or where rows fall into groups `[1, rows, K]`.
    pub a: &'v View<'a>,
    pub b: &'v View<'a>,
    pub right: Right,
    /// As `a`, with columns.
    pub d: &'v View<'a>,
    /// `[N]`, or where rows fall into groups `[batch, N]`.
    pub bias: Option<&'v View<'a>>,
    pub residual: Option<&'v View<'a>>,
    /// Where each group's rows begin, i32 `[batch + 1]`, where rows fall into groups.
    pub offsets: Option<&'v View<'a>>,
    /// Products, or groups.
    pub batch: usize,
}

/// Whether a view begins where four of its elements of `dtype` do.
fn quads(view: &View<'_>, dtype: DType) -> bool {
    let begins = view.buffer().span().offset + view.layout().offset() * view.dtype().size();
    begins.is_multiple_of(4 * dtype.size())
}

/// Enqueues a product.
pub(crate) fn dispatch(
    kernel: &Kernel,
    launch: &Launch<'_>,
    fixed: &GemmStatic,
    product: &Product<'_, '_>,
) -> Result<()> {
    let epilogue = &fixed.epilogue;
    let Product { a, b, ref right, d, bias, residual, offsets, batch } = *product;
    let m = a.shape()[1];
    if batch == 0 || m == 0 || fixed.columns() == 0 {
        return Ok(());
    }
    let gated = usize::from(epilogue.gated);
    let (rounds, low) = (|dtype| dtype != DType::BF16, fixed.compute == Compute::Bf16);
    let [mut a_batch, a_row, a_step] = strides(a);
    let [mut d_batch, d_row, d_step] = strides(d);
    let [b_batch, b_column, b_half, b_step] = right.strides;
    let few = match offsets {
        None => gemv_rows(m),
        Some(_) => {
            // Rows are counted through all groups.
            (a_batch, d_batch) = (0, 0);
            gemv_rows(m.div_ceil(batch))
        }
    };
    let mut call = Call::new(launch, kernel.name, kernel.text)?;
    match kernel.way {
        Way::Tiled => {
            call.option("A_BY_ROWS", u32::from(a_row == 1 && a_step != 1))?;
            call.option("B_BY_OUTPUTS", u32::from(b_column == 1 && b_step != 1 && gated == 0))?;
        }
        Way::Gemv => {
            call.option("ROWS", few as u32)?;
            // As many threads as share the staged rows: 16 KiB of shared memory hold those and the sums.
            call.option("CHAINS", (64 / few).min(32) as u32)?;
        }
        Way::Subgroups => {
            call.option("ROWS", few as u32)?;
            call.option("THREADS", SUBGROUPS as u32)?;
            call.option("OUTPUTS", outputs_of(kernel.way, launch) as u32)?;
        }
    }
    call.option("CHAIN", CHAIN as u32)?;
    call.option("GATED", gated as u32)?;
    call.option("HAS_ACTIVATION", u32::from(epilogue.activation.is_some()))?;
    call.option("ACTIVATION", epilogue.activation.map_or(0, |activation| activation as u32))?;
    call.option("IN_PLACE", u32::from(epilogue.residual == Some(Residual::Output)))?;
    call.option("ROUND_A", u32::from(low && rounds(fixed.a)))?;
    call.option("ROUND_B", u32::from(low && rounds(right.dtype) && matches!(fixed.b, Rhs::Strided(_))))?;

    let left = Part::read(a);
    call.part("a", if a_step == 1 && aligned(a, 4) { left.quads() } else { left })?;
    let part = Part::read(b).of(right.dtype);
    call.part("b", if right.quads { part.quads() } else { part })?;
    call.write("d", d)?;
    call.optional("bias", bias)?;
    call.optional("residual", residual)?;

    let [residual_batch, residual_row, residual_step] = residual.map_or([0; 3], strides);
    if let Some(offsets) = offsets {
        call.read("offsets", offsets)?;
        call.param("offsets_step", offsets.strides()[0])?;
        call.param("all_groups", batch)?;
        call.param("all_rows", m)?;
        call.reports_that("an offset of {} is out of order, or rows are more or fewer");
    }
    let [bias_batch, bias_step] = match bias.map(|bias| bias.strides()) {
        Some(&[batch, step]) => [batch, step],
        Some(&[step]) => [0, step],
        _ => [0; 2],
    };
    let by_batch = [("a", a_batch), ("b", b_batch), ("bias", bias_batch), ("d", d_batch), ("residual", residual_batch)];
    call.dimension(("batch", batch), offsets.map(|_| "first_group"), &by_batch)?;
    let by_row = [("a", a_row), ("d", d_row), ("residual", residual_row)];
    call.dimension(("rows", m), offsets.map(|_| "first_row"), &by_row)?;
    let columns = [("b", b_column), ("d", d_step), ("residual", residual_step)];
    call.dimension(("count", fixed.columns()), Some("first"), &columns)?;
    for (name, value) in ["a_batch", "a_row", "a_step"].into_iter().zip([a_batch, a_row, a_step]) {
        call.param(name, value)?;
    }
    let names = ["b_batch", "b_column", "b_half", "b_step"];
    for (name, value) in names.into_iter().zip([b_batch, b_column, b_half, b_step]) {
        call.param(name, value)?;
    }
    for (name, value) in ["d_batch", "d_row", "d_step"].into_iter().zip([d_batch, d_row, d_step]) {
        call.param(name, value)?;
    }
    let names = ["residual_batch", "residual_row", "residual_step"];
    for (name, value) in names.into_iter().zip([residual_batch, residual_row, residual_step]) {
        call.param(name, value)?;
    }
    call.param("bias_batch", bias_batch)?;
    call.param("bias_step", bias_step)?;
    call.param("columns", fixed.columns())?;
    call.param("k", fixed.k)?;
    call.param_f32("alpha", epilogue.alpha)?;
    call.param_f32("beta", epilogue.beta)?;
    call.dispatch_in_parts(|p| {
        let (rows, outputs, batch) = (p("rows"), p("count") << gated, p("batch"));
        let [tile, across] = match kernel.way {
            Way::Tiled => [TILE, TILE],
            Way::Gemv | Way::Subgroups => [few, outputs_of(kernel.way, launch)],
        };
        let row_tiles = match offsets {
            None => batch * rows.div_ceil(tile),
            Some(_) => grouped_tiles(rows, batch, tile),
        };
        row_tiles * outputs.div_ceil(across)
    })
}

/// The most tiles that rows of so many groups may take: each group ends with one that may not be full.
pub(crate) fn grouped_tiles(rows: usize, groups: usize, tile: usize) -> usize {
    rows.min(rows / tile + groups)
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
pub(crate) fn gemv_rows(m: usize) -> usize {
    m.next_power_of_two().clamp(1, FEW)
}
