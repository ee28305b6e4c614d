//! The reference of a top-k, which sorts the row, and its cases.

use std::cmp::Ordering;

use sinew_tensor::DType;

use super::{TopK, TopKDynamic, TopKStatic};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values};
use crate::harness::strided_cases::{lay, shape};
use crate::strided::Indices;
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

impl Reference for TopK {
    fn stored_as(stored: StoredAs) -> Option<(TopKStatic, TopKDynamic)> {
        let fixed = TopKStatic { k: 3, dtype: stored.plain()?, indices: DType::U32 };
        Some((fixed, TopKDynamic { rows: 2, width: 40 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        let sizes = [
            (1, 1, 1),
            (3, 17, 2),
            (5, 16, 16),
            (2, 513, 1),
            (4, 1025, 40),
            (0, 7, 3),
            (300, 9, 4),
            (1, 5003, 64),
            (2, 600, 600),
            (3, 5, 0),
        ];
        for n in 0..if depth == Depth::Quick { 50 } else { 600 } {
            let (rows, width, k) = sizes[n % sizes.len()];
            let fixed = TopKStatic { k, dtype: DType::COMPUTE[n % 3], indices: Indices::DTYPES[n / 2 % 3] };
            let values = [Values::Normal, Values::Integers, Values::Special, Values::Subnormal][n / 3 % 4];
            let call = TopKDynamic { rows, width };
            cases.push(Case { fixed, call, lay: Lay::ALL[n / 2 % 5], values, seed: n as u64 * 3 + 1 });
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let TopKStatic { k, dtype, indices } = case.fixed;
        let rows = shape(case.call.rows, case.seed % 3);
        let mut random = Generator::new(case.seed);
        let x = random.operand(dtype, &[&rows[..], &[case.call.width]].concat(), case.lay, case.values)?;
        let out = [&rows[..], &[k]].concat();
        let values = random.output(dtype, &out, lay(case.lay, case.seed, 1))?;
        let indices = random.output(indices, &out, lay(case.lay, case.seed, 2))?;
        Ok(HostOperands { inputs: vec![Some(x)], outputs: vec![values, indices] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, output: usize, index: &[usize]) -> Expected {
        let (x, width) = (host.input(TopK::X), case.call.width);
        let (&rank, row) = index.split_last().expect("the outputs have a dimension for k");
        let row = row.iter().zip(&x.shape).fold(0, |at, (&i, &size)| at * size + i);
        let values = &x.values[row * width..(row + 1) * width];
        let mut order: Vec<usize> = (0..width).collect();
        // Stable: of equal elements the first stays first.
        order.sort_by(|&a, &b| match (values[a].is_nan(), values[b].is_nan()) {
            (false, false) => values[b].partial_cmp(&values[a]).unwrap_or(Ordering::Equal),
            (a, b) => b.cmp(&a),
        });
        let at = order[rank];
        Expected::exact(if output == TopK::INDICES { at as f64 } else { values[at] })
    }
}
