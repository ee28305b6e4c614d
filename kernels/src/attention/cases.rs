//! Problems to try, and their operands.

use std::ops::Range;

use sinew_tensor::{DType, PagedLayout};

use super::{
    Attention, AttentionDynamic, AttentionStatic, Compute, F32Bits, KvSource, MaskKind, OldKv, TILE, reference,
};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, cut, elements, host_operand,
};
use crate::kv_append::scaled::{self, Head};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// Sequences, tokens, and the most queries and keys of a sequence: single keys, a tile and its neighbours, several
/// tiles, more than one group and more than two, empty calls, queries without keys.
const CALLS: [[usize; 4]; 16] = [
    [1, 1, 1, 1],
    [1, 7, 7, 7],
    [3, 20, 11, 37],
    [2, 2, 1, 130],
    [1, 65, 65, 129],
    [4, 9, 5, 64],
    [1, 1, 1, 1100],
    [2, 3, 3, 600],
    [5, 5, 1, 90],
    [1, 33, 33, 63],
    [3, 6, 2, 513],
    [1, 10, 10, 3],
    [2, 40, 31, 65],
    [1, 0, 0, 5],
    [0, 0, 0, 0],
    [1, 4, 4, 0],
];
const HEADS: [[usize; 2]; 8] = [[1, 1], [2, 1], [4, 2], [3, 3], [7, 1], [14, 2], [6, 2], [13, 1]];
const HEAD_DIMS: [usize; 10] = [64, 80, 1, 20, 128, 13, 96, 33, 192, 16];
const SOURCES: [KvSource; 7] = [
    KvSource::Paged { block_size: 16 },
    KvSource::Dense,
    KvSource::Paged { block_size: 8 },
    KvSource::Paged { block_size: 5 },
    KvSource::Dense,
    KvSource::Paged { block_size: 64 },
    KvSource::Paged { block_size: 1 },
];
const WINDOWS: [Option<usize>; 6] = [None, None, Some(5), None, Some(70), Some(1)];
/// Keys in the full dtype before old ones: fewer than a tile and more, and more than there are.
const RECENT: [usize; 5] = [1, 30, 64, 100, 2000];
const CAPS: [Option<f32>; 4] = [None, None, None, Some(4.0)];

impl Reference for Attention {
    const COLD: &'static [usize] = &[super::K, super::V, super::OLD_K, super::OLD_V];

    fn smaller(fixed: &AttentionStatic, call: AttentionDynamic) -> Option<(AttentionStatic, AttentionDynamic)> {
        let (sequences, max_query) = (call.sequences.min(2), cut(call.max_query, 128));
        let max_kv = cut(call.max_kv, 1024).max(max_query);
        Some((fixed.clone(), AttentionDynamic { sequences, tokens: sequences * max_query, max_query, max_kv }))
    }

    fn stored_as(stored: StoredAs) -> Option<(AttentionStatic, AttentionDynamic)> {
        let dtypes = [DType::F32, stored.plain()?, DType::F32];
        let fixed = AttentionStatic {
            scale: F32Bits::new(0.25),
            causal: true,
            kv_source: KvSource::Paged { block_size: 16 },
            ..AttentionStatic::new(4, 2, 32, dtypes, Compute::F32)
        };
        Some((fixed, AttentionDynamic { sequences: 2, tokens: 3, max_query: 2, max_kv: 40 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut pick = Generator::new(0xa77e);
        let count = match depth {
            Depth::Quick => 128,
            Depth::Full => 900,
        };
        let mut cases: Vec<_> = (0..count).map(|i| draw(&mut pick, i)).collect();
        // The same over caches with scales.
        for i in 0..count {
            let mut case = draw(&mut pick, i);
            if case.fixed.kv_source == KvSource::Dense {
                case.fixed.kv_source = KvSource::Paged { block_size: 8 };
            }
            case.fixed.kv = [DType::I8, DType::F8E4M3][i % 2];
            cases.push(case);
        }
        // The same with old keys in another form than recent ones.
        for i in 0..count {
            let mut case = draw(&mut pick, i);
            if case.fixed.kv_source == KvSource::Dense {
                case.fixed.kv_source = KvSource::Paged { block_size: 8 };
            }
            let dtype = [DType::I8, DType::F8E4M3][i % 2];
            case.fixed.old = Some(OldKv { dtype, recent: RECENT[pick.below(RECENT.len())] });
            cases.push(case);
        }
        // Prompts as models bring them, through every path of the fast rows.
        for (i, compute) in [Compute::F32, Compute::Bf16].into_iter().enumerate() {
            let scaled = [(64, DType::I8), (128, DType::F8E4M3), (96, DType::I8)];
            for (head_dim, kv) in [(64, DType::BF16), (128, DType::F16), (80, DType::F32)].into_iter().chain(scaled) {
                let mut case = draw(&mut pick, i);
                case.fixed = AttentionStatic { head_dim, kv, compute, window: None, mask: None, ..case.fixed };
                case.fixed =
                    AttentionStatic { num_heads: 14, num_kv_heads: 2, causal: true, softcap: None, ..case.fixed };
                case.fixed.kv_source = KvSource::Paged { block_size: 16 };
                let recent = 200;
                case.fixed.old = (kv == DType::BF16).then_some(OldKv { dtype: DType::I8, recent });
                case.call = AttentionDynamic { sequences: 2, tokens: 150, max_query: 130, max_kv: 700 };
                (case.lay, case.values) = (Lay::Contiguous, Values::Normal);
                cases.push(case);
            }
        }
        // With sinks, over every kind of cache: where a row ends all cases are alike, so that fewer do.
        for i in 0..count / 4 {
            let mut case = draw(&mut pick, i);
            case.fixed.sinks = true;
            let dtype = [DType::I8, DType::F8E4M3][i / 4 % 2];
            if i % 4 > 1 && case.fixed.kv_source == KvSource::Dense {
                case.fixed.kv_source = KvSource::Paged { block_size: 8 };
            }
            match i % 4 {
                2 => case.fixed.kv = dtype,
                3 => case.fixed.old = Some(OldKv { dtype, recent: RECENT[pick.below(RECENT.len())] }),
                _ => {}
            }
            cases.push(case);
        }
        cases
    }

    /// The operands of a case. Everything that no query sees is NaN, and block ids that no visible key needs are wild.
    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (fixed, call) = (&case.fixed, case.call);
        let mut pick = Generator::new(case.seed);
        let lengths = lengths(case, &mut pick);
        let rows = [call.tokens, fixed.num_heads, fixed.head_dim];
        let q = pick.operand(fixed.q, &rows, case.lay, case.values)?;
        let ([k, v, table], old) = match fixed.kv_source {
            KvSource::Dense => {
                let (k, v) = dense(case, &lengths, &mut pick)?;
                ([Some(k), Some(v), None], [None, None, None])
            }
            KvSource::Paged { block_size } => {
                let (full, old): (Vec<_>, Vec<_>) = lengths.iter().map(|&of| seen(fixed, of)).unzip();
                let full = paged(case, fixed.kv, &full, block_size, &mut pick)?;
                let paged_old = |of: OldKv| paged(case, of.dtype, &old, block_size, &mut pick);
                let old = fixed.old.map(paged_old).transpose()?;
                (full.map(Some), old.map_or([None, None, None], |old| old.map(Some)))
            }
        };
        let mut starts = vec![0.0];
        for (queries, _) in &lengths {
            starts.push(starts[starts.len() - 1] + *queries as f64);
        }
        let lay = if case.lay == Lay::Stepped { Lay::Stepped } else { Lay::Contiguous };
        let starts = host_operand(DType::I32, &[call.sequences + 1], lay, starts, false)?;
        let lens = lengths.iter().map(|l| l.1 as f64).collect();
        let lens = host_operand(DType::I32, &[call.sequences], lay, lens, false)?;
        let mask = fixed.mask.map(|kind| mask(case, kind, &mut pick)).transpose()?;
        let sinks = fixed.sinks.then(|| sinks(case, lay, &mut pick)).transpose()?;
        let out = pick.output(fixed.out, &rows, case.lay)?;
        let inputs = [Some(q), k, v, Some(starts), Some(lens), table, mask].into_iter().chain(old).chain([sinks]);
        let inputs = inputs.collect();
        Ok(HostOperands { inputs, outputs: vec![out] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        reference::expect(case, host, arithmetic, index)
    }
}

/// One case; the first in each list comes up most often through `i`, the rest by chance.
fn draw(pick: &mut Generator, i: usize) -> Case<Attention> {
    let [sequences, tokens, max_query, mut max_kv] = CALLS[i % CALLS.len()];
    let [num_heads, num_kv_heads] = HEADS[pick.below(HEADS.len())];
    let head_dim = HEAD_DIMS[pick.below(HEAD_DIMS.len())];
    let causal = pick.below(3) > 0;
    if causal {
        max_kv = max_kv.max(max_query);
    }
    let mut dtype = || DType::COMPUTE[pick.below(3)];
    let (q, kv, out, additive) = (dtype(), dtype(), dtype(), dtype());
    let compute = if pick.below(2) == 0 { Compute::F32 } else { Compute::Bf16 };
    // Half of the bf16 cases have bf16 keys, which is what rows for it take.
    let kv = if compute == Compute::Bf16 && pick.below(2) == 0 { DType::BF16 } else { kv };
    let mask = match pick.below(6) {
        0 => Some(MaskKind::Boolean),
        1 => Some(MaskKind::Additive(additive)),
        _ => None,
    };
    let values = match pick.below(10) {
        0 => Values::Integers,
        1 => Values::Special,
        2 => Values::Subnormal,
        _ => Values::Normal,
    };
    let fixed = AttentionStatic {
        scale: F32Bits::new(match pick.below(8) {
            0 => 0.0,
            1 => -0.3,
            _ => 1.0 / (head_dim as f32).sqrt(),
        }),
        causal,
        window: WINDOWS[pick.below(WINDOWS.len())],
        softcap: CAPS[pick.below(CAPS.len())].map(F32Bits::new),
        mask,
        kv_source: SOURCES[pick.below(SOURCES.len())],
        ..AttentionStatic::new(num_heads, num_kv_heads, head_dim, [q, kv, out], compute)
    };
    let call = AttentionDynamic { sequences, tokens, max_query, max_kv };
    Case { fixed, call, lay: Lay::ALL[pick.below(5)], values, seed: pick.bits() >> 40 }
}

/// Queries and keys of each sequence: ragged, together what the call says, one of each the longest.
fn lengths(case: &Case<Attention>, pick: &mut Generator) -> Vec<(usize, usize)> {
    let call = case.call;
    let mut left = call.tokens;
    (0..call.sequences)
        .map(|s| {
            let most = call.max_query.min(left);
            let least = left.saturating_sub(call.max_query * (call.sequences - 1 - s));
            let queries = if s == 0 { most } else { least + pick.below(most - least + 1) };
            left -= queries;
            let least = if case.fixed.causal { queries } else { 0 };
            let last = s + 1 == call.sequences;
            (queries, if last { call.max_kv } else { least + pick.below(call.max_kv - least + 1) })
        })
        .collect()
}

fn dense(
    case: &Case<Attention>,
    lengths: &[(usize, usize)],
    pick: &mut Generator,
) -> Result<(HostOperand, HostOperand)> {
    let fixed = &case.fixed;
    let used: usize = lengths.iter().map(|l| l.1).sum();
    // Where the first dimension is repeated, a NaN would be every key.
    let spare = if case.lay == Lay::Broadcast { 0 } else { 3 };
    let shape = [used + spare, fixed.num_kv_heads, fixed.head_dim];
    let width = shape[1] * shape[2];
    elements(&shape)?;
    let mut one = || {
        let mut values: Vec<f64> = (0..used * width).map(|_| pick.value(case.values, fixed.kv)).collect();
        values.resize(shape[0] * width, f64::NAN);
        host_operand(fixed.kv, &shape, case.lay, values, false)
    };
    Ok((one()?, one()?))
}

/// The keys that any of a sequence's queries sees in the full dtype, and those that any sees in the old ones' form.
fn seen(fixed: &AttentionStatic, (queries, keys): (usize, usize)) -> (Range<usize>, Range<usize>) {
    if queries == 0 {
        return (0..0, 0..0);
    }
    let first = keys as i64 - queries as i64;
    let from = fixed.window.map_or(0, |w| first - w as i64 + 1).max(0) as usize;
    let old_before = |position: i64| {
        let old = fixed.old.map_or(0, |old| position + 1 - old.recent as i64);
        usize::try_from(old).unwrap_or(0) / TILE * TILE
    };
    (from.max(old_before(first))..keys, from..old_before(keys as i64 - 1).max(from))
}

/// Caches with shuffled blocks, some shared between sequences, which see the keys `seen`.
fn paged(
    case: &Case<Attention>,
    kv: DType,
    seen: &[Range<usize>],
    block_size: usize,
    pick: &mut Generator,
) -> Result<[HostOperand; 3]> {
    let fixed = &case.fixed;
    let blocks: usize = seen.iter().map(|seen| seen.end.div_ceil(block_size)).sum::<usize>() + 2;
    let shape = [blocks, fixed.num_kv_heads, block_size, fixed.head_dim];
    let count = elements(&shape)?;
    let mut free: Vec<usize> = (0..blocks).collect();
    for i in (1..blocks).rev() {
        free.swap(i, pick.below(i + 1));
    }
    let columns = case.call.max_kv.div_ceil(block_size) + 1;
    let mut table = vec![f64::from(u32::MAX); case.call.sequences * columns];
    let mut live = vec![false; blocks * block_size];
    for (s, seen_of) in seen.iter().enumerate() {
        let shared = if s > 0 && pick.below(2) == 0 { seen[0].end.min(seen_of.end) / block_size } else { 0 };
        for b in seen_of.start / block_size..seen_of.end.div_ceil(block_size) {
            let theirs = table[b];
            let usable = b < shared && theirs != f64::from(u32::MAX);
            let id = if usable { theirs as usize } else { free.pop().unwrap_or(0) };
            table[s * columns + b] = id as f64;
            for key in (b * block_size).max(seen_of.start)..((b + 1) * block_size).min(seen_of.end) {
                live[id * block_size + key % block_size] = true;
            }
        }
    }
    let table = host_operand(DType::U32, &[case.call.sequences, columns], lay_of(case), table, false)?;
    if PagedLayout::has_scales(kv) {
        let cache = PagedLayout::new(blocks, fixed.num_kv_heads, block_size, fixed.head_dim, kv)?;
        let mut one = || {
            let heads = (0..blocks * fixed.num_kv_heads * block_size).map(|i| {
                let (block, slot) = (i / block_size / fixed.num_kv_heads, i % block_size);
                match live[block * block_size + slot] {
                    true => Head::random(kv, fixed.head_dim, case.values, pick),
                    false => Head::poisoned(kv, fixed.head_dim),
                }
            });
            scaled::operand(cache, &heads.collect::<Vec<_>>(), lay_of(case), false)
        };
        return Ok([one()?, one()?, table]);
    }
    let mut one = || {
        let per_block = shape[1] * shape[2] * shape[3];
        let values = (0..count)
            .map(|i| {
                let (block, slot) = (i / per_block, i / shape[3] % block_size);
                let value = pick.value(case.values, kv);
                if live[block * block_size + slot] { value } else { f64::NAN }
            })
            .collect();
        host_operand(kv, &shape, lay_of(case), values, false)
    };
    Ok([one()?, one()?, table])
}

/// How a cache lies: a repeated first dimension would lay all blocks over one another.
fn lay_of(case: &Case<Attention>) -> Lay {
    if case.lay == Lay::Broadcast { Lay::Padded } else { case.lay }
}

/// A mask, with or without heads: about a fifth forbidden, and some rows altogether.
fn mask(case: &Case<Attention>, kind: MaskKind, pick: &mut Generator) -> Result<HostOperand> {
    let call = case.call;
    let heads = if pick.below(2) == 0 { vec![case.fixed.num_heads] } else { vec![] };
    let shape: Vec<usize> = heads.into_iter().chain([call.tokens, call.max_kv]).collect();
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let mut values = Vec::with_capacity(rows * call.max_kv);
    for _ in 0..rows {
        let all = pick.below(8) == 0;
        for _ in 0..call.max_kv {
            let forbidden = all || pick.below(5) == 0;
            values.push(match kind {
                MaskKind::Additive(dtype) if !forbidden => pick.value(Values::Normal, dtype),
                MaskKind::Additive(_) => f64::NEG_INFINITY,
                MaskKind::Boolean => f64::from(u8::from(!forbidden)),
            });
        }
    }
    let dtype = match kind {
        MaskKind::Additive(dtype) => dtype,
        MaskKind::Boolean => DType::Bool,
    };
    host_operand(dtype, &shape, case.lay, values, false)
}

/// Sinks among the scores, far below and far above them, where their weight is beyond f32 or nearly so, and without
/// bound; of an infinite value that would leave what a rounding makes of it.
fn sinks(case: &Case<Attention>, lay: Lay, pick: &mut Generator) -> Result<HostOperand> {
    let special = case.values == Values::Special;
    let values = (0..case.fixed.num_heads).map(|_| match pick.below(16) {
        0 => f64::NEG_INFINITY,
        1 => f64::NAN,
        2 => -1e6,
        3 => -20.0,
        4 if !special => 20.0,
        5 if !special => 88.0 + pick.normal(),
        6 if !special => 3e38,
        7 if !special => f64::INFINITY,
        _ => 3.0 * pick.normal(),
    });
    let values = values.map(|sink| DType::F32.round(sink)).collect();
    host_operand(DType::F32, &[case.fixed.num_heads], lay, values, false)
}
