//! An operator of this crate's own: small, but with a mask, a sum and an elementwise part, so that kernels have
//! everything to get wrong that attention, norms and products have.

use std::fmt;

use sinew_kernels::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values};
use sinew_kernels::operator::{expect, expect_compute};
use sinew_kernels::support::StoredAs;
use sinew_kernels::{Arithmetic, Operands, Operator, Result, Work};
use sinew_tensor::DType;

/// `y[r, c] = x[r, c] + Σ_{i < min(r, width)} x[r, i]`: each row gets the sum of its first `r` elements. Row 0 is
/// masked whole, and so its sum is 0. In f32, rounded once.
///
/// Operands: input [`CausalSum::X`] and output [`CausalSum::Y`], `[rows, width]` of one dtype.
#[derive(Debug)]
pub struct CausalSum;

impl CausalSum {
    /// Input.
    pub const X: usize = 0;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`CausalSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalSumStatic {
    /// The dtype: f32, f16 or bf16.
    pub dtype: DType,
}

impl fmt::Display for CausalSumStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)
    }
}

/// The dynamic part of [`CausalSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalSumCall {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

impl fmt::Display for CausalSumCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.width)
    }
}

impl Operator for CausalSum {
    const NAME: &'static str = "causal_sum";
    type Static = CausalSumStatic;
    type Dynamic = CausalSumCall;

    fn bucket(call: CausalSumCall) -> CausalSumCall {
        call
    }

    fn anchor(_: &CausalSumStatic) -> CausalSumCall {
        CausalSumCall { rows: 64, width: 64 }
    }

    fn check(fixed: &CausalSumStatic, call: &CausalSumCall, operands: Operands<'_>) -> Result<()> {
        let x = operands.input(Self::NAME, Self::X, "x")?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        let shape = [call.rows, call.width];
        expect(Self::NAME, "x", x, fixed.dtype, &shape)?;
        expect(Self::NAME, "y", y, fixed.dtype, &shape)?;
        expect_compute(Self::NAME, fixed, [fixed.dtype])
    }

    fn work(fixed: &CausalSumStatic, call: &CausalSumCall) -> Work {
        let n = (call.rows * call.width) as f64;
        Work { flops: 2.0 * n, bytes: 2.0 * n * fixed.dtype.size() as f64 }
    }
}

impl Reference for CausalSum {
    fn stored_as(stored: StoredAs) -> Option<(CausalSumStatic, CausalSumCall)> {
        Some((CausalSumStatic { dtype: stored.plain()? }, CausalSumCall { rows: 17, width: 16 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let shapes = [(1, 1), (17, 16), (40, 33), (5, 0), (0, 5), (70, 45), (3, 129), (130, 100)];
        let values = [Values::Normal, Values::Integers, Values::Special, Values::Subnormal];
        let count = if depth == Depth::Quick { 96 } else { 960 };
        (0..count)
            .map(|n| Case {
                fixed: CausalSumStatic { dtype: DType::COMPUTE[n % 3] },
                call: CausalSumCall { rows: shapes[n % shapes.len()].0, width: shapes[n % shapes.len()].1 },
                lay: Lay::ALL[n / 3 % 5],
                values: values[n / 8 % 4],
                seed: n as u64,
            })
            .collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let shape = [case.call.rows, case.call.width];
        let mut random = Generator::new(case.seed);
        let x = random.operand(case.fixed.dtype, &shape, case.lay, case.values)?;
        let y = random.output(case.fixed.dtype, &shape, case.lay)?;
        Ok(HostOperands { inputs: vec![Some(x)], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let (x, dtype) = (host.input(Self::X), case.fixed.dtype);
        let before = index[0].min(case.call.width);
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for i in 0..before {
            sum += x.at(&[index[0], i]);
            magnitude += x.at(&[index[0], i]).abs();
        }
        let value = x.at(index) + sum;
        if case.values == Values::Integers {
            return Expected::exact(dtype.round(value));
        }
        // A chain of so many f32 additions, and the rounding to the output.
        let chain = (before as f64 + 1.0) * f64::from(f32::EPSILON) / 2.0 * (magnitude + x.at(index).abs());
        Expected::within(value, chain + 0.5 * dtype.ulp(value) + DType::F32.ulp(value))
    }
}
