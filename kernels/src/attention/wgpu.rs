//! Attention in WGSL: first a kernel that checks what serves as indices, then tiles of keys, in decoding over parts of
//! the keys at once, which a third kernel joins.
//!
//! Both rows have one arithmetic, so that a sequence is decoded with as it was prefilled with: that of the
//! [module](super), in tiles of [`TILE`] keys.

use sinew_memory::{DeviceKind, Hardware};
use sinew_tensor::View;

use super::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, Compute, GROUP, K, KV_LEN, KvSource, MASK, MaskKind, O,
    Q, QUERY_START, SINKS, V,
};
use crate::kv_append::takes_no_scales;
use crate::operator::refuse;
use crate::wgpu::{Call, Part, aligned, arithmetic};
use crate::{Arithmetic, Launch, Operands, Operator, Refusal, Result, Row};

const TILES: Arithmetic = arithmetic("attention.wgpu");
/// Keys of a tile: what fits into shared memory with the queries.
const TILE: usize = 32;
/// The most rows of a workgroup, and accumulators of a thread.
const MOST_ROWS: usize = 16;
/// What shared memory holds of a query beside everything else.
const MOST_HEAD_DIM: usize = 2048;
/// Words that describe a sequence.
const SEQUENCE: usize = 4;
/// Partial results beyond this many bytes are not worth the workgroups that they occupy.
const MOST_PARTIALS: usize = 64 << 20;

/// The rows for wgpu.
pub(super) fn rows() -> [Row<Attention>; 2] {
    [row::<false>("attention.wgpu.flash"), row::<true>("attention.wgpu.decode")]
}

fn row<const SPLIT: bool>(name: &'static str) -> Row<Attention> {
    Row {
        name,
        device: DeviceKind::WGPU,
        arithmetic: TILES,
        admits,
        cost: |fixed, call, hardware| cost(fixed, call, &Plan::new(fixed, call, SPLIT), hardware),
        workspace: |fixed, call, _| Plan::new(fixed, call, SPLIT).scratch_bytes,
        run: run::<SPLIT>,
    }
}

fn admits(fixed: &AttentionStatic, _: &Hardware) -> Result<(), Refusal> {
    takes_no_scales(fixed.kv)?;
    fixed.old.map_or(Ok(()), |old| takes_no_scales(old.dtype))?;
    match fixed.head_dim {
        0..=MOST_HEAD_DIM => Ok(()),
        more => Err(format!("heads of {more}; shared memory holds those of up to {MOST_HEAD_DIM}").into()),
    }
}

/// How a call is divided among workgroups. What is computed does not depend on it.
struct Plan {
    threads: usize,
    /// Queries times the heads that share keys, of a workgroup, and the workgroups of a sequence and head of keys.
    rows: usize,
    blocks: usize,
    /// Groups of keys that are workgroups of their own; 1 where one takes all.
    splits: usize,
    /// Descriptions of sequences, and where groups are split their partial results.
    scratch_bytes: usize,
}

impl Plan {
    fn new(fixed: &AttentionStatic, call: &AttentionDynamic, split: bool) -> Self {
        let threads = if fixed.head_dim <= 64 { 64 } else { 128 };
        let fit = (MOST_ROWS / fixed.head_dim.div_ceil(threads)).max(1);
        let rows = call.max_query * fixed.group();
        let most = 1 << fit.ilog2();
        let partials = Self::partial_bytes(fixed, call);
        let splits = if split && partials <= MOST_PARTIALS { call.max_kv.div_ceil(GROUP).max(1) } else { 1 };
        let scratch_bytes = call.sequences * SEQUENCE * 4 + if splits > 1 { partials } else { 0 };
        let taken = rows.next_power_of_two().clamp(1, most);
        Self { threads, rows: taken, blocks: rows.div_ceil(taken), splits, scratch_bytes }
    }

    fn partial_bytes(fixed: &AttentionStatic, call: &AttentionDynamic) -> usize {
        let groups = call.tokens.saturating_mul(fixed.num_heads).saturating_mul(call.max_kv.div_ceil(GROUP));
        groups.saturating_mul((fixed.head_dim + 2) * 4)
    }

    fn workgroups(&self, fixed: &AttentionStatic, call: &AttentionDynamic) -> usize {
        call.sequences * fixed.num_kv_heads * self.splits * self.blocks
    }
}

fn cost(fixed: &AttentionStatic, call: &AttentionDynamic, plan: &Plan, hardware: &Hardware) -> f64 {
    let work = Attention::work(fixed, call);
    let rates = &hardware.rates;
    let computing = work.flops / (0.1 * rates.f32_flops_per_s * hardware.threads as f64);
    let reading = work.bytes / (0.5 * rates.read_bytes_per_s);
    let busy = (plan.workgroups(fixed, call) as f64 / hardware.threads as f64).clamp(1e-3, 1.0);
    // Partial results are written, read, and take a kernel more.
    let (launches, moved) = if plan.splits > 1 { (3.0, 2 * Plan::partial_bytes(fixed, call)) } else { (2.0, 0) };
    launches * rates.launch_s + computing.max(reading) / busy + moved as f64 / rates.read_bytes_per_s
}

/// The kernels, for masks of numbers or none, and of truths, and for keys in blocks or one after another.
macro_rules! bodies {
    ($($name:ident, $keys:literal, $mask:literal;)*) => {$(
        const $name: &str = concat!(
            include_str!("../wgpu/math.wgsl"),
            include_str!("../wgpu/order.wgsl"),
            include_str!("wgpu_sequence.wgsl"),
            include_str!("wgpu_merge.wgsl"),
            include_str!($keys),
            include_str!($mask),
            include_str!("wgpu_tiles.wgsl")
        );
    )*};
}
bodies! {
    PAGED, "wgpu_paged.wgsl", "wgpu_mask_additive.wgsl";
    PAGED_BOOLEAN, "wgpu_paged.wgsl", "wgpu_mask_boolean.wgsl";
    DENSE, "wgpu_dense.wgsl", "wgpu_mask_additive.wgsl";
    DENSE_BOOLEAN, "wgpu_dense.wgsl", "wgpu_mask_boolean.wgsl";
}
const CONTENTS_PAGED: &str =
    concat!(include_str!("wgpu_sequence.wgsl"), include_str!("wgpu_paged.wgsl"), include_str!("wgpu_contents.wgsl"));
const CONTENTS_DENSE: &str =
    concat!(include_str!("wgpu_sequence.wgsl"), include_str!("wgpu_dense.wgsl"), include_str!("wgpu_contents.wgsl"));
const JOIN: &str =
    concat!(include_str!("../wgpu/math.wgsl"), include_str!("wgpu_merge.wgsl"), include_str!("wgpu_join.wgsl"));

unsafe fn run<const SPLIT: bool>(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    if call.sequences == 0 {
        return match call.tokens {
            0 => Ok(()),
            tokens => Err(refuse(Attention::NAME, format!("{tokens} tokens of no sequence"))),
        };
    }
    let plan = Plan::new(fixed, call, SPLIT);
    // Before the first kernel is enqueued.
    launch.workspace(plan.scratch_bytes)?;
    check(launch, fixed, call, operands)?;
    tiles(launch, fixed, call, operands, &plan)?;
    if plan.splits > 1 { join(launch, fixed, call, operands, &plan) } else { Ok(()) }
}

/// What the kernels know of where keys are, and which of them are seen.
fn addressing<'a>(kernel: &mut Call<'a>, fixed: &AttentionStatic, table: Option<&View<'a>>) -> Result<()> {
    kernel.option("CAUSAL", u32::from(fixed.causal))?;
    kernel.option("WINDOW", u32::from(fixed.window.is_some()))?;
    kernel.option("PAGED", u32::from(table.is_some()))?;
    kernel.optional("block_table", table)?;
    kernel.param("window", fixed.window.map_or(0, |window| window.min(i32::MAX as usize)))?;
    let [row, step] = table.map_or([0, 0], |table| [table.strides()[0], table.strides()[1]]);
    kernel.param("table_row", row)?;
    kernel.param("table_step", step)?;
    let block_size = match fixed.kv_source {
        KvSource::Paged { block_size } => block_size,
        KvSource::Dense => 1,
    };
    kernel.param("block_size", block_size)
}

/// Checks the contents of a call that serve as indices, and describes its sequences in the scratch.
fn check(launch: &Launch<'_>, fixed: &AttentionStatic, call: &AttentionDynamic, operands: Operands<'_>) -> Result<()> {
    let name = Attention::NAME;
    let table = operands.optional(BLOCK_TABLE);
    let body = if table.is_some() { CONTENTS_PAGED } else { CONTENTS_DENSE };
    let mut kernel = Call::new(launch, "attention.wgpu.contents", body)?;
    kernel.reports_that("{} in query_start, kv_len or block_table is out of bounds");
    let starts = operands.input(name, QUERY_START, "query_start")?;
    let lengths = operands.input(name, KV_LEN, "kv_len")?;
    kernel.read("query_start", starts)?;
    kernel.read("kv_len", lengths)?;
    kernel.workspace("scratch", launch, call.sequences * SEQUENCE * 4)?;
    addressing(&mut kernel, fixed, table)?;
    // The last dimension of a mask may be what bounds the keys.
    let columns = operands.optional(MASK).and_then(|mask| mask.shape().last().copied()).unwrap_or(call.max_kv);
    kernel.param("start_step", starts.strides()[0])?;
    kernel.param("length_step", lengths.strides()[0])?;
    kernel.param("table_columns", table.map_or(0, |table| table.shape()[1]))?;
    kernel.param("there", operands.input(name, K, "k")?.shape()[0])?;
    kernel.param("sequences", call.sequences)?;
    kernel.param("tokens", call.tokens)?;
    kernel.param("max_query", call.max_query)?;
    kernel.param("max_kv", call.max_kv.min(columns))?;
    kernel.dispatch_linear(call.sequences)
}

fn tiles(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
    plan: &Plan,
) -> Result<()> {
    let name = Attention::NAME;
    let (q, k, v) = (operands.input(name, Q, "q")?, operands.input(name, K, "k")?, operands.input(name, V, "v")?);
    let o = operands.output(name, O, "o")?.view();
    let (table, mask) = (operands.optional(BLOCK_TABLE), operands.optional(MASK));
    let body = match (table.is_some(), fixed.mask) {
        (true, Some(MaskKind::Boolean)) => PAGED_BOOLEAN,
        (true, _) => PAGED,
        (false, Some(MaskKind::Boolean)) => DENSE_BOOLEAN,
        (false, _) => DENSE,
    };
    let split = plan.splits > 1;
    let mut kernel = Call::new(launch, "attention.wgpu.tiles", body)?;
    kernel.option("HEAD_DIM", fixed.head_dim as u32)?;
    kernel.option("WORKGROUP", plan.threads as u32)?;
    kernel.option("ROWS", plan.rows as u32)?;
    kernel.option("SHARE", fixed.group() as u32)?;
    kernel.option("TILE", TILE as u32)?;
    kernel.option("GROUP", GROUP as u32)?;
    kernel.option("SPLIT", u32::from(split))?;
    kernel.option("CAPPED", u32::from(fixed.softcap.is_some()))?;
    kernel.option("ROUND", u32::from(fixed.compute == Compute::Bf16))?;
    kernel.read("q", q)?;
    let keys = Part::read(k);
    kernel.part("k", if aligned(k, 4) { keys.quads() } else { keys })?;
    kernel.read("v", v)?;
    kernel.optional("mask", mask)?;
    kernel.workspace("scratch", launch, plan.scratch_bytes)?;
    kernel.optional_write("o", (!split).then_some(o))?;
    // Where the keys are split, rows end in the join.
    sinks(&mut kernel, operands.optional(SINKS).filter(|_| !split))?;
    addressing(&mut kernel, fixed, table)?;
    for (names, view) in [(["q_token", "q_head", "q_step"], q), (["o_token", "o_head", "o_step"], o)] {
        for (name, &stride) in names.into_iter().zip(view.strides()) {
            kernel.param(name, stride)?;
        }
    }
    let names = [["k_block", "k_head", "k_slot", "k_step"], ["v_block", "v_head", "v_slot", "v_step"]];
    for (names, view) in names.into_iter().zip([k, v]) {
        let strides = match *view.strides() {
            [block, head, slot, step] => [block, head, slot, step],
            [slot, head, step] => [0, head, slot, step],
            _ => [0; 4],
        };
        for (name, stride) in names.into_iter().zip(strides) {
            kernel.param(name, stride)?;
        }
    }
    let strides = match *mask.map_or(&[][..], |mask| mask.strides()) {
        [head, token, step] => [head, token, step],
        [token, step] => [0, token, step],
        _ => [0; 3],
    };
    for (name, stride) in ["mask_head", "mask_token", "mask_step"].into_iter().zip(strides) {
        kernel.param(name, stride)?;
    }
    kernel.param("sequences", call.sequences)?;
    kernel.param("heads", fixed.num_heads)?;
    kernel.param("kv_heads", fixed.num_kv_heads)?;
    kernel.param("blocks", plan.blocks)?;
    kernel.param("splits", plan.splits)?;
    kernel.param("partials", call.sequences * SEQUENCE)?;
    kernel.param_f32("scale", fixed.scale.get())?;
    kernel.param_f32("softcap", fixed.softcap.map_or(0.0, |cap| cap.get()))?;
    kernel.param_f32("least", f32::NEG_INFINITY)?;
    kernel.dispatch_linear(plan.workgroups(fixed, call))
}

/// The sinks' logits, where the kernel ends rows that have some.
fn sinks<'a>(kernel: &mut Call<'a>, sinks: Option<&View<'a>>) -> Result<()> {
    kernel.optional("sinks", sinks)?;
    kernel.param("sinks_step", sinks.map_or(0, |sinks| sinks.strides()[0]))
}

fn join(
    launch: &Launch<'_>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    operands: Operands<'_>,
    plan: &Plan,
) -> Result<()> {
    let o = operands.output(Attention::NAME, O, "o")?.view();
    let mut kernel = Call::new(launch, "attention.wgpu.join", JOIN)?;
    kernel.option("HEAD_DIM", fixed.head_dim as u32)?;
    kernel.workspace("scratch", launch, plan.scratch_bytes)?;
    kernel.write("o", o)?;
    sinks(&mut kernel, operands.optional(SINKS))?;
    for (name, &stride) in ["o_token", "o_head", "o_step"].into_iter().zip(o.strides()) {
        kernel.param(name, stride)?;
    }
    let rows = call.tokens * fixed.num_heads;
    kernel.param("rows", rows)?;
    kernel.param("heads", fixed.num_heads)?;
    kernel.param("splits", plan.splits)?;
    kernel.param("partials", call.sequences * SEQUENCE)?;
    kernel.param_f32("least", f32::NEG_INFINITY)?;
    kernel.dispatch_linear(rows)
}
