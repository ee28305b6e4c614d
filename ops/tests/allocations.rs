//! A planned step allocates nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinew_memory::{Cpu, SimdLevel};
use sinew_ops::layers::{
    Activation, Attention, AttentionStatic, Combine, CombineOptions, Compute, Dispatch, Embedding, GroupedLinear,
    GroupedLinearOptions, Inputs, KvAppend, KvSource, Linear, LinearOptions, Norm, NormOptions, NormedLinear,
    PackedWeight, Rotary, Route, RouteOptions, Routing, Sequences, WeightPacker, WeightRows,
};
use sinew_ops::{Context, Policy, Result};
use sinew_tensor::{DType, Tensor};

#[path = "../../tests/common/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const WIDTH: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const MLP: usize = 512;
const EXPERTS: usize = 6;
const TOP_K: usize = 2;
const VOCAB: usize = 300;
const BLOCK: usize = 16;
const BLOCKS: usize = 64;
const ROWS: usize = 8;
const STEPS: usize = 200;
/// Keys of each sequence at a step: from a part of a tile over several powers of two to two groups of tiles.
fn keys(step: usize) -> usize {
    ROWS + 4 * step
}
const _: () = assert!(ROWS + 4 * STEPS <= BLOCK * BLOCKS);

/// A decoder of one layer, whose feed-forward is followed by one of experts.
struct Layers {
    embedding: Embedding,
    norm: Norm,
    qkv: NormedLinear,
    rotary: Rotary,
    append: KvAppend,
    attention: Attention,
    out: Linear,
    gate_up: Linear,
    down: Linear,
    router: Linear,
    route: Route,
    dispatch: Dispatch,
    experts_gate_up: GroupedLinear,
    experts_down: GroupedLinear,
    combine: Combine,
    head: Linear,
}

/// Its buffers for a number of rows.
struct Buffers {
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    query_start: Tensor,
    kv_len: Tensor,
    block_table: Tensor,
    hidden: Tensor,
    normed: Tensor,
    qkv: Tensor,
    attended: Tensor,
    gated: Tensor,
    router_logits: Tensor,
    routing: Routing,
    sorted: Tensor,
    experts_gated: Tensor,
    experts_out: Tensor,
    logits: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
}

fn weight(ctx: &Context, rows: &[usize], k: usize, gated: bool) -> Result<Arc<PackedWeight>> {
    packed(ctx, WeightPacker::new(ctx, DType::BF16, rows, k, gated)?, rows, k)
}

fn experts(ctx: &Context, rows: &[usize], k: usize, gated: bool) -> Result<Arc<PackedWeight>> {
    packed(ctx, WeightPacker::grouped(ctx, DType::BF16, EXPERTS, rows, k, gated)?, rows, k)
}

fn packed(ctx: &Context, mut packer: WeightPacker, rows: &[usize], k: usize) -> Result<Arc<PackedWeight>> {
    let bytes: Vec<u8> =
        (0..rows.iter().sum::<usize>() * k).flat_map(|i| ((i % 7) as f32 / 64.0).to_le_bytes()).collect();
    for slice in packer.slices(1 << 20) {
        let pieces = slice.rows.iter().map(|(_, range)| {
            WeightRows::from_bytes(&bytes[range.start * k * 4..range.end * k * 4], DType::F32, range.len(), k)
        });
        packer.pack(ctx, &slice, &pieces.collect::<std::result::Result<Vec<_>, _>>()?)?;
    }
    Ok(Arc::new(packer.finish()?))
}

impl Layers {
    fn new(ctx: &Context) -> Result<Self> {
        let (f32, bf16, compute) = (DType::F32, DType::BF16, Compute::Bf16);
        let linear =
            |rows: &[usize], k, gated: bool, options| Linear::new(ctx, weight(ctx, rows, k, gated)?, options, ROWS);
        let gates = LinearOptions { gated: Some(Activation::Silu), ..LinearOptions::new(bf16, bf16, compute) };
        let attention = AttentionStatic {
            causal: true,
            kv_source: KvSource::Paged { block_size: BLOCK },
            ..AttentionStatic::new(HEADS, KV_HEADS, HEAD_DIM, [bf16; 3], compute)
        };
        let inv_freq: Vec<f64> = (0..HEAD_DIM / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / HEAD_DIM as f64)).collect();
        let table = ctx.tensor(&vec![0.01f32; VOCAB * WIDTH], &[VOCAB, WIDTH])?;
        let ones = ctx.tensor(&[1.0f32; WIDTH], &[WIDTH])?;
        let norm = NormOptions::rms(1e-6, ones, f32, bf16);
        let kv_width = KV_HEADS * HEAD_DIM;
        Ok(Self {
            embedding: Embedding::table(ctx, table, f32)?,
            qkv: NormedLinear::new(
                ctx,
                Some(norm.clone()),
                weight(ctx, &[WIDTH, kv_width, kv_width], WIDTH, false)?,
                LinearOptions::new(bf16, bf16, compute),
                ROWS,
            )?,
            norm: Norm::new(ctx, norm, ROWS)?,
            rotary: Rotary::new(ctx, &inv_freq, 1.0, BLOCK * BLOCKS, HEAD_DIM, bf16)?,
            append: KvAppend::new(ctx, KV_HEADS, HEAD_DIM, bf16, bf16, BLOCK)?,
            attention: Attention::new(ctx, attention, ROWS, BLOCK * BLOCKS)?,
            out: linear(&[WIDTH], WIDTH, false, LinearOptions::new(bf16, f32, compute).accumulate())?,
            gate_up: linear(&[MLP, MLP], WIDTH, true, gates)?,
            down: linear(&[WIDTH], MLP, false, LinearOptions::new(bf16, f32, compute).accumulate())?,
            router: linear(&[EXPERTS], WIDTH, false, LinearOptions::new(bf16, f32, compute))?,
            route: Route::new(ctx, RouteOptions { experts: EXPERTS, top_k: TOP_K, renormalize: true }, ROWS)?,
            dispatch: Dispatch::new(ctx, bf16, WIDTH)?,
            experts_gate_up: GroupedLinear::new(
                ctx,
                experts(ctx, &[MLP, MLP], WIDTH, true)?,
                GroupedLinearOptions {
                    bias: Some(ctx.tensor(&vec![0.5f32; EXPERTS * 2 * MLP], &[EXPERTS, 2 * MLP])?),
                    gated: Some(Activation::Silu),
                    ..GroupedLinearOptions::new(bf16, bf16, compute)
                },
                ROWS * TOP_K,
            )?,
            experts_down: GroupedLinear::new(
                ctx,
                experts(ctx, &[WIDTH], MLP, false)?,
                GroupedLinearOptions::new(bf16, f32, compute),
                ROWS * TOP_K,
            )?,
            combine: Combine::new(
                ctx,
                CombineOptions { width: WIDTH, top_k: TOP_K, input: f32, output: f32, accumulate: true },
                ROWS,
            )?,
            head: linear(&[VOCAB], WIDTH, false, LinearOptions::new(bf16, f32, compute))?,
        })
    }

    /// Step `step` of `rows` sequences of one token each, from ids to logits.
    fn step(&self, ctx: &Context, b: &mut Buffers, step: usize) -> Result<()> {
        let rows = b.ids.shape()[0];
        // All sequences read the same blocks, and each writes its last key to a slot of its own.
        let keys = keys(step);
        ctx.upload(&[keys as i32; ROWS][..rows], &mut b.kv_len)?;
        ctx.upload(&[keys as i32 - 1; ROWS][..rows], &mut b.positions)?;
        let slots: [i64; ROWS] = std::array::from_fn(|row| (keys - 1 - row) as i64);
        ctx.upload(&slots[..rows], &mut b.slots)?;
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        self.embedding.run(ctx, b.ids.view(), b.hidden.view_mut()?)?;
        self.qkv.run(ctx, b.hidden.view(), Some(b.normed.view_mut()?), b.qkv.view_mut()?)?;
        let turned = b.qkv.view_mut()?.narrow(1, 0, q + kv)?.reshape(&[rows, HEADS + KV_HEADS, HEAD_DIM])?;
        self.rotary.run_in_place(ctx, turned, b.positions.view())?;
        let part =
            |start, heads: usize| b.qkv.view().narrow(1, start, heads * HEAD_DIM)?.reshape(&[rows, heads, HEAD_DIM]);
        let (k, v) = (part(q, KV_HEADS)?, part(q + kv, KV_HEADS)?);
        let caches = [b.k_cache.view_mut()?, b.v_cache.view_mut()?];
        self.append.run(ctx, [k, v], None, b.slots.view(), caches)?;
        let inputs =
            Inputs { q: part(0, HEADS)?, k: b.k_cache.view(), v: b.v_cache.view(), mask: None, old: None, sinks: None };
        let of = Sequences {
            query_start: b.query_start.view(),
            kv_len: b.kv_len.view(),
            block_table: Some(b.block_table.view()),
            max_query: 1,
            max_kv: keys,
        };
        self.attention.run(ctx, inputs, of, b.attended.view_mut()?)?;
        let attended = b.attended.view().reshape(&[rows, q])?;
        self.out.run(ctx, attended, b.hidden.view_mut()?)?;
        self.norm.run(ctx, b.hidden.view(), b.normed.view_mut()?)?;
        self.gate_up.run(ctx, b.normed.view(), b.gated.view_mut()?)?;
        self.down.run(ctx, b.gated.view(), b.hidden.view_mut()?)?;
        self.norm.run(ctx, b.hidden.view(), b.normed.view_mut()?)?;
        self.router.run(ctx, b.normed.view(), b.router_logits.view_mut()?)?;
        self.route.run(ctx, b.router_logits.view(), &mut b.routing)?;
        self.dispatch.run(ctx, b.normed.view(), &b.routing, b.sorted.view_mut()?)?;
        self.experts_gate_up.run(ctx, b.sorted.view(), b.routing.offsets(), b.experts_gated.view_mut()?)?;
        self.experts_down.run(ctx, b.experts_gated.view(), b.routing.offsets(), b.experts_out.view_mut()?)?;
        self.combine.run(ctx, b.experts_out.view(), &b.routing, b.hidden.view_mut()?)?;
        self.norm.run_in_place(ctx, b.hidden.view_mut()?)?;
        self.norm.run(ctx, b.hidden.view(), b.normed.view_mut()?)?;
        self.head.run(ctx, b.normed.view(), b.logits.view_mut()?)
    }
}

impl Buffers {
    fn new(ctx: &Context, rows: usize) -> Result<Self> {
        let zeros = |dtype, shape: &[usize]| Ok::<_, sinew_ops::Error>(Tensor::zeros(ctx.device(), dtype, shape)?);
        let blocks: Vec<u32> = (0..rows).flat_map(|_| 0..BLOCKS as u32).collect();
        let starts: Vec<i32> = (0..=rows as i32).collect();
        let cache = [BLOCKS, KV_HEADS, BLOCK, HEAD_DIM];
        Ok(Self {
            ids: ctx.tensor(&vec![7u32; rows], &[rows])?,
            positions: zeros(DType::I32, &[rows])?,
            slots: zeros(DType::I64, &[rows])?,
            query_start: ctx.tensor(&starts, &[rows + 1])?,
            kv_len: zeros(DType::I32, &[rows])?,
            block_table: ctx.tensor(&blocks, &[rows, BLOCKS])?,
            hidden: zeros(DType::F32, &[rows, WIDTH])?,
            normed: zeros(DType::BF16, &[rows, WIDTH])?,
            qkv: zeros(DType::BF16, &[rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM])?,
            attended: zeros(DType::BF16, &[rows, HEADS, HEAD_DIM])?,
            gated: zeros(DType::BF16, &[rows, MLP])?,
            router_logits: zeros(DType::F32, &[rows, EXPERTS])?,
            routing: Routing::new(ctx, EXPERTS, TOP_K, rows)?,
            sorted: zeros(DType::BF16, &[rows * TOP_K, WIDTH])?,
            experts_gated: zeros(DType::BF16, &[rows * TOP_K, MLP])?,
            experts_out: zeros(DType::F32, &[rows * TOP_K, WIDTH])?,
            logits: zeros(DType::F32, &[rows, VOCAB])?,
            k_cache: zeros(DType::BF16, &cache)?,
            v_cache: zeros(DType::BF16, &cache)?,
        })
    }
}

// One test alone in its file: a second would be counted too.
#[test]
fn a_planned_step_allocates_nothing() {
    for threads in [1, 2] {
        for level in SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected()) {
            let cpu = Cpu::with(threads, level).unwrap();
            let ctx = Context::on(cpu, Policy::default()).unwrap();
            let layers = Layers::new(&ctx).unwrap();
            for rows in [1, 3, ROWS] {
                let mut buffers = Buffers::new(&ctx, rows).unwrap();
                for step in 0..STEPS {
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    layers.step(&ctx, &mut buffers, step).unwrap();
                    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
                    // Threads that ran no kernel yet make room for what belongs to a thread.
                    assert_eq!(
                        allocated,
                        0,
                        "{allocated} allocations in step {step} over {} keys; {threads} threads, {level}, {rows} rows",
                        keys(step)
                    );
                }
                assert!(buffers.logits.to_vec::<f32>().unwrap().iter().all(|x| x.is_finite()));
            }
            println!("{threads} threads, {level}: {STEPS} steps of 1, 3 and {ROWS} rows, none of which allocates");
        }
    }
}
