//! What the kernels of attention are told: `AttentionParams` of `cuda.cuh`.

use bytemuck::{Pod, Zeroable};
use sinew_tensor::{DType, View};

use super::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, Compute, F32Bits, GROUP, K, KV_LEN, KvSource, MASK,
    MaskKind, O, Q, QUERY_START, SINKS as SINKS_INPUT, V,
};
use crate::Result;
use crate::cuda::{self, Kernel};
use crate::operator::{Launch, Operands, Operator, refuse};

/// Groups of keys.
pub(super) fn groups(call: &AttentionDynamic) -> usize {
    call.max_kv.div_ceil(GROUP).max(1)
}

/// Of each row and group a maximum, a sum of weights, and the weighted values.
pub(super) fn partial_bytes(fixed: &AttentionStatic, call: &AttentionDynamic) -> usize {
    match groups(call) {
        1 => 0,
        groups => [fixed.num_heads, groups, fixed.head_dim + 2, 4].into_iter().fold(call.tokens, usize::saturating_mul),
    }
}

const CAUSAL: u32 = 1;
const PAGED: u32 = 2;
const MASKED: u32 = 4;
const BOOLEAN: u32 = 8;
const SOFTCAP: u32 = 16;
const ROUND: u32 = 32;
const WHOLE: u32 = 64;
const SPLIT: u32 = 128;
const SINKS: u32 = 256;

/// What is wrong with a value that a kernel reports.
const OUTSIDE: &str = "{} in query_start, kv_len or block_table is out of bounds";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    query_start: u64,
    kv_len: u64,
    table: u64,
    mask: u64,
    sinks: u64,
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
    sinks_stride: i64,
    window: i64,
    sequences: u32,
    pub tokens: u32,
    max_query: u32,
    max_kv: u32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    head_dim: u32,
    query_group: u32,
    blocks: u32,
    block_size: u32,
    table_columns: u32,
    pub groups: u32,
    pub row_tiles: u32,
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
    /// The params of a launch whose rows of queries are not divided yet: `row_tiles` is 0.
    pub fn new(
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
        let [table, mask, sinks] = [BLOCK_TABLE, MASK, SINKS_INPUT].map(|at| operands.optional(at));
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
            (SINKS, fixed.sinks),
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
            sinks: cuda::optional_pointer(sinks)?,
            partials: cuda::workspace_pointer(launch, if split { partial_bytes(fixed, call) } else { 0 })?,
            status: cuda::status_pointer(launch, kernel, OUTSIDE)?,
            q_strides: strides(q),
            o_strides: strides(o),
            k_strides,
            v_strides,
            query_start_stride: starts.strides()[0] as i64,
            kv_len_stride: lengths.strides()[0] as i64,
            table_strides: table.map_or([0; 2], strides),
            mask_strides: mask.map_or([0; 3], strides),
            sinks_stride: sinks.map_or(0, |sinks| sinks.strides()[0] as i64),
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
