//! Softmax in f64, and cases.

use sinew_tensor::DType;

use super::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, host_operand};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, F32Bits, Result};

/// Units in the last place of f32 of the row's largest magnitude that a row may be off by (SPEC's Numerics).
const ULPS: f64 = 4.0;

/// One element of the softmax of `scores` and the row's largest magnitude.
fn of(scores: &[f64], i: usize, log: bool) -> (f64, f64) {
    // As f64::max leaves NaN out, it shows in the sum.
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY && !scores.iter().any(|s| s.is_nan()) {
        return (if log { f64::NEG_INFINITY } else { 0.0 }, 0.0);
    }
    let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
    if !log {
        return ((scores[i] - largest).exp() / sum, 1.0 / sum);
    }
    let logarithms = scores.iter().map(|s| (s - largest - sum.ln()).abs());
    (scores[i] - largest - sum.ln(), logarithms.filter(|y| y.is_finite()).fold(0.0, f64::max))
}

/// Widths: single, vectors and their neighbours, primes, a block and its neighbours, several blocks.
const WIDTHS: [usize; 15] = [17, 1, 64, 513, 2, 127, 1031, 0, 512, 15, 16, 511, 63, 4099, 20];
/// Leading dimensions.
const LEADING: [&[usize]; 8] = [&[5], &[2, 3, 2], &[1], &[], &[7, 3], &[0], &[67], &[3, 0]];

impl Reference for Softmax {
    fn stored_as(stored: StoredAs) -> Option<(SoftmaxStatic, SoftmaxDynamic)> {
        let x = stored.plain()?;
        let rows = leading(0).iter().product();
        Some((SoftmaxStatic { x, out: x, ..SoftmaxStatic::default() }, SoftmaxDynamic { rows, width: 40 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let rounds = if depth == Depth::Quick { 120 } else { 1200 };
        let dtype = |n: usize| DType::COMPUTE[n % 3];
        let cases = (0..rounds).map(|n| {
            let fixed = SoftmaxStatic {
                x: dtype(n),
                out: dtype(n / 3 + n / 9),
                mask: (n / 2 % 2 == 1).then(|| dtype(n / 4)),
                scale: F32Bits::new([1.0, 0.125, 1.0, 2.5, -0.5][n / 3 % 5]),
                log: n % 4 == 1,
            };
            let mut shape = leading(n as u64).to_vec();
            shape.push(WIDTHS[(n * 7 + n / 15) % WIDTHS.len()]);
            Case {
                fixed,
                call: SoftmaxDynamic::of(&shape),
                lay: Lay::ALL[(n + n / 5) % 5],
                values: [Values::Normal, Values::Special, Values::Normal, Values::Integers, Values::Subnormal]
                    [n / 7 % 5],
                seed: n as u64,
            }
        });
        cases.collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let SoftmaxStatic { x, out, mask, .. } = case.fixed;
        let mut random = Generator::new(case.seed);
        let width = case.call.width;
        let mut shape = leading(case.seed).to_vec();
        if shape.iter().product::<usize>() != case.call.rows {
            // A case of someone else's, which names rows alone.
            shape = vec![case.call.rows];
        }
        shape.push(width);
        let count: usize = shape.iter().product();
        let lay = |n: usize| match case.seed % 4 {
            0 => case.lay,
            _ => Lay::ALL[(case.lay as usize + n) % Lay::ALL.len()],
        };
        // Wide enough that most of a row's terms are small, as attention's are.
        let spread = if case.values == Values::Normal { 4.0 } else { 1.0 };
        let mut rows: Vec<f64> = (0..count).map(|_| spread * random.value(case.values, x)).collect();
        // A row without any number, one with a single number, and one that ends in the only large one.
        for (row, values) in rows.chunks_exact_mut(width.max(1)).enumerate() {
            match row % 7 {
                2 => values.fill(f64::NEG_INFINITY),
                4 => values[..width - 1].fill(f64::NEG_INFINITY),
                5 => values[width - 1] = 30.0,
                _ => {}
            }
        }
        let mask = match mask {
            Some(dtype) => {
                let values = (0..count).map(|_| if random.below(4) == 0 { f64::NEG_INFINITY } else { random.normal() });
                Some(host_operand(dtype, &shape, lay(1), values.map(|m| dtype.round(m)).collect(), false)?)
            }
            None => None,
        };
        if x == out && case.in_place() {
            let y = host_operand(x, &shape, lay(2), rows, true)?;
            return Ok(HostOperands { inputs: vec![None, mask], outputs: vec![y] });
        }
        let x = host_operand(x, &shape, lay(0), rows, false)?;
        Ok(HostOperands { inputs: vec![Some(x), mask], outputs: vec![random.output(out, &shape, lay(2))?] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let SoftmaxStatic { out, scale, log, .. } = case.fixed;
        let x = host.inputs[Softmax::X].as_ref().unwrap_or_else(|| &host.outputs[Softmax::Y]);
        let mask = host.inputs[Softmax::MASK].as_ref();
        let scale = f64::from(scale.get());
        let mut at = index.to_vec();
        let last = index.len() - 1;
        let mut row = |round: bool| -> Vec<f64> {
            let rounded = |s: f64| if round { DType::F32.round(s) } else { s };
            let scores = (0..case.call.width).map(|i| {
                at[last] = i;
                let scaled = x.at(&at) * scale;
                mask.map_or(scaled, |mask| rounded(rounded(scaled) + mask.at(&at)))
            });
            scores.collect()
        };
        let (value, largest) = of(&row(false), index[last], log);
        // A sum of input and mask is rounded to f32, whoever computes it; without a mask nothing need be.
        let naive = if mask.is_some() { of(&row(true), index[last], log).0 } else { value };
        let rounding = if out == DType::F32 { 0.0 } else { 0.5 * out.ulp(value) };
        Expected { naive, ..Expected::within(value, ULPS * DType::F32.ulp(largest) + rounding) }
    }
}

fn leading(seed: u64) -> &'static [usize] {
    LEADING[(seed as usize + seed as usize / 8) % LEADING.len()]
}
