//! The activations in f64, and cases.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use sinew_tensor::DType;

use super::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate, SWIGLU_LIMIT};
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, host_operand};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// [`Activation::reference`].
pub(super) fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * (0.5 * erfc(-x * FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let u = (2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu if x.is_nan() => x,
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => {
            let positive = Activation::Relu.reference(x);
            positive * positive
        }
        // A NaN stays one.
        Activation::SwigluOai => Activation::QuickGelu.reference(x.clamp(f64::NEG_INFINITY, SWIGLU_LIMIT.into())),
    }
}

/// [`Activation::factor_reference`].
pub(super) fn factor(activation: Activation, up: f64) -> f64 {
    match activation {
        Activation::SwigluOai => up.clamp((-SWIGLU_LIMIT).into(), SWIGLU_LIMIT.into()) + 1.0,
        _ => up,
    }
}

/// Where the series gives way to the continued fraction.
const SWITCH: f64 = 2.5;

/// `erf x`, to about 1e-15.
pub fn erf(x: f64) -> f64 {
    if x.abs() < SWITCH { series(x) } else { 1.0 - erfc(x) }
}

/// `1 - erf x`, to a relative error of about 1e-15 above 2.5 and below 0, 1e-12 between.
pub fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < -SWITCH {
        return 2.0 - erfc(-x);
    }
    if x < SWITCH { 1.0 - series(x) } else { fraction(x) }
}

/// `erf x = 2/√π · e^-x² · Σ 2ⁿ·x^(2n+1) / (2n+1)!!` (Abramowitz and Stegun 7.1.6), whose terms have one sign.
fn series(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `erfc x = e^-x²/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))` (Abramowitz and Stegun 7.1.14), from the 120th
/// quotient back: far more than it takes from 2.5 on.
fn fraction(x: f64) -> f64 {
    let mut tail = x;
    for n in (1..=120).rev() {
        tail = x + f64::from(n) * 0.5 / tail;
    }
    FRAC_2_SQRT_PI * 0.5 * (-x * x).exp() / tail
}

/// Below this the functions neither cancel nor saturate, and relative accuracy is wanted however small the value.
const NEAR: f64 = 0.5;
/// Units in the last place of f32 that are allowed there: GELU takes 4.5.
const NEAR_ULPS: f64 = 6.0;

/// Shapes: empty, single, vectors and their neighbours, primes, and more than one task.
const SHAPES: [&[usize]; 14] = [
    &[3, 17],
    &[],
    &[1],
    &[16],
    &[5, 1],
    &[2, 3, 31],
    &[0, 8],
    &[7, 513],
    &[2, 2, 2, 15],
    &[1, 1031],
    &[13, 127],
    &[4, 0],
    &[2, 96],
    &[9, 4099],
];

impl Reference for Activate {
    fn stored_as(stored: StoredAs) -> Option<(ActivationStatic, ActivationDynamic)> {
        let x = stored.plain()?;
        let fixed = ActivationStatic { activation: Activation::Silu, gate: Gate::None, x, out: x };
        Some((fixed, ActivationDynamic::of(&shape(&fixed, 0))))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let rounds = if depth == Depth::Quick { 1 } else { 8 };
        let mut cases = Vec::new();
        let functions = Activation::ALL.len();
        for n in 0..rounds * functions * 9 * 3 {
            // Every activation with every pair of dtypes and every gate; the rest advances at other paces.
            let turn = n / functions;
            let fixed = ActivationStatic {
                activation: Activation::ALL[n % functions],
                gate: [Gate::None, Gate::Tensor, Gate::Halves][turn % 3],
                x: DType::COMPUTE[turn / 3 % 3],
                out: DType::COMPUTE[turn / 9 % 3],
            };
            let seed = (n * 5 + turn + turn / 27) as u64;
            let shape = shape(&fixed, seed);
            cases.push(Case {
                fixed,
                call: ActivationDynamic::of(&shape),
                lay: Lay::ALL[(n + n / 5) % 5],
                values: [Values::Normal, Values::Special, Values::Normal, Values::Subnormal, Values::Integers]
                    [turn % 5],
                seed,
            });
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let ActivationStatic { gate, x, out, .. } = case.fixed;
        let mut random = Generator::new(case.seed);
        let mut shape = shape(&case.fixed, case.seed);
        if ActivationDynamic::of(&shape) != case.call {
            // A case of someone else's, which names rows and their width alone.
            shape = vec![case.call.rows, case.call.width];
        }
        let mut wide = shape.clone();
        if let Some(last) = wide.last_mut().filter(|_| gate == Gate::Halves) {
            *last *= 2;
        }
        // Every fourth case has all operands lie alike; the others mix.
        let lay = |n: usize| match case.seed % 4 {
            0 => case.lay,
            _ => Lay::ALL[(case.lay as usize + n) % Lay::ALL.len()],
        };
        // A power of two keeps values in their format; it reaches the functions' tails.
        let spread = if case.values == Values::Normal { 4.0 } else { 1.0 };
        let mut input = |n: usize, shape: &[usize], dtype: DType, writable: bool| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| spread * random.value(case.values, dtype)).collect();
            host_operand(dtype, shape, lay(n), values, writable)
        };
        if gate != Gate::Halves && x == out && case.in_place() {
            let up = if gate == Gate::Tensor { Some(input(1, &shape, x, false)?) } else { None };
            return Ok(HostOperands { inputs: vec![None, up], outputs: vec![input(2, &shape, out, true)?] });
        }
        let first = input(0, &wide, x, false)?;
        let up = if gate == Gate::Tensor { Some(input(1, &shape, x, false)?) } else { None };
        let y = random.output(out, &shape, lay(2))?;
        Ok(HostOperands { inputs: vec![Some(first), up], outputs: vec![y] })
    }

    /// One element.
    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let ActivationStatic { activation, gate, out, .. } = case.fixed;
        let x = host.inputs[Activate::X].as_ref().unwrap_or_else(|| &host.outputs[Activate::Y]);
        let (gate, factor) = match gate {
            Gate::None => (x.at(index), 1.0),
            Gate::Tensor => (x.at(index), activation.factor_reference(host.input(Activate::UP).at(index))),
            Gate::Halves => {
                let mut second = index.to_vec();
                if let Some(last) = second.last_mut() {
                    *last += case.call.width;
                }
                (x.at(index), activation.factor_reference(x.at(&second)))
            }
        };
        let value = activation.reference(gate) * factor;
        let ulp = DType::F32.ulp(value);
        let bound = if gate.abs() < NEAR { NEAR_ULPS * ulp } else { (4.0 * ulp).max(1e-7 * factor.abs().max(1.0)) };
        let rounding = if out == DType::F32 { 0.0 } else { 0.5 * out.ulp(value) };
        // The input, what the activation makes of it, and the product.
        Expected::within(value, bound + rounding).flushing(arithmetic, 3.0, factor.abs())
    }
}

/// The output's shape in a case.
fn shape(fixed: &ActivationStatic, seed: u64) -> Vec<usize> {
    let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
    // A number has no halves.
    if fixed.gate == Gate::Halves && shape.is_empty() { vec![1] } else { shape.to_vec() }
}
