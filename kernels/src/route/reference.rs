//! The reference of routing, which sorts, and its cases.

use std::cmp::Ordering;

use sinew_tensor::DType;

use super::{Route, RouteDynamic, RouteStatic};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values};
use crate::harness::strided_cases::lay;
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// The experts of a token.
fn chosen(logits: &[f64], top_k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Stable: of equal logits the lowest expert stays first.
    order.sort_by(|&a, &b| match (logits[a].is_nan(), logits[b].is_nan()) {
        (false, false) => logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal),
        (a, b) => b.cmp(&a),
    });
    order.truncate(top_k);
    order
}

/// Slots in the order of the sorted rows, each with its expert.
fn sorted(case: &Case<Route>, host: &HostOperands) -> Vec<(usize, usize)> {
    let RouteStatic { experts, top_k, .. } = case.fixed;
    let logits = &host.input(Route::LOGITS).values;
    let of_token = |token: usize| chosen(&logits[token * experts..][..experts], top_k);
    let mut slots: Vec<(usize, usize)> = (0..case.call.tokens).flat_map(of_token).enumerate().collect();
    slots.sort_by_key(|&(_, expert)| expert);
    slots
}

impl Reference for Route {
    fn stored_as(stored: StoredAs) -> Option<(RouteStatic, RouteDynamic)> {
        let problem = (RouteStatic { experts: 8, top_k: 2, renormalize: true }, RouteDynamic { tokens: 3 });
        (stored == StoredAs::Plain(DType::F32)).then_some(problem)
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        // One token; every expert for each; more tokens than a workgroup has threads; none.
        let sizes = [(1, 8, 2), (3, 1, 1), (7, 5, 5), (65, 60, 4), (1, 128, 8), (0, 8, 2), (300, 9, 1), (33, 130, 6)];
        let values = [Values::Normal, Values::Integers, Values::Special, Values::Normal, Values::Subnormal];
        (0..if depth == Depth::Quick { 48 } else { 480 })
            .map(|n| {
                let (tokens, experts, top_k) = sizes[n % sizes.len()];
                Case {
                    fixed: RouteStatic { experts, top_k, renormalize: n / 2 % 2 == 0 },
                    call: RouteDynamic { tokens },
                    lay: Lay::ALL[n / 3 % Lay::ALL.len()],
                    values: values[(n + n / sizes.len()) % values.len()],
                    seed: n as u64 * 3 + 1,
                }
            })
            .collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let RouteStatic { experts, top_k, .. } = case.fixed;
        let tokens = case.call.tokens;
        let mut random = Generator::new(case.seed);
        let logits = random.operand(DType::F32, &[tokens, experts], case.lay, case.values)?;
        let mut output = |dtype, shape: &[usize], n| random.output(dtype, shape, lay(case.lay, case.seed, n));
        let outputs = vec![
            output(DType::U32, &[tokens, top_k], 1)?,
            output(DType::F32, &[tokens, top_k], 2)?,
            output(DType::I32, &[experts + 1], 3)?,
            output(DType::U32, &[tokens * top_k], 4)?,
            output(DType::U32, &[tokens * top_k], 5)?,
        ];
        Ok(HostOperands { inputs: vec![Some(logits)], outputs })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, output: usize, index: &[usize]) -> Expected {
        let RouteStatic { experts, top_k, renormalize } = case.fixed;
        if output == Self::EXPERTS || output == Self::WEIGHTS {
            let logits = &host.input(Self::LOGITS).values[index[0] * experts..][..experts];
            let best = chosen(logits, top_k);
            if output == Self::EXPERTS {
                return Expected::exact(best[index[1]] as f64);
            }
            let largest = logits[best[0]];
            let weight = |expert: usize| (logits[expert] - largest).exp();
            let sum: f64 =
                if renormalize { best.iter().map(|&e| weight(e)).sum() } else { (0..experts).map(weight).sum() };
            // Renormalised, an expert that is not chosen has no say.
            let all: f64 = (0..experts).map(weight).sum();
            if all.is_nan() {
                return Expected::exact(f64::NAN);
            }
            // Softmax's rule: 4 ulp of the largest weight.
            return Expected::within(weight(best[index[1]]) / sum, 4.0 * DType::F32.ulp(1.0 / sum));
        }
        let sorted = sorted(case, host);
        Expected::exact(match output {
            Self::OFFSETS => sorted.iter().filter(|&&(_, expert)| expert < index[0]).count() as f64,
            Self::PLACE => sorted.iter().position(|&(slot, _)| slot == index[0]).map_or(f64::NAN, |at| at as f64),
            _ => (sorted[index[0]].0 / top_k) as f64,
        })
    }
}
