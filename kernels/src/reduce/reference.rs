//! The f64 reference of reductions, and their cases.

use sinew_tensor::DType;

use super::{Reduce, ReduceDynamic, ReduceFunction, ReduceStatic};
use crate::elementwise::INTEGERS;
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values};
use crate::harness::strided_cases::{kind, lay, shape};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// Roundings that an element of a sum passes: 32 additions in a lane, four in the tree over lanes; the f64 sum over
/// blocks adds none that counts.
const ROUNDINGS: f64 = 36.0;

/// Rows and widths: none, one, around a vector, around a block, and past several.
const SHAPES: [(usize, usize); 12] = [
    (1, 1),
    (3, 17),
    (7, 16),
    (0, 5),
    (30, 105),
    (2, 512),
    (5, 513),
    (4, 2310),
    (1, 10_007),
    (1001, 3),
    (12, 1025),
    (700, 30),
];

impl Reference for Reduce {
    fn stored_as(stored: StoredAs) -> Option<(ReduceStatic, ReduceDynamic)> {
        let input = stored.plain()?;
        let float = DType::COMPUTE.contains(&input) || input == DType::F64;
        let output = if float { input } else { DType::I64 };
        let fixed = ReduceStatic { function: ReduceFunction::Sum, input, output, dims: 1 };
        Some((fixed, ReduceDynamic { rows: 3, width: 40 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        let mut n = 0usize;
        let mut push = |fixed: ReduceStatic, all: bool| {
            n += 1;
            // 0 dims and 2 dims in turn with 1.
            let fixed = ReduceStatic { dims: [1, 2, 1][n % 3], ..fixed };
            let (rows, width) = SHAPES[(n + n / SHAPES.len()) % SHAPES.len()];
            let values = [Values::Normal, Values::Integers, Values::Special, Values::Subnormal][n / 2 % 4];
            let values = if all { values } else { Values::Integers };
            let (lay, seed) = (Lay::ALL[(n / 3) % 5], n as u64 * 5 + 1);
            cases.push(Case { fixed, call: ReduceDynamic { rows, width }, lay, values, seed });
        };
        for round in 0..if depth == Depth::Quick { 8 } else { 60 } {
            for (i, function) in ReduceFunction::ALL.into_iter().enumerate() {
                let finds = function.finds();
                for (j, input) in DType::COMPUTE.into_iter().enumerate() {
                    let index = [DType::U32, DType::I64, DType::I32][(round + j) % 3];
                    let output = if finds { index } else { DType::COMPUTE[(i + j + round) % 3] };
                    push(ReduceStatic { function, input, output, dims: 1 }, true);
                }
                let wide = INTEGERS.into_iter().chain([DType::F64, DType::Bool]);
                for input in wide {
                    let output = match function {
                        ReduceFunction::ArgMax | ReduceFunction::ArgMin => DType::I64,
                        ReduceFunction::Sum if input != DType::F64 => DType::I64,
                        _ => input,
                    };
                    let fixed = ReduceStatic { function, input, output, dims: 1 };
                    if fixed.check().is_ok() {
                        push(fixed, input.is_float());
                    }
                }
            }
        }
        // Nothing to sum gives 0, and nothing to average NaN.
        for function in [ReduceFunction::Sum, ReduceFunction::Mean] {
            let fixed = ReduceStatic { function, input: DType::F32, output: DType::F32, dims: 1 };
            let call = ReduceDynamic { rows: 3, width: 0 };
            cases.push(Case { fixed, call, lay: Lay::Contiguous, values: Values::Normal, seed: 1 });
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let ReduceStatic { input, output, dims, .. } = case.fixed;
        let rows = shape(case.call.rows, case.seed % 3);
        let width = case.call.width;
        let mut full = rows.clone();
        if dims == 2 {
            let divisor = (2..=9).find(|d| width.is_multiple_of(*d)).unwrap_or(1);
            full.extend([width / divisor, divisor]);
        } else {
            full.push(width);
        }
        let mut random = Generator::new(case.seed);
        let x = random.operand(input, &full, case.lay, kind(input, case.values))?;
        let y = random.output(output, &rows, lay(case.lay, case.seed, 1))?;
        Ok(HostOperands { inputs: vec![Some(x)], outputs: vec![y] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        use ReduceFunction as F;
        let ReduceStatic { function, output, .. } = case.fixed;
        let (x, width) = (host.input(Reduce::X), case.call.width);
        let row = index.iter().zip(&x.shape).fold(0, |at, (&i, &size)| at * size + i);
        let values = &x.values[row * width..(row + 1) * width];
        match function {
            F::Sum | F::Mean => {
                let divisor = if function == F::Mean { width as f64 } else { 1.0 };
                let value = values.iter().sum::<f64>() / divisor;
                // WGSL lets a driver's quotients be wrong by 2.5 units.
                let divides = function == F::Mean && arithmetic.flushes_subnormals;
                let quotient = if divides { 2.5 * DType::F32.ulp(value) + 0.5 * output.ulp(value) } else { 0.0 };
                let magnitude: f64 = values.iter().map(|x| x.abs()).sum::<f64>() / divisor;
                if case.values == Values::Integers || case.fixed.input == DType::F64 {
                    // Sums of small integers are exact in either precision; f64 sums differ by their order.
                    let compute = if output == DType::F64 { DType::F64 } else { DType::F32 };
                    let wide = if case.values == Values::Integers { 0.0 } else { width as f64 * f64::EPSILON };
                    let division = if output == DType::F64 { DType::F64.ulp(value) } else { 0.0 };
                    let bound = wide * magnitude + division + quotient;
                    return Expected::within(output.round(compute.round(value)), bound);
                }
                let sum = ROUNDINGS.min(values.len() as f64) * f64::from(f32::EPSILON) / 2.0 * magnitude;
                let stored = 0.51 * (DType::F32.ulp(value) + output.ulp(value));
                Expected::within(value, sum + stored + quotient).flushing(arithmetic, values.len() as f64, 0.0)
            }
            F::Max | F::Min => {
                let better = |a: f64, b: f64| {
                    if a.is_nan() || b.is_nan() {
                        f64::NAN
                    } else if function == F::Max {
                        a.max(b)
                    } else {
                        a.min(b)
                    }
                };
                Expected::exact(output.round(values.iter().copied().reduce(better).unwrap_or(f64::NAN)))
            }
            F::ArgMax | F::ArgMin => {
                let mut best = 0;
                for (i, &x) in values.iter().enumerate() {
                    let wins = if function == F::ArgMax { x > values[best] } else { x < values[best] };
                    if !values[best].is_nan() && (x.is_nan() || wins) {
                        best = i;
                    }
                }
                Expected::exact(best as f64)
            }
        }
    }
}
