//! The f64 references of elementwise functions, and their cases.

use sinew_tensor::DType;

use super::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, INTEGERS, Unary, UnaryFunction, UnaryStatic, Where,
    WhereStatic,
};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, host_operand,
};
use crate::harness::strided_cases::{kind, lay, shape, spread, wrapped};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// Units in the last place of f32 that the approximated functions may be wrong by: [`crate::simd::math::exp`] is
/// within 1.5, and the standard library's within 1.
const FUNCTION_ULPS: f64 = 2.0;
/// The same of f64: CUDA's sin, cos and pow are within 2, and the standard library's, which is the reference, within 1.
const WIDE_FUNCTION_ULPS: f64 = 3.0;

/// Units in the last place of f32 that WGSL lets a driver's quotients, roots and reciprocal roots be wrong by, at most.
const DRIVER_ULPS: f64 = 7.0;

fn rounds(depth: Depth) -> usize {
    match depth {
        Depth::Quick => 2,
        Depth::Full => 20,
    }
}

/// A row that rounds a correctly rounded f32 result to the output's dtype.
fn rounded(output: DType, value: f64) -> Expected {
    let compute = if output == DType::F64 { DType::F64 } else { DType::F32 };
    Expected::exact(output.round(compute.round(value)))
}

/// A quotient or root: correctly rounded, but in WGSL, whose arithmetics flush.
fn divided(arithmetic: Arithmetic, output: DType, value: f64) -> Expected {
    let expected = rounded(output, value);
    if !arithmetic.flushes_subnormals {
        return expected;
    }
    let rounding = if output == DType::F32 { 0.0 } else { output.ulp(value) };
    Expected::within(expected.value, DRIVER_ULPS * DType::F32.ulp(value) + rounding).flushing(arithmetic, 1.0, 0.0)
}

/// A function that is computed in f32, or for f64 in f64, to within a few units.
fn approximated(output: DType, value: f64) -> Expected {
    if output == DType::F64 {
        return Expected::within(value, WIDE_FUNCTION_ULPS * DType::F64.ulp(value));
    }
    // Subnormal results of exp may be flushed.
    let bound = FUNCTION_ULPS * DType::F32.ulp(value) + 2f64.powi(-126);
    let rounding = if output == DType::F32 { 0.0 } else { 0.51 * output.ulp(value) };
    Expected::within(value, bound + rounding)
}

impl Reference for Unary {
    fn stored_as(stored: StoredAs) -> Option<(UnaryStatic, Elements)> {
        let input = stored.plain()?;
        Some((UnaryStatic { function: UnaryFunction::Neg, input, output: input }, Elements(60)))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut problems = Vec::new();
        for (i, function) in UnaryFunction::ALL.into_iter().enumerate() {
            for (j, input) in DType::COMPUTE.into_iter().enumerate() {
                // In place where the dtypes agree, mixed otherwise.
                let output = if function == UnaryFunction::Not { DType::Bool } else { DType::COMPUTE[(i + 2 * j) % 3] };
                problems.push(UnaryStatic { function, input, output });
            }
            let wide = INTEGERS.into_iter().filter(|_| function.takes_integers()).chain([DType::F64]);
            problems.extend(wide.map(|input| {
                let output = if function == UnaryFunction::Not { DType::Bool } else { input };
                UnaryStatic { function, input, output }
            }));
        }
        let cases = spread(&problems, rounds(depth)).into_iter();
        cases.map(|(fixed, n, lay, values, seed)| Case { fixed, call: Elements(n), lay, values, seed }).collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let shape = shape(case.call.0, case.seed);
        let mut random = Generator::new(case.seed);
        let kind = kind(case.fixed.input, case.values);
        let (input, output) = (case.fixed.input, case.fixed.output);
        if input == output && case.in_place() {
            let y = in_place(&mut random, output, &shape, case.lay, kind)?;
            return Ok(HostOperands { inputs: vec![None], outputs: vec![y] });
        }
        let x = random.operand(input, &shape, lay(case.lay, case.seed, 0), kind)?;
        let y = random.output(output, &shape, lay(case.lay, case.seed, 1))?;
        Ok(HostOperands { inputs: vec![Some(x)], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        use UnaryFunction as F;
        let UnaryStatic { function, input, output } = case.fixed;
        let x = host.inputs[Unary::X].as_ref().unwrap_or_else(|| &host.outputs[Unary::Y]).at(index);
        if INTEGERS.contains(&input) && function != F::Not {
            let n = x as i64;
            let value = match function {
                F::Neg => -n,
                F::Abs => n.abs(),
                F::Sign => n.signum(),
                _ => n * n,
            };
            return Expected::exact(wrapped(output, value));
        }
        let compute = if input == DType::F64 { DType::F64 } else { DType::F32 };
        match function {
            F::Neg => rounded(output, -x),
            F::Abs => rounded(output, x.abs()),
            F::Sign => rounded(output, if x == 0.0 || x.is_nan() { x } else { x.signum() }),
            F::Square => rounded(output, x * x).flushing(arithmetic, 2.0, x.abs()),
            F::Sqrt => divided(arithmetic, output, x.sqrt()),
            F::Rsqrt => divided(arithmetic, output, 1.0 / compute.round(x.sqrt())),
            F::Recip => divided(arithmetic, output, 1.0 / x),
            F::Exp => approximated(output, x.exp()),
            F::Log => approximated(output, x.ln()),
            F::Sin => approximated(output, x.sin()),
            F::Cos => approximated(output, x.cos()),
            F::Tanh => approximated(output, x.tanh()),
            F::Floor => rounded(output, x.floor()),
            F::Ceil => rounded(output, x.ceil()),
            F::Round => rounded(output, x.round_ties_even()),
            F::Not => Expected::exact(f64::from(u8::from(x == 0.0))),
        }
    }
}

/// An output that is read as well.
fn in_place(random: &mut Generator, dtype: DType, shape: &[usize], lay: Lay, values: Values) -> Result<HostOperand> {
    let all = (0..shape.iter().product()).map(|_| random.value(values, dtype)).collect();
    host_operand(dtype, shape, lay, all, true)
}

impl Reference for Binary {
    fn stored_as(stored: StoredAs) -> Option<(BinaryStatic, BinaryDynamic)> {
        let a = stored.plain()?;
        Some((BinaryStatic { function: BinaryFunction::Add, a, b: a, output: a }, BinaryDynamic::new(60)))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut problems = Vec::new();
        for (i, function) in BinaryFunction::ALL.into_iter().enumerate() {
            let to = |dtype| if function.compares() { DType::Bool } else { dtype };
            for (j, a) in DType::COMPUTE.into_iter().enumerate() {
                let (b, output) = (DType::COMPUTE[(i + j) % 3], to(DType::COMPUTE[(i + 2 * j) % 3]));
                problems.push(BinaryStatic { function, a, b, output });
            }
            let wide = INTEGERS.into_iter().filter(|_| function.takes_integers()).chain([DType::F64]);
            problems.extend(wide.map(|dtype| BinaryStatic { function, a: dtype, b: dtype, output: to(dtype) }));
        }
        let cases = spread(&problems, rounds(depth)).into_iter();
        cases
            .map(|(fixed, n, lay, values, seed)| {
                let call = BinaryDynamic::with_scalar(n, [1.5, -2.0, 0.1, 3.0][seed as usize / 5 % 4]);
                Case { fixed, call, lay, values, seed }
            })
            .collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let shape = shape(case.call.elements, case.seed);
        let mut random = Generator::new(case.seed);
        let BinaryStatic { a: a_dtype, b: b_dtype, output, .. } = case.fixed;
        let kind = kind(a_dtype, case.values);
        let b = if case.seed.is_multiple_of(5) {
            None
        } else {
            Some(random.operand(b_dtype, &shape, lay(case.lay, case.seed, 1), kind)?)
        };
        if a_dtype == output && case.seed.is_multiple_of(3) {
            let y = in_place(&mut random, output, &shape, lay(case.lay, case.seed, 2), kind)?;
            return Ok(HostOperands { inputs: vec![None, b], outputs: vec![y] });
        }
        let a = random.operand(a_dtype, &shape, lay(case.lay, case.seed, 0), kind)?;
        let y = random.output(output, &shape, lay(case.lay, case.seed, 2))?;
        Ok(HostOperands { inputs: vec![Some(a), b], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        use BinaryFunction as F;
        let BinaryStatic { function, a: dtype, b: b_dtype, output } = case.fixed;
        let a = host.inputs[Binary::A].as_ref().unwrap_or_else(|| &host.outputs[Binary::Y]).at(index);
        let b = host.inputs[Binary::B].as_ref().map_or(b_dtype.round(case.call.scalar()), |b| b.at(index));
        let either_nan = a.is_nan() || b.is_nan();
        if INTEGERS.contains(&dtype) && !function.compares() {
            let (a, b) = (a as i64, b as i64);
            let value = match function {
                F::Add => a + b,
                F::Sub => a - b,
                F::Mul => a * b,
                F::Max => a.max(b),
                _ => a.min(b),
            };
            return Expected::exact(wrapped(dtype, value));
        }
        let truth = |yes: bool| Expected::exact(f64::from(u8::from(yes)));
        match function {
            F::Add => rounded(output, a + b).flushing(arithmetic, 3.0, a.abs().max(b.abs())),
            F::Sub => rounded(output, a - b).flushing(arithmetic, 3.0, a.abs().max(b.abs())),
            F::Mul => rounded(output, a * b).flushing(arithmetic, 3.0, a.abs().max(b.abs())),
            F::Div => divided(arithmetic, output, a / b),
            F::Max => rounded(output, if either_nan { f64::NAN } else { a.max(b) }),
            F::Min => rounded(output, if either_nan { f64::NAN } else { a.min(b) }),
            F::Pow => approximated(output, a.powf(b)),
            F::Eq => truth(a == b),
            F::Ne => truth(a != b),
            F::Lt => truth(a < b),
            F::Le => truth(a <= b),
            F::Gt => truth(a > b),
            F::Ge => truth(a >= b),
        }
    }
}

impl Reference for Where {
    fn stored_as(stored: StoredAs) -> Option<(WhereStatic, Elements)> {
        Some((WhereStatic { dtype: stored.plain()? }, Elements(60)))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let problems: Vec<WhereStatic> = DType::ALL.into_iter().map(|dtype| WhereStatic { dtype }).collect();
        let cases = spread(&problems, 2 * rounds(depth)).into_iter();
        cases.map(|(fixed, n, lay, values, seed)| Case { fixed, call: Elements(n), lay, values, seed }).collect()
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let shape = shape(case.call.0, case.seed);
        let dtype = case.fixed.dtype;
        let kind = kind(dtype, case.values);
        let mut random = Generator::new(case.seed);
        let coins = (0..shape.iter().product()).map(|_| random.below(2) as f64).collect();
        let condition = host_operand(DType::Bool, &shape, lay(case.lay, case.seed, 0), coins, false)?;
        let a = random.operand(dtype, &shape, lay(case.lay, case.seed, 1), kind)?;
        let b = random.operand(dtype, &shape, lay(case.lay, case.seed, 2), kind)?;
        let y = random.output(dtype, &shape, lay(case.lay, case.seed, 3))?;
        Ok(HostOperands { inputs: vec![Some(condition), Some(a), Some(b)], outputs: vec![y] })
    }

    fn expect(_: &Case<Self>, host: &HostOperands, _: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let from = if host.input(Self::CONDITION).at(index) != 0.0 { Self::A } else { Self::B };
        Expected::exact(host.input(from).at(index))
    }
}
