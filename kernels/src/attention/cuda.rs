//! Rows for NVIDIA GPUs: flash attention on tensor cores over bf16 keys, and anything in f32; of each a row that divides
//! the keys among blocks, for calls with few queries.

use bytemuck::{Pod, Zeroable};
use sinew_memory::cuda::CudaModule;
use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::{DType, View};

use super::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, Compute, F32Bits, GROUP, K, KV_LEN, KvSource, MASK,
    MaskKind, O, Q, QUERY_START, V,
};
use crate::Result;
use crate::cuda::{self, Kernel, MAX_GRID_YZ};
use crate::operator::{Arithmetic, Launch, Operands, Operator, Refusal, Row, refuse};

/// The modules of kernels.
pub static CUDA: [CudaModule; 2] = [
    cuda::module("attention_simt", concat!(include_str!("cuda.cuh"), include_str!("cuda_simt.cu"))),
    cuda::module("attention_mma", concat!(include_str!("cuda.cuh"), include_str!("cuda_mma.cu"))),
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

/// Groups of keys.
fn groups(call: &AttentionDynamic) -> usize {
    call.max_kv.div_ceil(GROUP).max(1)
}

/// Of each row and group a maximum, a sum of weights, and the weighted values.
fn partial_bytes(fixed: &AttentionStatic, call: &AttentionDynamic) -> usize {
    match groups(call) {
        1 => 0,
        groups => [fixed.num_heads, groups, fixed.head_dim + 2, 4].into_iter().fold(call.tokens, usize::saturating_mul),
    }
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

const CAUSAL: u32 = 1;
const PAGED: u32 = 2;
const MASKED: u32 = 4;
const BOOLEAN: u32 = 8;
const SOFTCAP: u32 = 16;
const ROUND: u32 = 32;
const WHOLE: u32 = 64;
const SPLIT: u32 = 128;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    query_start: u64,
    kv_len: u64,
    table: u64,
    mask: u64,
    partials: u64,
    status: u64,
    q_strides: [i64; 3],
    o_strides: [i64; 3],
    /// Of blocks, heads, tokens and head_dim.
    k_strides: [i64; 4],
    v_strides: [i64; 4],
    query_start_stride: i64,
    kv_len_stride: i64,
    table_strides: [i64; 2],
    mask_strides: [i64; 3],
    window: i64,
    sequences: u32,
    tokens: u32,
    max_query: u32,
    max_kv: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    query_group: u32,
    blocks: u32,
    block_size: u32,
    table_columns: u32,
    groups: u32,
    row_tiles: u32,
    q_type: u32,
    kv_type: u32,
    o_type: u32,
    mask_type: u32,
    flags: u32,
    scale: f32,
    softcap: f32,
}

/// The last `N` strides of a view, 0 for dimensions that it lacks.
fn strides<const N: usize>(view: &View<'_>) -> [i64; N] {
    let missing = N - view.strides().len();
    std::array::from_fn(|d| if d < missing { 0 } else { view.strides()[d - missing] as i64 })
}

/// The strides of keys or values, dense ones without blocks: `[tokens, heads, head_dim]` has its tokens in front.
fn kv_strides(view: &View<'_>, source: KvSource) -> [i64; 4] {
    match (source, strides::<4>(view)) {
        (KvSource::Paged { .. }, strides) => strides,
        (KvSource::Dense, [_, token, head, d]) => [0, head, token, d],
    }
}

/// Whether every head of a token is whole multiples of 16 bytes, and starts at such.
fn is_whole(address: u64, [block, head, token, d]: [i64; 4], head_dim: usize) -> bool {
    let run = 16 / DType::BF16.size() as i64;
    d == 1 && address.is_multiple_of(16) && [block, head, token, head_dim as i64].iter().all(|n| n % run == 0)
}

impl Params {
    fn new(
        launch: &Launch<'_>,
        kernel: &Kernel,
        fixed: &AttentionStatic,
        call: &AttentionDynamic,
        split: bool,
        operands: Operands<'_>,
    ) -> Result<Self> {
        let input = |at, name| operands.input(Attention::NAME, at, name);
        let (q, k, v) = (input(Q, "q")?, input(K, "k")?, input(V, "v")?);
        let o = operands.output(Attention::NAME, O, "o")?.view();
        let (starts, lengths) = (input(QUERY_START, "query_start")?, input(KV_LEN, "kv_len")?);
        let (table, mask) = (operands.optional(BLOCK_TABLE), operands.optional(MASK));
        let paged = match fixed.kv_source {
            KvSource::Paged { block_size } => Some(block_size),
            KvSource::Dense => None,
        };
        let count = |count: usize| match i32::try_from(count) {
            Ok(count) => Ok(count as u32),
            Err(_) => Err(refuse(Attention::NAME, format!("{fixed}, {call}: no kernel counts to {count}"))),
        };
        let (k_strides, v_strides) = (kv_strides(k, fixed.kv_source), kv_strides(v, fixed.kv_source));
        let (k_at, v_at) = (cuda::pointer(k)?, cuda::pointer(v)?);
        let flags = [
            (CAUSAL, fixed.causal),
            (PAGED, paged.is_some()),
            (MASKED, fixed.mask.is_some()),
            (BOOLEAN, fixed.mask == Some(MaskKind::Boolean)),
            (SOFTCAP, fixed.softcap.is_some()),
            (ROUND, fixed.compute == Compute::Bf16),
            (WHOLE, is_whole(k_at, k_strides, fixed.head_dim) && is_whole(v_at, v_strides, fixed.head_dim)),
            (SPLIT, split),
        ];
        Ok(Self {
            q: cuda::pointer(q)?,
            k: k_at,
            v: v_at,
            o: cuda::pointer(o)?,
            query_start: cuda::pointer(starts)?,
            kv_len: cuda::pointer(lengths)?,
            table: cuda::optional_pointer(table)?,
            mask: cuda::optional_pointer(mask)?,
            partials: cuda::workspace_pointer(launch, if split { partial_bytes(fixed, call) } else { 0 })?,
            status: cuda::status_pointer(launch, kernel)?,
            q_strides: strides(q),
            o_strides: strides(o),
            k_strides,
            v_strides,
            query_start_stride: starts.strides()[0] as i64,
            kv_len_stride: lengths.strides()[0] as i64,
            table_strides: table.map_or([0; 2], strides),
            mask_strides: mask.map_or([0; 3], strides),
            // More than all keys is as good as all.
            window: fixed.window.map_or(0, |window| window.min(i32::MAX as usize) as i64),
            sequences: count(call.sequences)?,
            tokens: count(call.tokens)?,
            max_query: count(call.max_query)?,
            max_kv: count(call.max_kv)?,
            num_heads: count(fixed.num_heads)?,
            num_kv_heads: count(fixed.num_kv_heads)?,
            head_dim: count(fixed.head_dim)?,
            query_group: count(fixed.group())?,
            blocks: count(k.shape()[0].min(v.shape()[0]))?,
            block_size: count(paged.unwrap_or(0))?,
            table_columns: count(table.map_or(0, |table| table.shape()[1]))?,
            groups: count(groups(call))?,
            row_tiles: 0,
            q_type: cuda::code(fixed.q),
            kv_type: cuda::code(fixed.kv),
            o_type: cuda::code(fixed.out),
            mask_type: mask.map_or(0, |mask| cuda::code(mask.dtype())),
            flags: flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag).sum(),
            scale: fixed.scale.get(),
            softcap: fixed.softcap.map_or(0.0, F32Bits::get),
        })
    }
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
