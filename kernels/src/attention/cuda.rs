//! Rows for NVIDIA GPUs: flash attention on tensor cores over bf16 keys, and anything in f32; of each a row that
//! divides the keys among blocks, for calls with few queries.

use sinew_memory::cuda::CudaModule;
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::DType;

use super::cuda_params::{Params, groups, partial_bytes};
use super::{Attention, AttentionDynamic, AttentionStatic, Compute};
use crate::Result;
use crate::cuda::{self, Kernel, MAX_GRID_YZ};
use crate::kv_append::takes_no_scales;
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, refuse};

/// The modules of kernels.
pub static CUDA: [CudaModule; 2] = [
    cuda::module!("attention_simt", "cuda.cuh", "cuda_simt.cu"),
    cuda::module!("attention_mma", "cuda.cuh", "cuda_mma.cu"),
];

const fn kernel(module: usize, name: &'static str) -> Kernel {
    Kernel { module: &CUDA[module], name }
}

static SIMT: Kernel = kernel(0, "attention_simt");
static MERGE: Kernel = kernel(0, "attention_merge");
/// By head_dim, for 16 and for 64 rows of queries.
static MMA: [(usize, [Kernel; 2]); 3] = [
    (64, [kernel(1, "attention_64_16"), kernel(1, "attention_64_64")]),
    (128, [kernel(1, "attention_128_16"), kernel(1, "attention_128_64")]),
    (256, [kernel(1, "attention_256_16"), kernel(1, "attention_256_64")]),
];

/// Warps of a block, and the rows of queries that one takes on tensor cores.
const WARPS: usize = 4;
const WARP_ROWS: usize = 16;
/// Shared memory in bytes that every GPU gives a block unasked.
const SHARED_BYTES: usize = 48 << 10;
/// The longest head for which one warp's query and sums fit there.
const MAX_SIMT_HEAD: usize = SHARED_BYTES / SIMT_HEAD_BYTES;
/// Of each element a query, its sum in a group of keys, and its sum in all groups before.
const SIMT_HEAD_BYTES: usize = 12;

/// The rows of attention on NVIDIA GPUs.
pub(super) fn rows() -> Vec<Row<Attention>> {
    let row = |name, arithmetic| Row {
        name,
        device: DeviceKind::CUDA,
        arithmetic: Arithmetic::named(arithmetic),
        admits: |fixed, _| admit_simt(fixed),
        cost: |fixed, call, hardware| cost(Way::Simt, 1, fixed, call, hardware),
        workspace: |_, _, _| 0,
        run: run_simt,
    };
    vec![
        Row {
            admits: |fixed, hardware| admit_mma(fixed, hardware, true),
            cost: |fixed, call, hardware| cost(Way::Mma, 1, fixed, call, hardware),
            run: run_mma,
            ..row("attention.cuda.prefill", "attention.cuda.tiles-mma")
        },
        Row {
            admits: |fixed, hardware| admit_mma(fixed, hardware, false),
            cost: |fixed, call, hardware| cost(Way::Mma, groups(call), fixed, call, hardware),
            workspace: |fixed, call, _| partial_bytes(fixed, call),
            run: run_mma_split,
            ..row("attention.cuda.decode", "attention.cuda.tiles-mma")
        },
        Row {
            cost: |fixed, call, hardware| cost(Way::Simt, groups(call), fixed, call, hardware),
            workspace: |fixed, call, _| partial_bytes(fixed, call),
            run: run_simt_split,
            ..row("attention.cuda.simt-decode", "attention.cuda.tiles-fma")
        },
        row("attention.cuda.simt", "attention.cuda.tiles-fma"),
    ]
}

fn admit_simt(fixed: &AttentionStatic) -> Result<(), Refusal> {
    takes_no_scales(fixed.kv)?;
    fixed.old.map_or(Ok(()), |old| takes_no_scales(old.dtype))?;
    if fixed.head_dim > MAX_SIMT_HEAD {
        return Err(format!("takes heads of up to {MAX_SIMT_HEAD}").into());
    }
    if fixed.num_heads > MAX_GRID_YZ {
        return Err(format!("takes up to {MAX_GRID_YZ} heads").into());
    }
    Ok(())
}

/// Where all keys are one block's, the sums of groups of keys are held in shared memory.
fn admit_mma(fixed: &AttentionStatic, hardware: &Hardware, whole: bool) -> Result<(), Refusal> {
    cuda::needs((8, 0), hardware)?;
    admit_simt(fixed)?;
    if fixed.compute != Compute::Bf16 {
        return Err("computes in bf16 only".into());
    }
    if fixed.kv != DType::BF16 {
        return Err(format!("keys are {}, not bf16", fixed.kv).into());
    }
    let Some((width, _)) = mma(fixed) else {
        return Err(format!("takes heads of up to {}", MMA[MMA.len() - 1].0).into());
    };
    let needed = shared_bytes(*width, WARPS * WARP_ROWS, whole);
    let there = hardware.accelerator.as_ref().map_or(0, |accelerator| accelerator.workgroup_bytes);
    if needed > there {
        return Err(format!("needs {needed} bytes of shared memory, the GPU offers {there}").into());
    }
    Ok(())
}

fn mma(fixed: &AttentionStatic) -> Option<&'static (usize, [Kernel; 2])> {
    MMA.iter().find(|(width, _)| fixed.head_dim <= *width)
}

/// Queries and a tile of keys and of values in bf16, and sums in f32 where groups are merged.
fn shared_bytes(width: usize, rows: usize, merges: bool) -> usize {
    width * (2 * (rows + 2 * 64) + if merges { 4 * rows } else { 0 })
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Mma,
    Simt,
}

/// Few blocks leave multiprocessors idle, whatever bounds them. The shares of peaks are estimates.
fn cost(way: Way, splits: usize, fixed: &AttentionStatic, call: &AttentionDynamic, hardware: &Hardware) -> f64 {
    let rates = &hardware.rates;
    let (rate, rows) = match way {
        Way::Mma => (0.4 * rates.bf16_flops_per_s, WARPS * WARP_ROWS),
        Way::Simt => (0.05 * rates.f32_flops_per_s, WARPS),
    };
    let units = (call.max_query * fixed.group()).div_ceil(rows) * call.sequences * fixed.num_kv_heads * splits;
    let busy = (units as f64 / hardware.threads as f64).clamp(1e-3, 1.0);
    let work = Attention::work(fixed, call);
    let partials = if splits > 1 { 2.0 * partial_bytes(fixed, call) as f64 } else { 0.0 };
    let memory = (work.bytes + partials) / (0.7 * rates.read_bytes_per_s);
    let compute = work.flops / (rate * hardware.threads as f64);
    let launches = if splits > 1 { 2.0 } else { 1.0 };
    launches * rates.launch_s + (memory.max(compute) + 0.01 * compute) / busy
}

/// How a kernel is launched: its rows of queries and threads per block, and its shared memory.
struct Blocks {
    kernel: &'static Kernel,
    rows: usize,
    threads: usize,
    shared_bytes: usize,
}

/// # Safety
/// That of [`Row::run`], for a row that splits where `split`.
unsafe fn run(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    blocks: &Blocks,
    split: bool,
    operands: Operands<'_>,
) -> Result<()> {
    let bad = |reason: &str| refuse(Attention::NAME, format!("{call}: {reason}"));
    // No block would see it.
    if call.tokens > call.sequences.saturating_mul(call.max_query) {
        return Err(bad("there are more tokens than sequences may have"));
    }
    if call.tokens == 0 {
        return Ok(());
    }
    let split = split && groups(call) > 1;
    let mut params = Params::new(launch, blocks.kernel, fixed, call, split, operands)?;
    let row_tiles = call.max_query.saturating_mul(fixed.group()).div_ceil(blocks.rows);
    let across =
        i32::try_from(row_tiles.saturating_mul(call.sequences)).map_err(|_| bad("too many rows for a grid"))?;
    params.row_tiles = row_tiles as u32;
    if split && groups(call) > MAX_GRID_YZ {
        return Err(bad("too many keys for a grid"));
    }
    let grid = [across as u32, params.num_kv_heads, if split { params.groups } else { 1 }];
    let (threads, shared) = (blocks.threads as u32, blocks.shared_bytes as u32);
    // SAFETY: the operator's check has seen that operands have the shapes and dtypes that the params say, and views lie
    // within their buffers; kernels check what they read of query_start, kv_len and block_table before they rely on it.
    // Partial results lie in the workspace, whose size was checked.
    unsafe {
        cuda::launch(launch, blocks.kernel, grid, threads, shared, &params, operands)?;
        if split {
            let threads = fixed.head_dim.next_multiple_of(32).min(128) as u32;
            cuda::launch(launch, &MERGE, [params.tokens, params.num_heads, 1], threads, 0, &params, operands)?;
        }
    }
    Ok(())
}

/// The fewest rows of queries that hold those of a sequence, and the least shared memory.
fn mma_blocks(fixed: &AttentionStatic, call: &AttentionDynamic, split: bool) -> Result<Blocks> {
    let Some((width, [narrow, wide])) = mma(fixed) else {
        return Err(refuse(Attention::NAME, format!("{fixed}: heads are too long for tensor cores")));
    };
    let few = call.max_query.saturating_mul(fixed.group()) <= WARP_ROWS;
    let (kernel, warps) = if few { (narrow, 1) } else { (wide, WARPS) };
    let rows = warps * WARP_ROWS;
    let shared_bytes = shared_bytes(*width, rows, !split && groups(call) > 1);
    Ok(Blocks { kernel, rows, threads: warps * 32, shared_bytes })
}

fn simt_blocks(fixed: &AttentionStatic) -> Blocks {
    let warps = if WARPS * fixed.head_dim <= MAX_SIMT_HEAD { WARPS } else { 1 };
    let shared_bytes = warps * fixed.head_dim * SIMT_HEAD_BYTES;
    Blocks { kernel: &SIMT, rows: warps, threads: warps * 32, shared_bytes }
}

macro_rules! run_as {
    ($($name:ident, $blocks:expr, $split:literal;)*) => {$(
        unsafe fn $name(
            launch: &Launch<'_>,
            fixed: &AttentionStatic,
            call: &AttentionDynamic,
            operands: Operands<'_>,
        ) -> Result<()> {
            let blocks: fn(&AttentionStatic, &AttentionDynamic) -> Result<Blocks> = $blocks;
            // SAFETY: passed on.
            unsafe { run(launch, fixed, call, &blocks(fixed, call)?, $split, operands) }
        }
    )*};
}
run_as! {
    run_mma, |fixed, call| mma_blocks(fixed, call, false), false;
    run_mma_split, |fixed, call| mma_blocks(fixed, call, true), true;
    run_simt, |fixed, _| Ok(simt_blocks(fixed)), false;
    run_simt_split, |fixed, _| Ok(simt_blocks(fixed)), true;
}
