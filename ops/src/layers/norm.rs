//! RMS and layer norm with their weights.

use sinew_kernels::gemm::InputNorm;
use sinew_kernels::norm::{Norm as Operator, NormDynamic, NormFormula, NormKind, NormStatic};
use sinew_tensor::{DType, Tensor, View, ViewMut};

use super::{bytes, names, row_counts};
use crate::{Context, Planned, Result};

/// Kind, weights and dtypes of a norm.
#[derive(Debug, Clone)]
pub struct NormOptions {
    kind: NormKind,
    eps: f64,
    weight: Tensor,
    bias: Option<Tensor>,
    input: DType,
    output: DType,
}

impl NormOptions {
    /// `x / √(mean(x²) + eps) · weight` (Zhang and Sennrich 2019).
    pub fn rms(eps: f64, weight: Tensor, input: DType, output: DType) -> Self {
        Self { kind: NormKind::Rms, eps, weight, bias: None, input, output }
    }

    /// `(x - mean) / √(variance + eps) · weight + bias` (Ba et al. 2016), with or without a bias.
    pub fn layer(eps: f64, weight: Tensor, bias: impl Into<Option<Tensor>>, input: DType, output: DType) -> Self {
        Self { kind: NormKind::Layer, eps, weight, bias: bias.into(), input, output }
    }

    pub(super) fn input(&self) -> DType {
        self.input
    }

    pub(super) fn output(&self) -> DType {
        self.output
    }

    /// It as the norm of a product's input.
    pub(super) fn of_input(&self) -> InputNorm {
        InputNorm { formula: self.formula(), to: self.output }
    }

    fn formula(&self) -> NormFormula {
        NormFormula {
            kind: self.kind,
            eps: (self.eps as f32).into(),
            weight: Some(self.weight.dtype()),
            weight_offset: 0.0.into(),
            bias: self.bias.as_ref().map(Tensor::dtype),
        }
    }

    /// Bytes of its weight and bias.
    pub(super) fn weight_bytes(&self) -> usize {
        bytes(&self.weight) + self.bias.as_ref().map_or(0, bytes)
    }

    /// Its weight and bias.
    pub(super) fn vectors(&self) -> [Option<View<'_>>; 2] {
        [Some(self.weight.view()), self.bias.as_ref().map(Tensor::view)]
    }
}

/// A planned norm over the last dimension.
#[derive(Debug)]
pub struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    plan: Planned<Operator>,
    in_place: Planned<Operator>,
}

impl Norm {
    /// Plans a norm for up to `max_rows` rows.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, options: NormOptions, max_rows: usize) -> Result<Self> {
        let formula = options.formula();
        let NormOptions { weight, bias, input, output, .. } = options;
        let fixed = |in_place| NormStatic {
            width: weight.layout().elements(),
            formula,
            x: input,
            out: if in_place { input } else { output },
            residual: None,
            in_place,
        };
        let calls: Vec<NormDynamic> = row_counts(max_rows).map(|rows| NormDynamic { rows }).collect();
        let (plan, in_place) = (ctx.plan(fixed(false), &calls)?, ctx.plan(fixed(true), &calls)?);
        Ok(Self { weight, bias, plan, in_place })
    }

    /// Enqueues `out = norm(x)`, both `[.., width]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, x: View<'_>, out: ViewMut<'_>) -> Result<()> {
        let call = NormDynamic::of(x.shape());
        let inputs = [Some(x), Some(self.weight.view()), self.bias.as_ref().map(Tensor::view)];
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Enqueues `x = norm(x)`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run_in_place(&self, ctx: &Context, x: ViewMut<'_>) -> Result<()> {
        let call = NormDynamic::of(x.shape());
        let inputs = [None, Some(self.weight.view()), self.bias.as_ref().map(Tensor::view)];
        self.in_place.run(ctx, &call, &inputs, &[x])
    }

    /// Bytes of its weight and bias.
    pub fn weight_bytes(&self) -> usize {
        bytes(&self.weight) + self.bias.as_ref().map_or(0, bytes)
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
