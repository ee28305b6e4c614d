//! The f64 reference of one element, and the cases.

use sinew_tensor::DType;

use super::{Combine, CombineDynamic, CombineStatic};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, cut, host_operand};
use crate::harness::strided_cases::lay;
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

impl Reference for Combine {
    fn smaller(fixed: &CombineStatic, call: CombineDynamic) -> Option<(CombineStatic, CombineDynamic)> {
        let fixed = CombineStatic { width: cut(fixed.width, 1024), ..*fixed };
        Some((fixed, CombineDynamic { tokens: cut(call.tokens, 64) }))
    }

    fn stored_as(stored: StoredAs) -> Option<(CombineStatic, CombineDynamic)> {
        let y = stored.plain()?;
        Some((CombineStatic { width: 40, top_k: 2, y, out: y, accumulate: false }, CombineDynamic { tokens: 3 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let sizes = [(1, 8, 64), (3, 1, 1), (7, 2, 530), (0, 2, 5), (40, 6, 33), (2, 4, 0), (1, 2, 1025), (5, 0, 7)];
        let values = [Values::Normal, Values::Integers, Values::Special, Values::Subnormal];
        (0..if depth == Depth::Quick { 72 } else { 720 })
            .map(|n| {
                let (tokens, top_k, width) = sizes[n % sizes.len()];
                let fixed = CombineStatic {
                    width,
                    top_k,
                    y: DType::COMPUTE[n % 3],
                    out: DType::COMPUTE[n / 2 % 3],
                    accumulate: n / 4 % 2 == 0,
                };
                let values = values[(n + n / sizes.len()) % values.len()];
                let lay = Lay::ALL[n / 3 % Lay::ALL.len()];
                Case { fixed, call: CombineDynamic { tokens }, lay, values, seed: n as u64 * 3 + 1 }
            })
            .collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let CombineStatic { width, top_k, y, out, accumulate } = case.fixed;
        let (tokens, slots) = (case.call.tokens, case.call.tokens * case.fixed.top_k);
        let mut random = Generator::new(case.seed);
        // One subnormal factor is enough for subnormal products; of two, every product would be 0.
        let others = if case.values == Values::Subnormal { Values::Normal } else { case.values };
        let lay = |n| lay(case.lay, case.seed, n);
        let rows = random.operand(y, &[slots, width], case.lay, case.values)?;
        let weights = random.operand(DType::F32, &[tokens, top_k], lay(1), others)?;
        let place = (0..slots).map(|_| random.below(slots) as f64).collect();
        let place = host_operand(DType::U32, &[slots], lay(2), place, false)?;
        let shape = [tokens, width];
        let out = if accumulate {
            let values = (0..tokens * width).map(|_| random.value(case.values, out)).collect();
            host_operand(out, &shape, lay(3), values, true)?
        } else {
            random.output(out, &shape, lay(3))?
        };
        Ok(HostOperands { inputs: vec![Some(rows), Some(weights), Some(place)], outputs: vec![out] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let CombineStatic { top_k, out, accumulate, .. } = case.fixed;
        let &[token, column] = index else { return Expected::exact(f64::NAN) };
        let (mut value, mut size, mut largest) = (0.0, 0.0, 0.0f64);
        for j in 0..top_k {
            let row = host.input(Self::PLACE).at(&[token * top_k + j]) as usize;
            let (weight, y) = (host.input(Self::WEIGHTS).at(&[token, j]), host.input(Self::Y).at(&[row, column]));
            value += weight * y;
            size += (weight * y).abs();
            largest = largest.max(weight.abs()).max(y.abs());
        }
        if accumulate {
            let before = host.outputs[0].at(index);
            value += before;
            size += before.abs();
        }
        if case.values == Values::Integers {
            return Expected::exact(out.round(value));
        }
        // Each product and each sum rounds once; the chain is short.
        let steps = 2.0 * top_k as f64 + 1.0;
        let error = steps * (0.5 * f64::from(f32::EPSILON) * size + f64::from(f32::from_bits(1)));
        let bound = if error.is_finite() { error + 0.5 * out.ulp(value.abs() + error) } else { 0.0 };
        Expected::within(value, bound).flushing(arithmetic, steps, largest)
    }
}
