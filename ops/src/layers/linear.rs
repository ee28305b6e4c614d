//! A linear layer: a packed weight, an epilogue and the kernels chosen for it.

use std::sync::Arc;

use sinew_kernels::activation::Activation;
use sinew_kernels::gemm::{Compute, Epilogue, Gemm, GemmDynamic, GemmStatic, Residual, Rhs};
use sinew_tensor::{DType, Tensor, View, ViewMut};

use super::{PackedWeight, names, row_counts, size};
use crate::error::refuse;
use crate::{Context, Planned, Result};

/// What a linear layer does around its product.
#[derive(Debug, Clone)]
pub struct LinearOptions {
    /// Dtype of the input.
    pub input: DType,
    /// Dtype of the output.
    pub output: DType,
    /// Dtype of the product's operands.
    pub compute: Compute,
    /// f32 `[n]`; for gated weights that of gate, then that of up.
    pub bias: Option<Tensor>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// For gated weights: `act(gate) · up`, which halves the output.
    pub gated: Option<Activation>,
    /// Add to what the output holds.
    pub accumulate: bool,
}

impl LinearOptions {
    /// A plain product.
    pub fn new(input: DType, output: DType, compute: Compute) -> Self {
        Self { input, output, compute, bias: None, activation: None, gated: None, accumulate: false }
    }

    /// The same, added to what the output holds: the residual stream.
    pub fn accumulate(self) -> Self {
        Self { accumulate: true, ..self }
    }
}

/// `y = act(x · Wᵀ + b)`, planned for up to a number of rows.
#[derive(Debug)]
pub struct Linear {
    weight: Arc<PackedWeight>,
    bias: Option<Tensor>,
    plan: Planned<Gemm>,
}

impl Linear {
    /// Plans a linear layer for inputs of up to `max_rows` rows.
    ///
    /// # Errors
    /// Options that do not fit the weight, or no kernel for them on the context's device.
    pub fn new(ctx: &Context, weight: Arc<PackedWeight>, options: LinearOptions, max_rows: usize) -> Result<Self> {
        if weight.shape().gated != options.gated.is_some() {
            return Err(refuse("linear", "a gated weight and a gated activation go together"));
        }
        if weight.shape().groups != 1 {
            let groups = weight.shape().groups;
            return Err(refuse("linear", format!("{groups} weights in one are for a grouped linear layer")));
        }
        let epilogue = Epilogue {
            bias: options.bias.as_ref().map(Tensor::dtype),
            activation: options.gated.or(options.activation),
            gated: options.gated.is_some(),
            residual: options.accumulate.then_some(Residual::Output),
            ..Epilogue::default()
        };
        let fixed = GemmStatic {
            n: weight.n(),
            k: weight.k(),
            a: options.input,
            norm: None,
            b: Rhs::Packed(weight.shape().format),
            out: options.output,
            compute: options.compute,
            epilogue,
        };
        let calls: Vec<GemmDynamic> = row_counts(max_rows).map(|m| GemmDynamic { batch: 1, m }).collect();
        let plan = ctx.plan::<Gemm>(fixed, &calls)?;
        Ok(Self { weight, bias: options.bias, plan })
    }

    /// Enqueues `x [rows, k]` to `out [rows, n]` (`n / 2` where gated).
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, x: View<'_>, out: ViewMut<'_>) -> Result<()> {
        let batched = |layout: &sinew_tensor::Layout| -> Result<sinew_tensor::Layout> { Ok(layout.unsqueeze(0)?) };
        let x = x.with_layout(batched(x.layout())?)?;
        let call = GemmDynamic { batch: 1, m: size(&x, 1) };
        let layout = batched(out.layout())?;
        let out = out.with_layout(layout)?;
        let inputs = [Some(x), Some(self.weight.tensor().view()), self.bias.as_ref().map(Tensor::view)];
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Bytes of the packed weight.
    pub fn weight_bytes(&self) -> usize {
        self.weight.len()
    }

    /// Kernels chosen, for few rows first.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
