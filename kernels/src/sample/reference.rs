//! The reference of sampling: sorts the row and walks it in f64; and the cases.
//!
//! A token is right or wrong, so that cases keep away from where rounding decides: `top_p` and the draw are put in the
//! middle of the interval of one token.

use std::cmp::Ordering;

use sinew_tensor::DType;

use super::{LOGITS, OPTIONS, PARAMS, Sample, SampleDynamic, SampleStatic, TOP_K};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, host_operand};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// What is asked of one row.
#[derive(Clone, Copy, Debug)]
struct Asked {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
}

/// Ids and weights that are left, by id.
fn kept(logits: &[f64], asked: Asked) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] > f64::NEG_INFINITY).collect();
    // Stable: of equal logits the lowest id stays first.
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
    let max = logits[order[0]];
    if asked.temperature == 0.0 {
        return vec![(order[0], 1.0)];
    }
    let weight = |id: usize| ((logits[id] - max) / asked.temperature).exp();
    if asked.top_k > 0 {
        order.truncate(asked.top_k);
    }
    let limit = asked.top_p * order.iter().map(|&id| weight(id)).sum::<f64>();
    let mut sum = 0.0;
    let mut left: Vec<(usize, f64)> = Vec::new();
    for id in order {
        if asked.top_p < 1.0 && sum >= limit {
            break;
        }
        sum += weight(id);
        if asked.min_p == 0.0 || logits[id] - max >= asked.min_p.ln() * asked.temperature {
            left.push((id, weight(id)));
        }
    }
    left.sort_by_key(|&(id, _)| id);
    left
}

/// The middle of the share of all weight that a random token has, where the tokens are in this order; never that of a
/// token whose share is too small for f32 sums to tell.
fn middle(weights: &[f64], random: &mut Generator) -> f64 {
    let total: f64 = weights.iter().sum();
    let clear: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 1e-5 * total).collect();
    let chosen = clear[random.below(clear.len())];
    let before: f64 = weights[..chosen].iter().sum();
    (before + 0.5 * weights[chosen]) / total
}

impl Reference for Sample {
    fn stored_as(stored: StoredAs) -> Option<(SampleStatic, SampleDynamic)> {
        (stored == StoredAs::Plain(DType::F32)).then_some((SampleStatic { vocab: 100 }, SampleDynamic { rows: 2 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let sizes = [(1, 1), (3, 17), (5, 64), (2, 257), (1, 1000), (0, 9), (4, 5003), (1, 40_009)];
        (0..if depth == Depth::Quick { 64 } else { 640 })
            .map(|n| {
                let (rows, vocab) = sizes[n % sizes.len()];
                Case {
                    fixed: SampleStatic { vocab },
                    call: SampleDynamic { rows },
                    lay: Lay::ALL[n / 3 % Lay::ALL.len()],
                    // Integers have ties. No logit is NaN.
                    values: [Values::Normal, Values::Integers][n / 8 % 2],
                    seed: n as u64,
                }
            })
            .collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (rows, vocab) = (case.call.rows, case.fixed.vocab);
        let mut random = Generator::new(case.seed);
        let mut values: Vec<f64> = (0..rows * vocab).map(|_| random.value(case.values, DType::F32)).collect();
        if vocab > 2 {
            // Some tokens are banned.
            (0..rows * vocab / 5).for_each(|_| values[random.below(rows * vocab)] = f64::NEG_INFINITY);
            (0..rows).for_each(|row| values[row * vocab + random.below(vocab)] = 3.0);
        }
        let logits = host_operand(DType::F32, &[rows, vocab], case.lay, values, false)?;
        let (mut params, mut top_k) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let row = &logits.values[row * vocab..(row + 1) * vocab];
            let which = random.below(16);
            let temperature = if which == 0 { 0.0 } else { DType::F32.round(0.5 + random.unit()) };
            let k = if which & 1 == 1 { 1 + random.below(vocab.min(100)) } else { 0 };
            let mut asked = Asked { temperature, top_k: k, top_p: 1.0, min_p: 0.0 };
            if which & 2 != 0 {
                // Largest first, as the cut goes.
                let mut weights: Vec<f64> = kept(row, asked).into_iter().map(|(_, w)| w).collect();
                weights.sort_by(|a, b| b.total_cmp(a));
                asked.top_p = DType::F32.round(middle(&weights, &mut random));
            }
            if which & 4 != 0 {
                // Between integers' weights, and rarely near a normal one's.
                asked.min_p = DType::F32.round((-(random.below(4) as f64 + 0.37) / temperature.max(0.5)).exp());
            }
            let weights: Vec<f64> = kept(row, asked).into_iter().map(|(_, w)| w).collect();
            let draw = DType::F32.round(middle(&weights, &mut random));
            params.extend([temperature, asked.top_p, asked.min_p, draw]);
            top_k.push(k as f64);
        }
        let params = host_operand(DType::F32, &[rows, OPTIONS], case.lay, params, false)?;
        let top_k = host_operand(DType::U32, &[rows], case.lay, top_k, false)?;
        let tokens = random.output(DType::U32, &[rows], case.lay)?;
        Ok(HostOperands { inputs: vec![Some(logits), Some(params), Some(top_k)], outputs: vec![tokens] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let (row, vocab) = (index[0], case.fixed.vocab);
        let param = |i: usize| host.input(PARAMS).at(&[row, i]);
        let top_k = host.input(TOP_K).at(&[row]) as usize;
        let asked = Asked { temperature: param(0), top_k, top_p: param(1), min_p: param(2) };
        let left = kept(&host.input(LOGITS).values[row * vocab..(row + 1) * vocab], asked);
        let target = param(3) * left.iter().map(|(_, w)| w).sum::<f64>();
        let mut sum = 0.0;
        let drawn = left.iter().find(|(_, w)| {
            sum += w;
            sum > target
        });
        Expected::exact(drawn.or(left.last()).map_or(f64::NAN, |&(id, _)| id as f64))
    }
}
