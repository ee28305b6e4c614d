//! The reference of gathers, and their cases.

use sinew_tensor::{DType, Layout};

use super::{Gather, GatherDynamic, GatherStatic};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, host_operand,
};
use crate::harness::strided_cases::{kind, lay};
use crate::strided::Indices;
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// Shapes of the output; no two have as many elements.
const SHAPES: [&[usize]; 9] =
    [&[1], &[13], &[0, 3], &[7, 5], &[4, 1, 9], &[64, 70], &[3, 5, 7, 2], &[31, 600], &[2, 3, 2, 1, 2, 2]];

impl Reference for Gather {
    fn stored_as(stored: StoredAs) -> Option<(GatherStatic, GatherDynamic)> {
        Some((GatherStatic { dtype: stored.plain()?, dim: 0 }, GatherDynamic { elements: 40, size: 17 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for n in 0..if depth == Depth::Quick { 90 } else { 900 } {
            let shape = SHAPES[n % SHAPES.len()];
            let fixed = GatherStatic { dtype: DType::ALL[n % DType::ALL.len()], dim: n / 2 % shape.len() };
            let call = GatherDynamic { elements: shape.iter().product(), size: [1, 5, 40][n / 3 % 3] };
            let values = [Values::Normal, Values::Special, Values::Integers, Values::Subnormal][n / 4 % 4];
            cases.push(Case { fixed, call, lay: Lay::ALL[n / 2 % 5], values, seed: n as u64 * 3 + 1 });
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (dim, dtype) = (case.fixed.dim, case.fixed.dtype);
        // A problem that is no case of these has all its elements along the dimension.
        let own = [vec![1; dim], vec![case.call.elements]].concat();
        let fits = |shape: &&[usize]| shape.len() > dim && shape.iter().product::<usize>() == case.call.elements;
        let shape = SHAPES.into_iter().find(fits).unwrap_or(&own);
        let mut x_shape: Vec<usize> = shape.iter().map(|&size| size + case.seed as usize % 2).collect();
        x_shape[dim] = case.call.size;
        let mut random = Generator::new(case.seed);
        let x = random.operand(dtype, &x_shape, case.lay, kind(dtype, case.values))?;
        let index_dtype = Indices::DTYPES[case.seed as usize / 2 % 3];
        let index = if case.seed % 4 < 2 {
            let all = (0..case.call.elements).map(|_| random.below(case.call.size) as f64).collect();
            host_operand(index_dtype, shape, lay(case.lay, case.seed, 1), all, false)?
        } else {
            let list: Vec<f64> = (0..shape[dim]).map(|_| random.below(case.call.size) as f64).collect();
            broadcast(index_dtype, shape, dim, list)?
        };
        let y = random.output(dtype, shape, lay(case.lay, case.seed, 2))?;
        Ok(HostOperands { inputs: vec![Some(x), Some(index)], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let mut from = index.to_vec();
        from[case.fixed.dim] = host.input(Self::INDEX).at(index) as usize;
        Expected::exact(host.input(Self::X).at(&from))
    }
}

/// A list along one dimension of a shape, repeated over the others.
fn broadcast(dtype: DType, shape: &[usize], dim: usize, list: Vec<f64>) -> Result<HostOperand> {
    let list = host_operand(dtype, &[shape[dim]], Lay::Stepped, list, false)?;
    let mut strides = vec![0; shape.len()];
    strides[dim] = list.tensor.layout().strides()[0];
    let layout = Layout::strided(shape, &strides, list.tensor.layout().offset())?;
    let after: usize = shape[dim + 1..].iter().product();
    let values = (0..layout.elements()).map(|i| list.values[i / after.max(1) % shape[dim]]).collect();
    Ok(HostOperand { tensor: list.tensor.with_layout(layout)?, shape: shape.to_vec(), values })
}
