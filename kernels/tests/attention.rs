//! Attention: the bits that must not change, and contents that are refused.

use std::sync::Arc;

use sinew_kernels::attention::{self, Attention, AttentionDynamic, AttentionStatic, KvSource, MaskKind, OldKv};
use sinew_kernels::harness::case::Generator;
use sinew_kernels::kv_append::{self, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::{Compute, Error, F32Bits, Launch, Operands, Result, Row, Table};
use sinew_memory::{Buffer, Cpu, Device, SimdLevel};
use sinew_tensor::{DType, PagedLayout, Tensor};

/// One sequence's queries, keys and values, as f32 that the dtypes hold exactly.
struct Prompt {
    fixed: AttentionStatic,
    tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// How a prompt is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    threads: usize,
    /// New tokens of each call; the last call takes what is left.
    chunk: usize,
    source: KvSource,
    /// Whether other sequences are in the call.
    company: bool,
}

impl Prompt {
    fn new(fixed: AttentionStatic, tokens: usize, seed: u64) -> Self {
        let mut pick = Generator::new(seed);
        let mut all = |heads: usize, dtype: DType| -> Vec<f32> {
            // What has scales takes any values.
            let dtype = if PagedLayout::has_scales(dtype) { DType::F32 } else { dtype };
            (0..tokens * heads * fixed.head_dim).map(|_| dtype.round(pick.normal()) as f32).collect()
        };
        let (q, k, v) =
            (all(fixed.num_heads, fixed.q), all(fixed.num_kv_heads, fixed.kv), all(fixed.num_kv_heads, fixed.kv));
        Self { fixed, tokens, q, k, v }
    }

    /// The outputs of all tokens, call by call.
    fn run(&self, row: &Row<Attention>, way: Way) -> Result<Vec<f32>> {
        let device = Cpu::with(way.threads, SimdLevel::detected())?;
        let fixed = AttentionStatic { kv_source: way.source, ..self.fixed.clone() };
        let mut out = Vec::new();
        let mut done = 0;
        let mut caches = vec![Caches::new(&device, &fixed, fixed.kv, self.tokens)?];
        if let Some(old) = fixed.old {
            caches.push(Caches::new(&device, &fixed, old.dtype, self.tokens)?);
        }
        while done < self.tokens {
            let new = way.chunk.min(self.tokens - done);
            // Two sequences of other lengths before it and one behind; they read keys of this one, which is allowed.
            let (others, mine) = if way.company {
                (vec![(3, 70), (1, 513), (new, done + new), (2, 2)], 2)
            } else {
                (vec![(new, done + new)], 0)
            };
            out.extend(self.call(&device, row, &fixed, &mut caches, &others, mine, done)?);
            done += new;
        }
        Ok(out)
    }

    #[allow(clippy::too_many_arguments)]
    fn call(
        &self,
        device: &Arc<dyn Device>,
        row: &Row<Attention>,
        fixed: &AttentionStatic,
        caches: &mut [Caches],
        sequences: &[(usize, usize)],
        mine: usize,
        done: usize,
    ) -> Result<Vec<f32>> {
        let width = fixed.head_dim * fixed.num_heads;
        let kv_width = fixed.head_dim * fixed.num_kv_heads;
        let tokens: usize = sequences.iter().map(|s| s.0).sum();
        let before: usize = sequences[..mine].iter().map(|s| s.0).sum();
        let mut q: Vec<f32> = (0..tokens * width).map(|i| (i % 97) as f32 / 32.0 - 1.5).collect();
        let new = sequences[mine].0;
        q[before * width..(before + new) * width].copy_from_slice(&self.q[done * width..(done + new) * width]);
        let q = tensor(device, fixed.q, &q, &[tokens, fixed.num_heads, fixed.head_dim])?;
        let mut starts = vec![0i32];
        starts.extend(sequences.iter().scan(0, |at, s| {
            *at += s.0 as i32;
            Some(*at)
        }));
        let lens: Vec<i32> = sequences.iter().map(|s| s.1 as i32).collect();
        let max_kv = sequences.iter().map(|s| s.1).max().unwrap_or(0);
        let mut paged = vec![];
        let dense = match fixed.kv_source {
            KvSource::Dense => {
                let part = |all: &[f32]| -> Result<Tensor> {
                    let mut values = Vec::new();
                    for (s, &(_, keys)) in sequences.iter().enumerate() {
                        let there = if s == mine { keys } else { keys.min(done + new) };
                        values.extend_from_slice(&all[..there * kv_width]);
                        values.resize(values.len() + (keys - there) * kv_width, 0.5);
                    }
                    let keys = values.len() / kv_width;
                    tensor(device, fixed.kv, &values, &[keys, fixed.num_kv_heads, fixed.head_dim])
                };
                Some((part(&self.k)?, part(&self.v)?))
            }
            KvSource::Paged { block_size } => {
                let range = done * kv_width..(done + new) * kv_width;
                let columns = max_kv.div_ceil(block_size);
                let before = |position: usize| fixed.old.map_or(0, |old| old.before(position));
                let seen = [before(done)..self.tokens, 0..before(done + new - 1)];
                for (caches, seen) in caches.iter_mut().zip(seen) {
                    caches.append(device, fixed, done, new, &self.k[range.clone()], &self.v[range.clone()])?;
                    // The others' later keys lie in blocks that are all zeros; what is behind, or seen in the other form
                    // only, is never read.
                    let blocks = seen.start / block_size..seen.end.div_ceil(block_size);
                    let of_mine = |b| caches.blocks.get(b).filter(|_| blocks.contains(&b)).copied().unwrap_or(u32::MAX);
                    let ids = (0..sequences.len() * columns).map(|i| match i / columns == mine {
                        true => of_mine(i % columns),
                        false => caches.zeros,
                    });
                    let ids = Tensor::from_slice(device, &ids.collect::<Vec<_>>(), &[sequences.len(), columns])?;
                    paged.push((caches.k.clone(), caches.v.clone(), ids));
                }
                None
            }
        };
        let (k, v) = dense.as_ref().map_or_else(|| (&paged[0].0, &paged[0].1), |(k, v)| (k, v));
        let starts = Tensor::from_slice(device, &starts, &[sequences.len() + 1])?;
        let lens = Tensor::from_slice(device, &lens, &[sequences.len()])?;
        let call = AttentionDynamic {
            sequences: sequences.len(),
            tokens,
            max_query: sequences.iter().map(|s| s.0).max().unwrap_or(0),
            max_kv,
        };
        let mut o = Tensor::zeros(device, fixed.out, q.shape())?;
        let sinks: Vec<f32> = (0..fixed.num_heads).map(|head| head as f32 - 1.5).collect();
        let sinks = fixed.sinks.then(|| Tensor::from_slice(device, &sinks, &[fixed.num_heads])).transpose()?;
        let inputs = [
            Some(q.view()),
            Some(k.view()),
            Some(v.view()),
            Some(starts.view()),
            Some(lens.view()),
            paged.first().map(|(_, _, table)| table.view()),
            None,
            paged.get(1).map(|(k, _, _)| k.view()),
            paged.get(1).map(|(_, v, _)| v.view()),
            paged.get(1).map(|(_, _, table)| table.view()),
            sinks.as_ref().map(Tensor::view),
        ];
        launch(device, row, fixed, &call, &inputs, &mut o)?;
        let o = o.to_vec::<f32>()?;
        Ok(o[before * width..(before + new) * width].to_vec())
    }
}

/// Paged caches, full of NaN but for what was appended, and the blocks of the one sequence.
struct Caches {
    k: Tensor,
    v: Tensor,
    blocks: Vec<u32>,
    zeros: u32,
    block_size: usize,
    kv: DType,
}

impl Caches {
    fn new(device: &Arc<dyn Device>, fixed: &AttentionStatic, kv: DType, tokens: usize) -> Result<Self> {
        let block_size = if let KvSource::Paged { block_size } = fixed.kv_source { block_size } else { 1 };
        let count = tokens.div_ceil(block_size);
        let layout = PagedLayout::new(count + 5, fixed.num_kv_heads, block_size, fixed.head_dim, kv)?;
        let zeros = count + 2;
        let cache = || -> Result<Tensor> {
            // All bits are NaN in every dtype but int8, and in the scales of that.
            let mut bytes = vec![0xff; layout.bytes()];
            bytes[zeros * layout.bytes_per_block()..][..layout.bytes_per_block()].fill(0);
            Ok(Tensor::from_bytes(device, &bytes, layout.stored(), layout.layout().shape())?)
        };
        // A stride that shares no factor with the count visits every block once, in no simple order.
        let stride = (count / 2 + 1..).find(|s| gcd(*s, count) == 1).unwrap_or(1);
        let blocks = (0..count).map(|b| (b * stride % count) as u32).collect();
        Ok(Self { k: cache()?, v: cache()?, blocks, zeros: zeros as u32, block_size, kv })
    }

    fn append(
        &mut self,
        device: &Arc<dyn Device>,
        fixed: &AttentionStatic,
        done: usize,
        new: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<()> {
        let size = self.block_size;
        let slots: Vec<i64> =
            (done..done + new).map(|t| i64::from(self.blocks[t / size]) * size as i64 + (t % size) as i64).collect();
        let shape = [new, fixed.num_kv_heads, fixed.head_dim];
        let (k, v) = (Tensor::from_slice(device, k, &shape)?, Tensor::from_slice(device, v, &shape)?);
        let slots = Tensor::from_slice(device, &slots, &[new])?;
        let problem = KvAppendStatic {
            num_kv_heads: fixed.num_kv_heads,
            head_dim: fixed.head_dim,
            source: DType::F32,
            kv: self.kv,
            block_size: size,
            rotary: None,
        };
        let inputs = [Some(k.view()), Some(v.view()), Some(slots.view())];
        let outputs = [self.k.view_mut()?, self.v.view_mut()?];
        let stream = device.clone().stream()?;
        let rows = kv_append::rows();
        let row = rows.first().expect("rows");
        let call = KvAppendDynamic { tokens: new };
        let mut workspace = Buffer::uninitialised(device, (row.workspace)(&problem, &call, device.hardware()))?;
        let operands = Operands { inputs: &inputs, outputs: &outputs };
        row.launch(&Launch::new(&stream, Some(&mut workspace))?, &problem, &call, operands)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn tensor(device: &Arc<dyn Device>, dtype: DType, values: &[f32], shape: &[usize]) -> Result<Tensor> {
    let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    Ok(Tensor::from_bytes(device, &sinew_kernels::harness::case::encode(dtype, &values), dtype, shape)?)
}

fn launch(
    device: &Arc<dyn Device>,
    row: &Row<Attention>,
    fixed: &AttentionStatic,
    call: &AttentionDynamic,
    inputs: &[Option<sinew_tensor::View<'_>>],
    o: &mut Tensor,
) -> Result<()> {
    let stream = device.clone().stream()?;
    let mut workspace = Buffer::uninitialised(device, (row.workspace)(fixed, call, device.hardware()))?;
    // Scratch may hold anything.
    workspace.as_mut_slice::<u8>()?.fill(0xff);
    let outputs = [o.view_mut()?];
    row.launch(&Launch::new(&stream, Some(&mut workspace))?, fixed, call, Operands { inputs, outputs: &outputs })
}

fn plain(num_heads: usize, num_kv_heads: usize, head_dim: usize, kv: DType, compute: Compute) -> AttentionStatic {
    let dtypes = [DType::F32, kv, DType::F32];
    AttentionStatic { causal: true, ..AttentionStatic::new(num_heads, num_kv_heads, head_dim, dtypes, compute) }
}

/// The same with old keys of `dtype` in another cache.
fn with_old(fixed: AttentionStatic, dtype: DType, recent: usize) -> AttentionStatic {
    let kv_source = KvSource::Paged { block_size: 16 };
    AttentionStatic { old: Some(OldKv { dtype, recent }), kv_source, ..fixed }
}

/// The same with a sink for each head.
fn with_sinks(fixed: AttentionStatic) -> AttentionStatic {
    AttentionStatic { sinks: true, ..fixed }
}

/// The same over a cache with scales.
fn scaled(num_heads: usize, num_kv_heads: usize, head_dim: usize, kv: DType, compute: Compute) -> AttentionStatic {
    let kv_source = KvSource::Paged { block_size: 16 };
    AttentionStatic { kv_source, ..plain(num_heads, num_kv_heads, head_dim, kv, compute) }
}

fn rows_for(fixed: &AttentionStatic) -> Vec<Row<Attention>> {
    let hardware = Cpu::get().hardware().capped(SimdLevel::detected());
    let table = Table::new(attention::rows());
    let (rows, _) = table.candidates(fixed, &hardware);
    rows.into_iter().copied().collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_same_bits_in_any_chunks_blocks_threads_and_company() -> Result<()> {
    let paged = |block_size| KvSource::Paged { block_size };
    let all = usize::MAX;
    let way = |threads, chunk, source, company| Way { threads, chunk, source, company };
    let ways = [
        way(1, 1, paged(16), false),
        way(2, 1, paged(8), true),
        way(5, 1, KvSource::Dense, false),
        way(1, 7, paged(64), true),
        way(2, 7, KvSource::Dense, true),
        way(5, 7, paged(128), false),
        way(1, 64, paged(8), false),
        way(2, 64, paged(16), true),
        way(5, 64, paged(64), false),
        way(1, all, paged(128), true),
        way(2, all, paged(16), false),
        way(5, all, paged(8), true),
        way(2, all, KvSource::Dense, false),
    ];
    for (fixed, tokens) in [
        (plain(6, 2, 20, DType::F32, Compute::F32), 600),
        (plain(7, 1, 64, DType::BF16, Compute::Bf16), 580),
        (AttentionStatic { window: Some(90), ..plain(2, 2, 33, DType::F16, Compute::Bf16) }, 1100),
        (AttentionStatic { softcap: Some(F32Bits::new(2.0)), ..plain(3, 3, 16, DType::BF16, Compute::Bf16) }, 1050),
        (scaled(7, 1, 64, DType::I8, Compute::Bf16), 580),
        (scaled(4, 2, 33, DType::I8, Compute::F32), 560),
        (AttentionStatic { window: Some(90), ..scaled(6, 2, 64, DType::F8E4M3, Compute::Bf16) }, 1100),
        (AttentionStatic { softcap: Some(F32Bits::new(2.0)), ..scaled(3, 3, 20, DType::F8E4M3, Compute::F32) }, 1050),
        (with_old(plain(7, 1, 64, DType::BF16, Compute::Bf16), DType::I8, 100), 580),
        (with_old(plain(4, 2, 33, DType::F32, Compute::F32), DType::F8E4M3, 1), 560),
        (
            AttentionStatic {
                window: Some(300),
                ..with_old(plain(6, 2, 20, DType::F16, Compute::Bf16), DType::I8, 130)
            },
            1100,
        ),
        (with_sinks(plain(6, 2, 20, DType::F32, Compute::F32)), 600),
        (with_sinks(plain(7, 1, 64, DType::BF16, Compute::Bf16)), 580),
        (with_sinks(AttentionStatic { window: Some(90), ..scaled(6, 2, 64, DType::I8, Compute::Bf16) }), 1100),
        (with_sinks(with_old(plain(4, 2, 33, DType::F32, Compute::F32), DType::F8E4M3, 100)), 560),
    ] {
        let prompt = Prompt::new(fixed.clone(), tokens, 7);
        let dense = !PagedLayout::has_scales(fixed.kv) && fixed.old.is_none();
        for row in rows_for(&fixed) {
            let first = prompt.run(&row, way(1, all, if dense { KvSource::Dense } else { paged(16) }, false))?;
            assert!(first.iter().all(|x| x.is_finite()));
            for way in ways.into_iter().filter(|way| dense || way.source != KvSource::Dense) {
                let other = prompt.run(&row, way)?;
                let differs = bits(&first).iter().zip(&bits(&other)).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{} {fixed} {way:?}", row.name);
            }
        }
    }
    Ok(())
}

#[test]
fn a_token_sees_keys_before_the_tile_of_its_recent_ones_as_codes_and_no_others() -> Result<()> {
    let (recent, tokens) = (100, 500);
    for (kv, compute) in [(DType::F32, Compute::F32), (DType::BF16, Compute::Bf16)] {
        for dtype in [DType::I8, DType::F8E4M3] {
            let full =
                AttentionStatic { kv_source: KvSource::Paged { block_size: 16 }, ..plain(4, 2, 24, kv, compute) };
            let mixed = with_old(full.clone(), dtype, recent);
            let way = Way { threads: 2, chunk: 70, source: full.kv_source, company: false };
            for row in rows_for(&mixed) {
                let width = 4 * 24;
                let (a, b) = (Prompt::new(full.clone(), tokens, 3), Prompt::new(mixed.clone(), tokens, 3));
                let (a, b) = (a.run(&row, way)?, b.run(&row, way)?);
                // Up to position 162 nothing is old.
                let first = 163;
                assert_eq!(bits(&a[..first * width]), bits(&b[..first * width]), "{}", row.name);
                assert_ne!(bits(&a[first * width..][..width]), bits(&b[first * width..][..width]), "{}", row.name);
                let furthest = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let most = if dtype == DType::I8 { 0.02 } else { 0.1 };
                assert!(furthest < most, "{}: {furthest}", row.name);
                // With as many recent ones as there are tokens nothing ever is.
                let all = with_old(full.clone(), dtype, tokens);
                assert_eq!(bits(&a), bits(&Prompt::new(all, tokens, 3).run(&row, way)?), "{}", row.name);
            }
        }
    }
    Ok(())
}

#[test]
fn old_keys_are_refused_where_they_have_no_place() {
    let blocks = KvSource::Paged { block_size: 16 };
    let full = AttentionStatic { kv_source: blocks, ..plain(2, 1, 8, DType::F32, Compute::F32) };
    let dense = AttentionStatic { kv_source: KvSource::Dense, ..with_old(full.clone(), DType::I8, 5) };
    let bad = [
        dense,
        with_old(full.clone(), DType::BF16, 5),
        with_old(full.clone(), DType::I8, 0),
        with_old(scaled(2, 1, 8, DType::I8, Compute::F32), DType::F8E4M3, 5),
    ];
    let device = Cpu::get();
    let call = AttentionDynamic { sequences: 1, tokens: 1, max_query: 1, max_kv: 1 };
    for fixed in bad {
        let q = Tensor::zeros(&device, DType::F32, &[1, 2, 8]).expect("queries");
        let mut o = Tensor::zeros(&device, DType::F32, &[1, 2, 8]).expect("room for results");
        let error = launch(&device, &attention::rows()[0], &fixed, &call, &[Some(q.view())], &mut o);
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("old keys are int8 or fp8"), "{error}");
    }
}

#[test]
fn in_bf16_a_result_depends_on_rounded_queries_alone() -> Result<()> {
    let fixed = plain(4, 2, 24, DType::BF16, Compute::Bf16);
    let way = Way { threads: 1, chunk: usize::MAX, source: KvSource::Dense, company: false };
    let given = Prompt::new(fixed.clone(), 70, 5);
    let mut rounded = Prompt::new(fixed.clone(), 70, 5);
    rounded.q.iter_mut().for_each(|x| *x = DType::BF16.round(f64::from(*x)) as f32);
    assert_ne!(given.q, rounded.q);
    for row in rows_for(&fixed) {
        assert_eq!(bits(&given.run(&row, way)?), bits(&rounded.run(&row, way)?), "{}", row.name);
    }
    Ok(())
}

/// Weights of values that are all 1 add up to 1, but for what rounding each of them does. Cut off instead, they would
/// lack a 500th on average.
#[test]
fn rounded_weights_are_not_biased() -> Result<()> {
    let fixed = AttentionStatic { causal: false, ..plain(8, 1, 16, DType::BF16, Compute::Bf16) };
    let way = Way { threads: 1, chunk: usize::MAX, source: KvSource::Dense, company: false };
    let mut prompt = Prompt::new(fixed.clone(), 200, 3);
    prompt.v.fill(1.0);
    for row in rows_for(&fixed) {
        let out = prompt.run(&row, way)?;
        let mean = out.iter().map(|&x| f64::from(x) - 1.0).sum::<f64>() / out.len() as f64;
        assert!(mean.abs() < 2e-4, "{}: {mean}", row.name);
    }
    Ok(())
}

#[test]
fn keys_that_a_token_does_not_see_do_not_reach_it_even_if_they_are_not_finite() -> Result<()> {
    let kinds = [
        plain(4, 2, 24, DType::F32, Compute::F32),
        plain(4, 2, 24, DType::BF16, Compute::Bf16),
        scaled(4, 2, 24, DType::I8, Compute::F32),
        scaled(4, 2, 24, DType::I8, Compute::Bf16),
        scaled(4, 2, 24, DType::F8E4M3, Compute::Bf16),
    ];
    for kind in kinds {
        for window in [None, Some(40)] {
            let fixed = AttentionStatic { window, ..kind.clone() };
            let clean = Prompt::new(fixed.clone(), 300, 11);
            let mut wild = Prompt::new(fixed.clone(), 300, 11);
            let width = 2 * 24;
            // Key 101 and value 202 are seen by later tokens only.
            wild.k[101 * width..102 * width].fill(f32::NAN);
            wild.v[202 * width..203 * width].fill(f32::INFINITY);
            for row in rows_for(&fixed) {
                for chunk in [usize::MAX, 50] {
                    let way = Way { threads: 2, chunk, source: KvSource::Paged { block_size: 16 }, company: false };
                    let (a, b) = (clean.run(&row, way)?, wild.run(&row, way)?);
                    let width = 4 * 24;
                    assert_eq!(bits(&a[..101 * width]), bits(&b[..101 * width]), "{}", row.name);
                    let behind = window.unwrap_or(300);
                    let (seen, unseen) = ((101 + behind).min(202), (202 + behind).min(300));
                    assert!(b[101 * width..seen * width].iter().all(|x| x.is_nan()), "{}", row.name);
                    assert_eq!(
                        bits(&a[seen * width..202 * width]),
                        bits(&b[seen * width..202 * width]),
                        "{}",
                        row.name
                    );
                    assert!(b[202 * width..unseen * width].iter().all(|x| !x.is_finite()), "{}", row.name);
                    assert_eq!(bits(&a[unseen * width..]), bits(&b[unseen * width..]), "{}", row.name);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_least_finite_number_of_a_mask_forbids_no_key_and_the_largest_all_others() -> Result<()> {
    // Keys in two groups, whose results are merged; all have the same score but for the mask.
    const KEYS: usize = 700;
    let device = Cpu::get();
    let least = f32::MIN;
    let lower = |j: usize| if j < KEYS / 2 { 2.0 } else { 4.0 };
    let masks: [(&dyn Fn(usize) -> f32, f32); 5] = [
        (&|_| least, 3.0),
        (&|j| if j < KEYS / 2 { least } else { f32::NEG_INFINITY }, 2.0),
        (&|j| if j < KEYS / 2 { least } else { 0.0 }, 4.0),
        (&|j| if j == 600 { f32::MAX } else { 0.0 }, 4.0),
        (&|_| f32::NEG_INFINITY, 0.0),
    ];
    for scale in [1.0, 0.0, -1.0] {
        for compute in [Compute::F32, Compute::Bf16] {
            let kv = if compute == Compute::Bf16 { DType::BF16 } else { DType::F32 };
            let mask = Some(MaskKind::Additive(DType::F32));
            let fixed =
                AttentionStatic { scale: F32Bits::new(scale), causal: false, mask, ..plain(1, 1, 1, kv, compute) };
            let call = AttentionDynamic { sequences: 1, tokens: 1, max_query: 1, max_kv: KEYS };
            let q = Tensor::from_slice(&device, &[1.0f32], &[1, 1, 1])?;
            let k = tensor(&device, kv, &[1.0; KEYS], &[KEYS, 1, 1])?;
            let v = tensor(&device, kv, &(0..KEYS).map(lower).collect::<Vec<_>>(), &[KEYS, 1, 1])?;
            let starts = Tensor::from_slice(&device, &[0i32, 1], &[2])?;
            let lens = Tensor::from_slice(&device, &[KEYS as i32], &[1])?;
            for row in rows_for(&fixed) {
                for (mask, expected) in &masks {
                    let mask = tensor(&device, DType::F32, &(0..KEYS).map(mask).collect::<Vec<_>>(), &[1, KEYS])?;
                    let operands = [&q, &k, &v, &starts, &lens].map(|tensor| Some(tensor.view()));
                    let inputs: Vec<_> = operands.into_iter().chain([None, Some(mask.view())]).collect();
                    let mut o = Tensor::zeros(&device, fixed.out, &[1, 1, 1])?;
                    launch(&device, &row, &fixed, &call, &inputs, &mut o)?;
                    assert_eq!(o.to_vec::<f32>()?, [*expected], "{} with scale {scale}", row.name);
                }
            }
        }
    }
    Ok(())
}

/// The result of one token over these many keys, all of which have the score `scale` and the value 1.
fn over_equal_keys(
    row: &Row<Attention>,
    fixed: &AttentionStatic,
    keys: usize,
    sinks: Option<(&[f32], DType)>,
) -> Result<Vec<f32>> {
    let device = Cpu::get();
    let call = AttentionDynamic { sequences: 1, tokens: 1, max_query: 1, max_kv: keys };
    let q = Tensor::from_slice(&device, &vec![1.0f32; fixed.num_heads], &[1, fixed.num_heads, 1])?;
    let ones = tensor(&device, fixed.kv, &vec![1.0; keys * fixed.num_kv_heads], &[keys, fixed.num_kv_heads, 1])?;
    let starts = Tensor::from_slice(&device, &[0i32, 1], &[2])?;
    let lens = Tensor::from_slice(&device, &[keys as i32], &[1])?;
    let sinks = sinks.map(|(sinks, dtype)| tensor(&device, dtype, sinks, &[sinks.len()])).transpose()?;
    let operands = [&q, &ones, &ones, &starts, &lens].map(|tensor| Some(tensor.view()));
    let inputs: Vec<_> = operands.into_iter().chain([None; 5]).chain([sinks.as_ref().map(Tensor::view)]).collect();
    let mut o = Tensor::zeros(&device, fixed.out, q.shape())?;
    launch(&device, row, fixed, &call, &inputs, &mut o)?;
    Ok(o.to_vec::<f32>()?)
}

#[test]
fn a_sink_takes_its_share_of_the_weight_of_its_head() -> Result<()> {
    // Keys in one group, and in two.
    for keys in [10, 700] {
        for (scale, kv, compute) in
            [(1.0, DType::F32, Compute::F32), (0.5, DType::BF16, Compute::Bf16), (-2.0, DType::F32, Compute::F32)]
        {
            let fixed = AttentionStatic { scale: F32Bits::new(scale), ..plain(6, 3, 1, kv, compute) };
            let all = (keys as f32).ln() + scale;
            // As much as all keys, three times as much, no more than rounding takes, nothing, far too much.
            let sinks = [all, all + 3f32.ln(), all - 40.0, f32::NEG_INFINITY, 3e38, f32::INFINITY];
            for row in rows_for(&fixed) {
                let found = over_equal_keys(&row, &with_sinks(fixed.clone()), keys, Some((&sinks, DType::F32)))?;
                let without = over_equal_keys(&row, &fixed, keys, None)?;
                assert!((found[0] - 0.5).abs() < 1e-6 && (found[1] - 0.25).abs() < 1e-6, "{} {found:?}", row.name);
                assert_eq!(bits(&found[2..4]), bits(&without[2..4]), "{}", row.name);
                assert_eq!(bits(&found[4..]), [0; 2], "{}", row.name);
                // One that is no number makes such of its head alone, and without a key nothing.
                let nan = [f32::NAN, all, all, all, all, all];
                let found = over_equal_keys(&row, &with_sinks(fixed.clone()), keys, Some((&nan, DType::F32)))?;
                assert!(found[0].is_nan() && found[1..].iter().all(|x| x.is_finite()), "{} {found:?}", row.name);
                let bidirectional = with_sinks(AttentionStatic { causal: false, ..fixed.clone() });
                let found = over_equal_keys(&row, &bidirectional, 0, Some((&nan, DType::F32)))?;
                assert_eq!(bits(&found), [0; 6], "{}", row.name);
            }
        }
    }
    Ok(())
}

#[test]
fn sinks_are_given_where_the_problem_has_them_in_f32_for_each_head() {
    let fixed = plain(2, 1, 1, DType::F32, Compute::F32);
    for (fixed, sinks, words) in [
        (fixed.clone(), Some((&[0.0; 2][..], DType::F32)), "sinks are given, but the problem has none"),
        (with_sinks(fixed.clone()), None, "sinks (input 10) is missing"),
        (with_sinks(fixed.clone()), Some((&[0.0; 3][..], DType::F32)), "expected f32 of shape [2]"),
        (with_sinks(fixed), Some((&[0.0; 2][..], DType::BF16)), "expected f32 of shape [2]"),
    ] {
        let error = over_equal_keys(&attention::rows()[0], &fixed, 3, sinks).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn contents_that_would_reach_outside_are_refused() -> Result<()> {
    let device = Cpu::get();
    let fixed =
        AttentionStatic { kv_source: KvSource::Paged { block_size: 4 }, ..plain(2, 1, 8, DType::F32, Compute::F32) };
    let call = AttentionDynamic { sequences: 2, tokens: 5, max_query: 3, max_kv: 9 };
    let q = Tensor::zeros(&device, DType::F32, &[5, 2, 8])?;
    let cache = Tensor::zeros(&device, DType::F32, &[6, 1, 4, 8])?;
    let good: ([i32; 3], [i32; 2], [u32; 6]) = ([0, 3, 5], [9, 4], [0, 5, 2, 1, u32::MAX, u32::MAX]);
    let run = |(starts, lens, table): ([i32; 3], [i32; 2], [u32; 6])| -> Result<()> {
        let starts = Tensor::from_slice(&device, &starts, &[3])?;
        let lens = Tensor::from_slice(&device, &lens, &[2])?;
        let table = Tensor::from_slice(&device, &table, &[2, 3])?;
        let mut o = Tensor::zeros(&device, DType::F32, &[5, 2, 8])?;
        let inputs = [&q, &cache, &cache, &starts, &lens, &table].map(|t| Some(t.view()));
        for row in rows_for(&fixed) {
            launch(&device, &row, &fixed, &call, &inputs, &mut o)?;
        }
        Ok(())
    };
    run(good)?;
    let (starts, lens, table) = good;
    for (bad, word) in [
        (([1, 3, 5], lens, table), "begins"),
        (([0, 2, 4], lens, table), "ends"),
        (([0, 4, 5], lens, table), "max_query"),
        (([0, 6, 5], lens, table), "query_start"),
        (([0, -1, 5], lens, table), "query_start"),
        (([0, 3, i32::MAX], lens, table), "query_start"),
        ((starts, [10, 4], table), "max_kv"),
        ((starts, [-1, 4], table), "kv_len"),
        ((starts, [9, 1], table), "causal"),
        ((starts, [9, 5], table), "block_table[1, 1]"),
        ((starts, lens, [0, 6, 2, 1, 0, 0]), "block_table[0, 1]"),
    ] {
        match run(bad) {
            Err(Error::Operands { reason, .. }) => assert!(reason.contains(word), "{reason}"),
            other => panic!("{bad:?}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn keys_with_scales_are_refused_where_they_have_no_place() {
    let device = Cpu::get();
    let dense = plain(2, 1, 8, DType::I8, Compute::F32);
    let other = AttentionStatic { kv: DType::F8E5M2, ..scaled(2, 1, 8, DType::I8, Compute::F32) };
    let stepped = scaled(2, 1, 8, DType::I8, Compute::F32);
    let call = AttentionDynamic { sequences: 1, tokens: 1, max_query: 1, max_kv: 3 };
    let run = |fixed: &AttentionStatic, cache: &Tensor| -> Result<()> {
        let q = Tensor::zeros(&device, DType::F32, &[1, 2, 8])?;
        let starts = Tensor::from_slice(&device, &[0i32, 1], &[2])?;
        let lens = Tensor::from_slice(&device, &[3i32], &[1])?;
        let table = Tensor::from_slice(&device, &[0u32], &[1, 1])?;
        let mut o = Tensor::zeros(&device, DType::F32, &[1, 2, 8])?;
        let inputs = [&q, cache, cache, &starts, &lens, &table].map(|t| Some(t.view()));
        launch(&device, &attention::rows()[0], fixed, &call, &inputs, &mut o)
    };
    let bytes = Tensor::zeros(&device, DType::U8, &[1, 1, 16 * 12]).expect("a cache");
    run(&stepped, &bytes).expect("a cache as it is to be");
    let codes = Tensor::zeros(&device, DType::I8, &[1, 1, 16, 8]).expect("codes without scales");
    let wide = Tensor::zeros(&device, DType::U8, &[1, 1, 2 * 16 * 12]).expect("a cache");
    let every_second = wide.layout().slice(2, 0..2 * 16 * 12, 2).expect("a layout");
    let wide = wide.with_layout(every_second).expect("every second byte");
    for (fixed, cache, word) in [
        (&dense, &bytes, "blocks of a cache"),
        (&other, &bytes, "none of f32, f16 and bf16"),
        (&stepped, &codes, "expected u8 of shape [1, 1, 192]"),
        (&stepped, &wide, "must follow one another"),
    ] {
        let error = run(fixed, cache).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[test]
fn gpus_refuse_caches_with_scales_in_words() {
    let hardware = Cpu::get().hardware().clone();
    let gpus = |device| device != sinew_memory::DeviceKind::CPU;
    for kv in [DType::I8, DType::F8E4M3] {
        let attention = scaled(2, 1, 8, kv, Compute::F32);
        let append =
            KvAppendStatic { num_kv_heads: 1, head_dim: 8, source: DType::F32, kv, block_size: 16, rotary: None };
        let refusals = (attention::rows().into_iter().filter(|row| gpus(row.device)))
            .map(|row| (row.name, (row.admits)(&attention, &hardware)))
            .chain(
                (kv_append::rows().into_iter().filter(|row| gpus(row.device)))
                    .map(|row| (row.name, (row.admits)(&append, &hardware))),
            )
            // Rows that need more of the hardware than a CPU has say that first.
            .filter(|(_, refusal)| !refusal.as_ref().is_err_and(sinew_kernels::Refusal::is_of_hardware));
        let refusals: Vec<_> = refusals.collect();
        assert!(refusals.len() >= 2, "{refusals:?}");
        for (name, refusal) in refusals {
            let words = refusal.expect_err(name).to_string();
            assert!(words.contains("for CPUs") && words.contains(kv.name()), "{name}: {words}");
        }
    }
}
