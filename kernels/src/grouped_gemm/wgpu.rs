//! The kernels of [`gemm`](crate::gemm) in WGSL, whose workgroups look up which group's rows are theirs.

use sinew_memory::{DeviceKind, Hardware};

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::Result;
use crate::gemm::takes_rows;
use crate::gemm::wgpu::{self, CHAINED, Kernel, OUTPUTS, Product, Right, TILE, Way, gemv_rows, grouped_tiles, kernel};
use crate::operator::{Launch, Operands, Operator, Row};
use crate::wgpu::needs_subgroups;

static TILED: Kernel = kernel!("grouped_gemm.wgpu.tiled", Way::Tiled, "wgpu_place.wgsl", "../gemm/wgpu_tiled.wgsl");
static GEMV: Kernel = kernel!("grouped_gemm.wgpu.gemv", Way::Gemv, "wgpu_place.wgsl", "../gemm/wgpu_gemv.wgsl");
static GEMV_SUBGROUP: Kernel =
    kernel!("grouped_gemm.wgpu.gemv.subgroup", Way::Subgroups, "wgpu_place.wgsl", "../gemm/wgpu_gemv_subgroup.wgsl");

/// Best first.
pub(super) const ROWS: [Row<GroupedGemm>; 3] = [
    Row {
        name: TILED.name,
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(&fixed.product()),
        cost: |fixed, call, hardware| {
            let tiles = grouped_tiles(call.rows, fixed.groups, TILE) * fixed.n.div_ceil(TILE);
            let flops = 2.0 * (tiles * TILE * TILE) as f64 * fixed.k as f64;
            wgpu::cost(hardware, flops / 0.3, GroupedGemm::work(fixed, call).bytes / 0.5, tiles)
        },
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(&TILED, launch, fixed, call, operands),
    },
    Row {
        name: GEMV.name,
        device: DeviceKind::WGPU,
        arithmetic: CHAINED,
        admits: |fixed, _| takes_rows(&fixed.product()),
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
            takes_rows(&fixed.product())
        },
        cost: |fixed, call, hardware| few_cost(fixed, call, hardware, 0.8, 0.04),
        workspace: |_, _, _| 0,
        run: |launch, fixed, call, operands| run(&GEMV_SUBGROUP, launch, fixed, call, operands),
    },
];

/// Predicted seconds where groups have few rows each, at a share of the rates: weights are read again for each tile.
fn few_cost(
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    hardware: &Hardware,
    reads: f64,
    computes: f64,
) -> f64 {
    let work = GroupedGemm::work(fixed, call);
    let tiles = grouped_tiles(call.rows, fixed.groups, gemv_rows(call.rows.div_ceil(fixed.groups.max(1))));
    let bytes = work.bytes.max((tiles * fixed.weight_bytes()) as f64);
    wgpu::cost(hardware, work.flops / computes, bytes / reads, tiles * fixed.n.div_ceil(OUTPUTS))
}

fn run(
    kernel: &Kernel,
    launch: &Launch<'_>,
    fixed: &GroupedGemmStatic,
    _: &GroupedGemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let a = operands.input(GroupedGemm::NAME, GroupedGemm::A, "A")?;
    let b = operands.input(GroupedGemm::NAME, GroupedGemm::B, "B")?;
    let d = operands.output(GroupedGemm::NAME, GroupedGemm::D, "D")?.view();
    let (a, d) = (&a.with_layout(a.layout().unsqueeze(0)?)?, &d.with_layout(d.layout().unsqueeze(0)?)?);
    let product = fixed.product();
    let right = Right::packed(b, fixed.format, &product, fixed.n * fixed.k)?;
    let offsets = Some(operands.input(GroupedGemm::NAME, GroupedGemm::OFFSETS, "offsets")?);
    let bias = operands.optional(GroupedGemm::BIAS);
    let product_of = Product { a, b, right, d, bias, residual: None, offsets, batch: fixed.groups };
    wgpu::dispatch(kernel, launch, &product, &product_of)
}
