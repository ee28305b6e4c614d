//! The f64 reference of one element, and what a naive f32 implementation makes of it.

use std::cell::RefCell;
use std::collections::HashMap;

use float8::F8E4M3;
use sinew_tensor::DType;

use super::{
    Attention, AttentionDynamic, AttentionStatic, BLOCK_TABLE, Compute, F32Bits, K, KV_LEN, KvSource, MASK, MaskKind,
    OLD_BLOCK_TABLE, OLD_K, OLD_V, Q, QUERY_START, SINKS, TILE, V,
};
use crate::Arithmetic;
use crate::harness::case::{Case, Expected, HostOperands, Lay, Values};
use crate::simd::Code;

/// Roundings of f32 that an element may differ by beyond twice the naive error: of the score's chain, its scaling, the
/// exponential, the sums. They matter where a case has so few elements that the naive error may be 0 by luck.
const FLOAT_ROUNDINGS: f64 = 8.0;
/// The same for the roundings of weights to bf16, in units of the root of the sum of squares that independent errors
/// add up to: each is at most half a unit in the last place, 2^-9.
const BF16_ROUNDINGS: f64 = 2.0;

/// The largest magnitude of a code.
const LARGEST_CODE: f32 = <F8E4M3 as Code>::LARGEST;

/// Where the keys of the sequence that holds a token are.
struct Place {
    sequence: usize,
    kv_start: usize,
    /// The keys that the token sees, masks aside.
    from: usize,
    to: usize,
    /// The first of those that it sees in the full dtype.
    old_before: usize,
}

/// Where a key or value is.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// Whether it is an old one, in their form.
    old: bool,
    /// Its first element, in row-major order.
    at: usize,
}

impl Start {
    fn key<'a>(&self, host: &'a HostOperands) -> &'a [f64] {
        &host.input(if self.old { OLD_K } else { K }).values[self.at..]
    }

    fn value<'a>(&self, host: &'a HostOperands) -> &'a [f64] {
        &host.input(if self.old { OLD_V } else { V }).values[self.at..]
    }

    fn has_scale(&self, fixed: &AttentionStatic) -> bool {
        self.old || fixed.has_scales()
    }
}

fn place(fixed: &AttentionStatic, host: &HostOperands, token: usize) -> Place {
    let (starts, lengths) = (&host.input(QUERY_START).values, &host.input(KV_LEN).values);
    let sequence = (0..lengths.len()).find(|&s| token < starts[s + 1] as usize).unwrap_or(0);
    let len = lengths[sequence] as i64;
    let position = len - (starts[sequence + 1] as i64 - token as i64);
    let behind = match (fixed.causal, fixed.window) {
        (true, _) => position + 1,
        (false, Some(window)) => position + window as i64,
        (false, None) => len,
    };
    let from = fixed.window.map_or(0, |window| position - window as i64 + 1).max(0);
    let kv_start = lengths[..sequence].iter().sum::<f64>() as usize;
    let old_before = fixed.old.map_or(0, |old| {
        let tiles = (position + 1 - old.recent as i64).div_euclid(TILE as i64);
        usize::try_from(tiles).unwrap_or(0) * TILE
    });
    Place { sequence, kv_start, from: from as usize, to: behind.clamp(0, len) as usize, old_before }
}

/// Where the row of a key or value starts.
fn row(fixed: &AttentionStatic, host: &HostOperands, p: &Place, key: usize, head: usize) -> Start {
    let start = Start { old: key < p.old_before, at: 0 };
    let table = if start.old { OLD_BLOCK_TABLE } else { BLOCK_TABLE };
    let rows = match fixed.kv_source {
        KvSource::Dense => (p.kv_start + key) * fixed.num_kv_heads + head,
        KvSource::Paged { block_size } => {
            let block = host.input(table).at(&[p.sequence, key / block_size]) as usize;
            (block * fixed.num_kv_heads + head) * block_size + key % block_size
        }
    };
    // Behind the elements of a head its scale, if it has one.
    Start { at: rows * (fixed.head_dim + usize::from(start.has_scale(fixed))), ..start }
}

/// What the mask says of a key: added to the score, or `None` where it forbids.
fn masked(fixed: &AttentionStatic, host: &HostOperands, head: usize, token: usize, key: usize) -> Option<f64> {
    let Some(kind) = fixed.mask else { return Some(0.0) };
    let mask = host.input(MASK);
    let value = if mask.shape.len() == 3 { mask.at(&[head, token, key]) } else { mask.at(&[token, key]) };
    match kind {
        MaskKind::Additive(_) => Some(value),
        MaskKind::Boolean => (value != 0.0).then_some(0.0),
    }
}

/// The scores of a row of queries over the keys that it sees, masks included.
#[derive(Clone, Debug, Default)]
struct Scores {
    /// In f64.
    exact: Vec<f64>,
    /// In f32, from rounded queries where the problem says so.
    naive: Vec<f32>,
    /// Where each key's value starts.
    values: Vec<Start>,
    /// The logit of the head's sink, if it has one.
    sink: Option<f64>,
}

fn scores(fixed: &AttentionStatic, host: &HostOperands, token: usize, head: usize) -> Scores {
    let p = place(fixed, host, token);
    let kv_head = head / fixed.group();
    let q = host.input(Q);
    let start = (token * fixed.num_heads + head) * fixed.head_dim;
    let query = &q.values[start..start + fixed.head_dim];
    let round = |q: &f64| if fixed.compute == Compute::Bf16 { DType::BF16.round(*q) as f32 } else { *q as f32 };
    let rounded: Vec<f32> = query.iter().map(round).collect();
    let (scale, cap) = (fixed.scale.get(), fixed.softcap.map(F32Bits::get));
    let sink = fixed.sinks.then(|| host.input(SINKS).values[head]);
    let mut scores = Scores { sink, ..Scores::default() };
    for key in p.from..p.to.max(p.from) {
        let Some(added) = masked(fixed, host, head, token, key) else { continue };
        let start = row(fixed, host, &p, key, kv_head);
        let (mut dot, mut naive) = (0.0f64, 0.0f32);
        for ((&q, &r), &k) in query.iter().zip(&rounded).zip(start.key(host)) {
            dot += q * k;
            naive += r * k as f32;
        }
        let dot = dot * f64::from(scale);
        let dot = cap.map_or(dot, |c| f64::from(c) * (dot / f64::from(c)).tanh());
        let naive = naive * scale;
        let naive = cap.map_or(naive, |c| c * (naive / c).tanh());
        scores.exact.push(dot + added);
        scores.naive.push(naive + added as f32);
        scores.values.push(start);
    }
    scores
}

type Key = (AttentionStatic, AttentionDynamic, Lay, Values, u64);
/// Scores by row and head.
type Known = HashMap<[usize; 2], Scores>;

thread_local! {
    /// The scores of one case's rows: all elements of a row, and all kernels, need the same ones.
    static KNOWN: RefCell<(Option<Key>, Known)> = RefCell::default();
}

/// One element in f64, with the error that a row may make.
pub(super) fn expect(case: &Case<Attention>, host: &HostOperands, arithmetic: Arithmetic, index: &[usize]) -> Expected {
    let (fixed, token, head, d) = (&case.fixed, index[0], index[1], index[2]);
    KNOWN.with_borrow_mut(|(case_of, known)| {
        let key = (fixed.clone(), case.call, case.lay, case.values, case.seed);
        if case_of.as_ref() != Some(&key) {
            known.clear();
            *case_of = Some(key);
        }
        let scores = known.entry([token, head]).or_insert_with(|| scores(fixed, host, token, head));
        element(fixed, host, arithmetic, scores, d)
    })
}

fn element(
    fixed: &AttentionStatic,
    host: &HostOperands,
    arithmetic: Arithmetic,
    scores: &Scores,
    d: usize,
) -> Expected {
    let v: Vec<f64> = scores.values.iter().map(|start| start.value(host)[d]).collect();
    // A key whose score is -inf is not there.
    let there = || scores.exact.iter().zip(&v).filter(|(s, _)| **s != f64::NEG_INFINITY);
    if there().next().is_none() {
        return Expected::exact(0.0);
    }
    let max = scores.exact.iter().copied().chain(scores.sink).fold(f64::NEG_INFINITY, f64::max);
    let of_sink = scores.sink.map_or(0.0, |sink| if sink == max { 1.0 } else { (sink - max).exp() });
    let sum: f64 = of_sink + there().map(|(s, _)| (s - max).exp()).sum::<f64>();
    let value = there().map(|(s, v)| (s - max).exp() * v).sum::<f64>() / sum;
    let (mut squares, mut total, mut lost, mut largest, mut reach) = (0.0, 0.0, 0.0, 0.0f64, 0.0f64);
    for (s, v) in there() {
        let weight = (s - max).exp();
        let part = weight / sum * v.abs();
        squares += part * part;
        total += part;
        largest = largest.max(v.abs());
        reach = reach.max(s.abs());
        // Weights below the normal range are 0 in f32.
        lost += if weight < 2f64.powi(-125) { part } else { 0.0 };
    }
    // An error of the sink's exponent is one of its share only.
    reach += scores.sink.filter(|sink| sink.is_finite()).map_or(0.0, |sink| sink.abs() * of_sink / sum);
    let keys = v.len() as f64;
    // What weights are multiplied with: codes, where scales are multiplied into the weights.
    let has_scales = fixed.has_scales() || fixed.old.is_some();
    let largest = if has_scales { largest.max(f64::from(LARGEST_CODE)) } else { largest };
    let mut bound = fixed.out.ulp(value) + FLOAT_ROUNDINGS * 2f64.powi(-24) * (1.0 + reach) * total + lost;
    // Each product may round in the subnormal range.
    bound += keys * 2f64.powi(-149) * if has_scales { largest } else { 1.0 };
    if fixed.compute == Compute::Bf16 {
        bound += BF16_ROUNDINGS * 2f64.powi(-9) * squares.sqrt();
    }
    if arithmetic.flushes_subnormals {
        bound += keys * 2f64.powi(-126) * (1.0 + largest);
    }
    // The last of a head's row is its scale.
    let scale = |start: &Start| if start.has_scale(fixed) { start.value(host)[fixed.head_dim] } else { 1.0 };
    let scales: Vec<f64> = scores.values.iter().map(scale).collect();
    Expected { naive: f64::from(naive(fixed, scores, &v, &scales)), ..Expected::within(value, bound) }
}

/// Softmax in two passes and sums from first to last, all in f32, with weights, which the values' scales are factors of,
/// rounded where the problem says so.
fn naive(fixed: &AttentionStatic, scores: &Scores, v: &[f64], scales: &[f64]) -> f32 {
    let sink = scores.sink.map(|sink| sink as f32);
    let max = scores.naive.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut acc) = (sink.map_or(0.0, |sink| if sink == max { 1.0 } else { (sink - max).exp() }), 0.0f32);
    for ((s, v), scale) in scores.naive.iter().zip(v).zip(scales) {
        let weight = (s - max).exp();
        sum += weight;
        let weight = weight * *scale as f32;
        let weight = if fixed.compute == Compute::Bf16 { half::bf16::from_f32(weight).to_f32() } else { weight };
        acc += weight * (v / scale) as f32;
    }
    acc / sum
}
