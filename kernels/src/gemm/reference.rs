//! The f64 reference of one element.

use sinew_tensor::DType;

use super::epilogue::Residual;
use super::{BIAS, Compute, Gemm, GemmStatic, NORM_BIAS, NORM_WEIGHT, ORDER, RESIDUAL, Rhs, held};
use crate::Arithmetic;
use crate::activation::Activation;
use crate::harness::case::{Case, Expected, HostOperands, Values};
use crate::norm::reference::Normed;
use crate::packed::PanelKind;

/// A sum and the error that a chain of f32 roundings may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub value: f64,
    pub error: f64,
    /// Whether it is an infinity times a number that f32 may round to zero: an infinity or NaN.
    pub not_finite: bool,
}

/// Half the distance between 1 and the next f32: the relative error of one rounding.
const U: f64 = 1.0 / (1 << 24) as f64;
/// The smallest positive f32, and the smallest normal one.
const TINY: f64 = 1.401298464324817e-45;
const NORMAL: f64 = 1.1754943508222875e-38;

/// `Σ_k A[b, m, k] · B[b, k, n]` of operands rounded as the problem says.
fn sum(case: &Case<Gemm>, host: &HostOperands, arithmetic: Arithmetic, [b, m, n]: [usize; 3]) -> Sum {
    let fixed = &case.fixed;
    let (left, right) = (host.input(super::A), host.input(super::B));
    let rounded = |x: f64, low: bool| if low { DType::BF16.round(x) } else { x };
    let low = fixed.compute == Compute::Bf16;
    let (strided, k) = (matches!(fixed.b, Rhs::Strided(_)), fixed.k);
    let left = &left.values[(b * case.call.m + m) * k..][..k];
    // A packed weight's values are [N, K], a strided operand's [batch, K, N].
    let right = (0..k).map(|i| right.values[if strided { (b * k + i) * fixed.n + n } else { n * k + i }]);
    let norm = fixed.norm_alone();
    let vector = |position: usize| host.inputs[position].as_ref().map(|operand| operand.values.as_slice());
    let normed = norm.as_ref().map(|norm| (norm, Normed::new(norm, left, vector(NORM_WEIGHT), vector(NORM_BIAS))));
    let order = vector(ORDER);
    let mut error = 0.0;
    let right: Vec<f64> = right.map(|y| rounded(y, low && strided)).collect();
    let of_row = |(i, y): (usize, &f64)| {
        let i = column(i, order);
        let Some((norm, row)) = &normed else { return left[i] };
        // What f32 makes of it lies within an error, and what that is rounded to between the ends.
        let [x, least, most] =
            [0.0, -1.0, 1.0].map(|error| rounded(norm.out.round(row.value(i) + error * row.error(i)), low));
        // Beside a step of int8 that is nothing.
        if fixed.compute != Compute::Int8 {
            error += ((x - least).abs().max((most - x).abs()) * y).abs();
        }
        x
    };
    let left: Vec<f64> = right.iter().enumerate().map(of_row).collect();
    let right = match held::group(fixed) {
        Some(group) if strided => held::int8(&right, group),
        _ => right,
    };
    if normed.is_some() {
        error += held::step_error(fixed, arithmetic, &left, &right);
    }
    let sum = Sum::of(held::held(fixed, arithmetic, &left).into_iter().zip(right), arithmetic);
    Sum { error: sum.error + if error.is_nan() { 0.0 } else { error }, ..sum }
}

/// The column that is multiplied in a step.
fn column(step: usize, order: Option<&[f64]>) -> usize {
    order.map_or(step, |order| order[step] as usize)
}

/// The values of a row in a weight's order.
pub(crate) fn gathered(left: &[f64], order: Option<&[f64]>) -> Vec<f64> {
    (0..left.len()).map(|step| left[column(step, order)]).collect()
}

/// `Σ a·b` of a row in the weight's order and an output of a packed weight.
pub(crate) fn packed_sum(fixed: &GemmStatic, left: &[f64], right: &[f64], arithmetic: Arithmetic) -> Sum {
    Sum::of(held::held(fixed, arithmetic, left).into_iter().zip(right.iter().copied()), arithmetic)
}

/// Whether small integers come through an activation exactly, unless gated: factors are powers of two, and sums below
/// 2^24.
fn is_exact(activation: Option<Activation>) -> bool {
    matches!(activation, None | Some(Activation::Relu))
}

impl Sum {
    /// The sum of products.
    ///
    /// A chain of K roundings errs by at most `K·u` of `Σ|a·b|`, in practice by some `√K·u` of the norms' product. Half
    /// of that leeway more is given: enough for the worst of many elements, and far below one product that is missing,
    /// which the worst-case bound `2·K·eps` would let pass from K = 2,000 on. Where large numbers meet zeros, `4·K·u` of
    /// `Σ|a·b|` is less, and counts.
    pub(crate) fn of(products: impl Iterator<Item = (f64, f64)>, arithmetic: Arithmetic) -> Self {
        let (mut value, mut left_norm, mut right_norm) = (0.0, 0.0f64, 0.0f64);
        let (mut left_max, mut right_max, mut k, mut magnitudes) = (0.0f64, 0.0f64, 0.0, 0.0);
        for (x, y) in products {
            value += x * y;
            k += 1.0;
            if x.is_finite() && y.is_finite() {
                left_norm += x * x;
                right_norm += y * y;
                magnitudes += (x * y).abs();
                left_max = left_max.max(x.abs());
                right_max = right_max.max(y.abs());
            }
        }
        let usual = (12.0 * f64::sqrt(k) + 4.0).min(4.0 * k) * (left_norm * right_norm).sqrt();
        let mut error = usual.min(4.0 * k * magnitudes) * U + k * TINY;
        if arithmetic.flushes_subnormals {
            error += k * NORMAL * (1.0 + left_max + right_max);
        }
        Self { value, error, not_finite: false }
    }

    /// It with a bias.
    pub(crate) fn biased(self, bias: f64) -> Self {
        let value = self.value + bias;
        Self { value, error: self.error + U * value.abs(), ..self }
    }

    /// The activation of it.
    pub(crate) fn activated(self, activation: Activation) -> Self {
        let value = activation.reference(self.value);
        // No activation here is steeper than 1.13, but ReLU², whose slope is 2x.
        let slope = if activation == Activation::Relu2 { 2.0 * (self.value.abs() + self.error) } else { 1.13 };
        // 4 ulp, or 1e-7.
        let own = match activation {
            Activation::Relu => 0.0,
            _ => (4.0 * DType::F32.ulp(value)).max(1e-7),
        };
        // What is cut to a limit is as exact as the limit, however far beyond it lies.
        let carried = if value.is_finite() && self.value.is_infinite() { 0.0 } else { self.error * slope };
        Self { value, error: carried + own, ..self }
    }

    /// What a gate's activation is multiplied with, of the sum of its up.
    fn factor(self, activation: Option<Activation>) -> Self {
        match activation {
            Some(activation @ Activation::SwigluOai) => {
                // Limits move what is summed no further away, and 1 is added with a rounding.
                let value = activation.factor_reference(self.value);
                let carried = if self.value.is_infinite() { 0.0 } else { self.error };
                Self { value, error: carried + U * value.abs(), ..self }
            }
            _ => self,
        }
    }

    /// Its product with an up, where it is the activation of a gate.
    pub(crate) fn gating(self, activation: Option<Activation>, up: Self) -> Self {
        let up = up.factor(activation);
        let value = self.value * up.value;
        let error = self.error * up.value.abs() + (self.value.abs() + self.error) * up.error + U * value.abs();
        Self { value, error, not_finite: up.value.is_infinite() && self.value.abs() <= self.error }
    }

    /// It rounded to a result's type, at the larger end of where the f32 value may be.
    pub(crate) fn rounded_to(self, out: DType) -> Expected {
        let rounding = 0.5 * out.ulp(self.value.abs() + self.error);
        let bound = if self.error.is_finite() { self.error + rounding } else { rounding };
        Expected { not_finite: self.not_finite, ..Expected::within(self.value, bound) }
    }
}

/// An element of the result.
pub(super) fn expected(case: &Case<Gemm>, host: &HostOperands, arithmetic: Arithmetic, index: [usize; 3]) -> Expected {
    let (fixed, epilogue) = (&case.fixed, &case.fixed.epilogue);
    let [b, m, n] = index;
    let before = |n: usize| {
        let Sum { mut value, mut error, not_finite } = sum(case, host, arithmetic, [b, m, n]);
        value *= f64::from(epilogue.alpha);
        error = error * f64::from(epilogue.alpha).abs() + 2.0 * U * value.abs();
        let x = Sum { value, error, not_finite };
        if epilogue.bias.is_some() { x.biased(host.input(BIAS).values[n]) } else { x }
    };
    let mut x = before(n);
    if let Some(activation) = epilogue.activation {
        x = x.activated(activation);
    }
    if epilogue.gated {
        x = x.gating(epilogue.activation, before(n + fixed.n / 2));
    }
    if epilogue.residual.is_some() {
        let residual = match epilogue.residual {
            Some(Residual::Input(_)) => host.input(RESIDUAL).at(&index),
            _ => host.outputs[0].at(&index),
        };
        let product = f64::from(epilogue.beta) * residual;
        x.error += U * (x.value.abs() + 2.0 * product.abs());
        x.value += product;
    }
    let blocks = fixed.panel_kind().and_then(PanelKind::blocks);
    let exact = blocks.is_none() && fixed.norm.is_none() && case.values == Values::Integers;
    if exact && !epilogue.gated && is_exact(epilogue.activation) {
        return Expected::exact(fixed.out.round(x.value));
    }
    x.rounded_to(fixed.out)
}
