//! The kernels of [`gemm`](crate::gemm) for NVIDIA GPUs, whose blocks look up which group's rows are theirs.

use bytemuck::{Pod, Zeroable};
use sinew_memory::cuda::CudaModule;
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::DType;

use super::{GroupedGemm, GroupedGemmDynamic, GroupedGemmStatic};
use crate::Result;
use crate::cuda;
use crate::gemm::cuda::{MMA_CAPABILITY, Params, Tile, gemv, mma, multiplied_as, simt, tiles_cost};
use crate::gemm::{GemmDynamic, takes_rows};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Row, refuse};

/// The modules of kernels.
pub static CUDA: [CudaModule; 2] = [
    cuda::module!(
        "grouped_gemm",
        "../activation/cuda_function.cuh",
        "../gemm/cuda.cuh",
        "../gemm/cuda_simt.cuh",
        "../gemm/cuda_gemv.cuh",
        "cuda.cuh",
        "cuda.cu"
    ),
    cuda::module!(
        "grouped_gemm_mma",
        "../activation/cuda_function.cuh",
        "../gemm/cuda.cuh",
        "../gemm/cuda_mma.cuh",
        "cuda.cuh",
        "cuda_mma.cu"
    ),
];

static SIMT: Tile = simt(&CUDA[0], "grouped_simt");
static GEMV_32: [Tile; 3] = [
    gemv(&CUDA[0], "grouped_gemv_32_1", 1),
    gemv(&CUDA[0], "grouped_gemv_32_4", 4),
    gemv(&CUDA[0], "grouped_gemv_32_8", 8),
];
static GEMV_16: [Tile; 3] = [
    gemv(&CUDA[0], "grouped_gemv_16_1", 1),
    gemv(&CUDA[0], "grouped_gemv_16_4", 4),
    gemv(&CUDA[0], "grouped_gemv_16_8", 8),
];
static MMA_BF16: [Tile; 2] =
    [mma(&CUDA[1], "grouped_bf16_16", [16, 64], 128, 4), mma(&CUDA[1], "grouped_bf16_64", [64, 64], 128, 4)];
static MMA_F16: [Tile; 2] =
    [mma(&CUDA[1], "grouped_f16_16", [16, 64], 128, 4), mma(&CUDA[1], "grouped_f16_64", [64, 64], 128, 4)];

/// Best first.
pub(super) fn rows() -> Vec<Row<GroupedGemm>> {
    let row = |name, arithmetic| Row::<GroupedGemm> {
        name,
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named(arithmetic),
        admits: |fixed, _| takes_rows(&fixed.product()),
        cost: |fixed, call, hardware| cuda::cost(GroupedGemm::work(fixed, call), hardware, 0.4, 0.3),
        workspace: |_, _, _| 0,
        run: run_simt,
    };
    vec![
        mma_row::<1>("grouped_gemm.cuda.mma-64"),
        mma_row::<0>("grouped_gemm.cuda.mma-16"),
        Row { cost: gemv_cost, run: run_gemv, ..row("grouped_gemm.cuda.gemv", "gemm.cuda.lanes") },
        row("grouped_gemm.cuda.simt", "gemm.cuda.fma-chain"),
    ]
}

/// The row of a tile of [`MMA_BF16`] and [`MMA_F16`].
fn mma_row<const TILE: usize>(name: &'static str) -> Row<GroupedGemm> {
    Row {
        name,
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named("gemm.cuda.mma-chain"),
        admits: |fixed, hardware| {
            cuda::needs(MMA_CAPABILITY, hardware)?;
            takes_rows(&fixed.product())?;
            multiplied_as(&fixed.product()).map(drop)
        },
        cost: |fixed, call, hardware| {
            // What a tile reads of shared memory for a multiply-add falls with its edges.
            const SHARES: [f64; 2] = [0.25, 0.4];
            let Tile { rows, columns, .. } = MMA_BF16[TILE];
            let flops = 2.0 * (rows * columns * fixed.k) as f64;
            let seconds = flops / (SHARES[TILE] * hardware.rates.bf16_flops_per_s);
            let tiles = row_tiles(fixed, call.rows, rows) * fixed.n.div_ceil(columns);
            tiles_cost(hardware, tiles, seconds, GroupedGemm::work(fixed, call).bytes / 0.6)
        },
        workspace: |_, _, _| 0,
        run: run_mma::<TILE>,
    }
}

/// The most tiles that the rows may take: each group ends with one that may not be full.
fn row_tiles(fixed: &GroupedGemmStatic, rows: usize, tile: usize) -> usize {
    rows.min((rows / tile).saturating_add(fixed.groups))
}

/// A weight is read again for every tile of its group's rows.
fn gemv_cost(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, hardware: &Hardware) -> f64 {
    let mut work = GroupedGemm::work(fixed, call);
    let tiles = row_tiles(fixed, call.rows, gemv_tile(fixed, call.rows, &GEMV_16).rows);
    work.bytes = work.bytes.max(tiles as f64 * fixed.weight_bytes() as f64);
    cuda::cost(work, hardware, 0.8, 0.2)
}

/// The tile that holds as many rows as a group has where all have as many.
fn gemv_tile(fixed: &GroupedGemmStatic, rows: usize, tiles: &'static [Tile; 3]) -> &'static Tile {
    let each = rows.div_ceil(fixed.groups.max(1));
    tiles.iter().find(|tile| each <= tile.rows).unwrap_or(&tiles[2])
}

/// `struct GroupedParams`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupedParams {
    product: Params,
    offsets: u64,
    status: u64,
    offsets_step: i64,
    num_groups: u32,
    padding: u32,
}

/// The parameters of the product, were all rows one group's.
fn product(fixed: &GroupedGemmStatic, call: &GroupedGemmDynamic, operands: Operands<'_>) -> Result<Params> {
    let a = operands.input(GroupedGemm::NAME, GroupedGemm::A, "A")?;
    let b = operands.input(GroupedGemm::NAME, GroupedGemm::B, "B")?;
    let d = operands.output(GroupedGemm::NAME, GroupedGemm::D, "D")?.view();
    let (a, d) = (a.with_layout(a.layout().unsqueeze(0)?)?, d.with_layout(d.layout().unsqueeze(0)?)?);
    let of_all = GemmDynamic { batch: 1, m: call.rows };
    let bias = operands.optional(GroupedGemm::BIAS);
    let mut product = Params::of(&fixed.product(), &of_all, [&a, b], &d, bias, None)?;
    product.b_strides[0] = (fixed.n * fixed.k) as i64;
    product.bias_strides[0] = bias.map_or(0, |bias| bias.strides()[0] as i64);
    Ok(product)
}

/// Enqueues a tile's kernel.
///
/// # Safety
/// That of [`Row::run`]; the kernel multiplies what the row admits, and the product is of these operands.
unsafe fn run(
    launch: &Launch<'_>,
    tile: &'static Tile,
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    operands: Operands<'_>,
    product: Params,
) -> Result<()> {
    let offsets = operands.input(GroupedGemm::NAME, GroupedGemm::OFFSETS, "offsets")?;
    let many = |count: usize| refuse(GroupedGemm::NAME, format!("{count} are more than a grid has"));
    let params = GroupedParams {
        product,
        offsets: cuda::pointer(offsets)?,
        status: cuda::status_pointer(
            launch,
            &tile.kernel,
            "an offset of {} is out of order, or rows are more or fewer",
        )?,
        offsets_step: offsets.strides()[0] as i64,
        num_groups: u32::try_from(fixed.groups).map_err(|_| many(fixed.groups))?,
        padding: 0,
    };
    let blocks = row_tiles(fixed, call.rows, tile.rows).saturating_mul(fixed.n.div_ceil(tile.columns));
    let blocks = i32::try_from(blocks).map_err(|_| many(blocks))?;
    // SAFETY: the operator's check has seen that operands have the shapes and dtypes that the params say, and views lie
    // within their buffers; blocks stay inside the rows and weights whatever the offsets hold.
    unsafe {
        cuda::launch(launch, &tile.kernel, [blocks as u32, 1, 1], tile.threads, tile.shared_bytes, &params, operands)
    }
}

unsafe fn run_simt(
    launch: &Launch<'_>,
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let product = product(fixed, call, operands)?;
    // SAFETY: passed on.
    unsafe { run(launch, &SIMT, fixed, call, operands, product) }
}

unsafe fn run_gemv(
    launch: &Launch<'_>,
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let tiles = if fixed.format.dtype() == Some(DType::F32) { &GEMV_32 } else { &GEMV_16 };
    let product = product(fixed, call, operands)?;
    // SAFETY: passed on.
    unsafe { run(launch, gemv_tile(fixed, call.rows, tiles), fixed, call, operands, product) }
}

unsafe fn run_mma<const TILE: usize>(
    launch: &Launch<'_>,
    fixed: &GroupedGemmStatic,
    call: &GroupedGemmDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let dtype = multiplied_as(&fixed.product()).map_err(|reason| refuse(GroupedGemm::NAME, reason.to_string()))?;
    let tiles = if dtype == DType::BF16 { &MMA_BF16 } else { &MMA_F16 };
    let product = product(fixed, call, operands)?.converted(dtype);
    // SAFETY: passed on; the kernel of that dtype reads operands of it where they are whole.
    unsafe { run(launch, &tiles[TILE], fixed, call, operands, product) }
}
