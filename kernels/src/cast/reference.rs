//! The reference of a cast, and its cases.

use sinew_tensor::DType;

use super::{Cast, CastStatic};
use crate::elementwise::Elements;
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Reference};
use crate::harness::strided_cases::{kind, lay, shape, spread, wrapped};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

pub(super) fn cast(fixed: CastStatic, x: f64) -> f64 {
    let CastStatic { input, output } = fixed;
    if output.is_float() || output == DType::Bool || input.is_float() {
        // Rounds floats, truncates and saturates integers, and takes all but 0 for true.
        output.round(x)
    } else {
        wrapped(output, x as i64)
    }
}

impl Reference for Cast {
    fn stored_as(stored: StoredAs) -> Option<(CastStatic, Elements)> {
        // To the same dtype any is a copy.
        let input = stored.plain()?;
        let output = if input == DType::F32 { DType::BF16 } else { DType::F32 };
        Some((CastStatic { input, output }, Elements(60)))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let pair = |(input, output)| CastStatic { input, output };
        let among = |dtypes: &[DType]| -> Vec<(DType, DType)> {
            dtypes.iter().flat_map(|&a| dtypes.iter().map(move |&b| (a, b))).collect()
        };
        let every: Vec<CastStatic> = among(&DType::ALL).into_iter().map(pair).collect();
        let compute: Vec<CastStatic> = among(&DType::COMPUTE).into_iter().map(pair).collect();
        let copies: Vec<CastStatic> = DType::ALL.into_iter().map(|dtype| pair((dtype, dtype))).collect();
        let rounds = if depth == Depth::Quick { 1 } else { 10 };
        let all = [spread(&every, rounds), spread(&compute, 6 * rounds), spread(&copies, 4 * rounds)].concat();
        let cases = all.into_iter();
        cases.map(|(fixed, n, lay, values, seed)| Case { fixed, call: Elements(n), lay, values, seed }).collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let shape = shape(case.call.0, case.seed);
        let mut random = Generator::new(case.seed);
        let CastStatic { input, output } = case.fixed;
        let x = random.operand(input, &shape, lay(case.lay, case.seed, 0), kind(input, case.values))?;
        let y = random.output(output, &shape, lay(case.lay, case.seed, 1))?;
        Ok(HostOperands { inputs: vec![Some(x)], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        Expected::exact(cast(case.fixed, host.input(Self::X).at(index)))
    }
}
