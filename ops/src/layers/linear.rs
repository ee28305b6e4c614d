//! A linear layer: a packed weight, an epilogue and the kernels chosen for it.

use std::sync::Arc;

use sinew_kernels::activation::Activation;
use sinew_kernels::gemm::{
    A, B, BIAS, Epilogue, Gemm, GemmDynamic, GemmStatic, NORM_BIAS, NORM_WEIGHT, ORDER, Residual, Rhs,
};
use sinew_kernels::packed::PackedShape;
use sinew_kernels::{Compute, Error as KernelError, Placed};
use sinew_tensor::{DType, Tensor, View, ViewMut};

use super::{Norm, NormOptions, PackedWeight, Place, arithmetics, bytes, names, row_counts, size};
use crate::error::refuse;
use crate::{Context, Error, Planned, Result};

/// What a linear layer does around its product.
#[derive(Debug, Clone)]
pub struct LinearOptions {
    /// Dtype of the input.
    pub input: DType,
    /// Dtype of the output.
    pub output: DType,
    /// What the product's operands are multiplied in.
    pub compute: Compute,
    /// `[n]`, of f32, f16 or bf16; for gated weights that of gate, then that of up.
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

/// `y = act(norm(x) · Wᵀ + b)`, planned for up to a number of rows: one kernel where the device has one that norms rows
/// as it packs them, else two. Without a norm it is the product alone.
#[derive(Debug)]
pub struct NormedLinear {
    norm: InputNorm,
    linear: Linear,
}

/// What norms the input of a product.
#[derive(Debug)]
enum InputNorm {
    /// Nothing: the product is of the input as it is.
    Plain,
    /// The product's own kernel, as it packs rows.
    Folded(NormOptions),
    /// A kernel that runs before the product's.
    Apart(Norm),
}

impl Linear {
    /// Plans a linear layer for inputs of up to `max_rows` rows.
    ///
    /// # Errors
    /// Options that do not fit the weight, or no kernel for them on the context's device.
    pub fn new(ctx: &Context, weight: Arc<PackedWeight>, options: LinearOptions, max_rows: usize) -> Result<Self> {
        Self::planned(ctx, weight, options, None, max_rows)
    }

    /// That of the input as it is, or as `norm` gives it.
    fn planned(
        ctx: &Context,
        weight: Arc<PackedWeight>,
        options: LinearOptions,
        norm: Option<&NormOptions>,
        max_rows: usize,
    ) -> Result<Self> {
        if weight.shape().gated != options.gated.is_some() {
            return Err(refuse("linear", "a gated weight and a gated activation go together"));
        }
        if weight.shape().groups != 1 {
            let groups = weight.shape().groups;
            return Err(refuse("linear", format!("{groups} weights in one are for a grouped linear layer")));
        }
        let fixed = GemmStatic {
            a: norm.map_or(options.input, NormOptions::input),
            norm: norm.map(NormOptions::of_input),
            gathered: weight.order().is_some(),
            ..problem(weight.shape(), &options)
        };
        let plan = ctx.plan::<Gemm>(fixed, &calls(max_rows))?;
        Ok(Self { weight, bias: options.bias, plan })
    }

    /// Bytes of workspace that a layer with such a weight would make room for: known before there is one.
    ///
    /// # Errors
    /// No kernel on the context's device.
    pub fn workspace(ctx: &Context, weight: &PackedShape, options: &LinearOptions, max_rows: usize) -> Result<usize> {
        ctx.workspace_bytes::<Gemm>(&problem(weight, options), &calls(max_rows))
    }

    /// Enqueues `x [rows, k]` to `out [rows, n]` (`n / 2` where gated).
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, x: View<'_>, out: ViewMut<'_>) -> Result<()> {
        self.run_with(ctx, x, [None; 2], out)
    }

    /// The same with weight and bias of the norm that it was planned with.
    fn run_with(&self, ctx: &Context, x: View<'_>, norm: [Option<View<'_>>; 2], out: ViewMut<'_>) -> Result<()> {
        let batched = |layout: &sinew_tensor::Layout| -> Result<sinew_tensor::Layout> { Ok(layout.unsqueeze(0)?) };
        let x = x.with_layout(batched(x.layout())?)?;
        let call = GemmDynamic { batch: 1, m: size(&x, 1) };
        let layout = batched(out.layout())?;
        let out = out.with_layout(layout)?;
        let bias = self.bias.as_ref().map(Tensor::view);
        let [norm_weight, norm_bias] = norm;
        let order = self.weight.order().map(Tensor::view);
        let inputs = Placed::of([
            (A, Some(x)),
            (B, Some(self.weight.tensor().view())),
            (BIAS, bias),
            (NORM_WEIGHT, norm_weight),
            (NORM_BIAS, norm_bias),
            (ORDER, order),
        ]);
        self.plan.run(ctx, &call, &inputs, &[out])
    }

    /// Bytes of the packed weight and the bias.
    pub fn weight_bytes(&self) -> usize {
        self.weight.bytes() + self.bias.as_ref().map_or(0, bytes)
    }

    /// Kernels chosen, for few rows first.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// The product of a layer with a weight, of its input as it is.
fn problem(&PackedShape { format, n, k, .. }: &PackedShape, options: &LinearOptions) -> GemmStatic {
    let epilogue = Epilogue {
        bias: options.bias.as_ref().map(Tensor::dtype),
        activation: options.gated.or(options.activation),
        gated: options.gated.is_some(),
        residual: options.accumulate.then_some(Residual::Output),
        ..Epilogue::default()
    };
    GemmStatic::new(n, k, options.input, Rhs::Packed(format), options.output, options.compute).with(epilogue)
}

/// The calls that a plan chooses kernels for.
fn calls(max_rows: usize) -> Vec<GemmDynamic> {
    row_counts(max_rows).map(|m| GemmDynamic { batch: 1, m }).collect()
}

impl NormedLinear {
    /// Plans both for inputs of up to `max_rows` rows. The input of `options` is what the norm gives.
    ///
    /// # Errors
    /// Options that do not fit the weight or the norm, or no kernel for them on the context's device.
    pub fn new(
        ctx: &Context,
        norm: Option<NormOptions>,
        weight: Arc<PackedWeight>,
        options: LinearOptions,
        max_rows: usize,
    ) -> Result<Self> {
        let linear = Linear::new(ctx, weight.clone(), options.clone(), max_rows)?;
        let Some(norm) = norm else { return Ok(Self { norm: InputNorm::Plain, linear }) };
        if norm.output() != options.input {
            let (from, to) = (norm.output(), options.input);
            return Err(refuse("linear", format!("the norm gives {from}, the product reads {to}")));
        }
        let alone = Norm::new(ctx, norm.clone(), max_rows)?;
        let folded = match Linear::planned(ctx, weight, options, Some(&norm), max_rows) {
            Err(Error::Kernel(KernelError::NoKernel { .. })) => None,
            folded => Some(folded?),
        };
        // A product whose best row norms nothing keeps it, and a norm the row that is preferred for it.
        let preferred = alone.kernels().iter().any(|&row| ctx.policy().prefers(row));
        Ok(match folded {
            // By arithmetic: which row of it is fastest may have been measured, and must not change what runs.
            Some(folded) if !preferred && arithmetics(&folded.plan) == arithmetics(&linear.plan) => {
                Self { norm: InputNorm::Folded(norm), linear: folded }
            }
            _ => Self { norm: InputNorm::Apart(alone), linear },
        })
    }

    /// Enqueues `x [rows, k]` to `out [rows, n]` (`n / 2` where gated). `normed` is room for `[rows, k]` of the norm's
    /// output, which is left as it is where no norm runs by itself; without a norm none is needed.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or no room for a norm that runs by itself.
    pub fn run(&self, ctx: &Context, x: View<'_>, normed: Option<ViewMut<'_>>, out: ViewMut<'_>) -> Result<()> {
        match &self.norm {
            InputNorm::Plain => self.linear.run(ctx, x, out),
            InputNorm::Folded(norm) => self.linear.run_with(ctx, x, norm.vectors(), out),
            InputNorm::Apart(norm) => {
                let Some(normed) = normed else {
                    return Err(refuse("linear", "a norm that runs by itself wants room for what it gives"));
                };
                let written = *normed.view();
                norm.run(ctx, x, normed)?;
                self.linear.run(ctx, written, out)
            }
        }
    }

    /// Bytes of the packed weight, the bias, and the norm's weight and bias.
    pub fn weight_bytes(&self) -> usize {
        let norm = match &self.norm {
            InputNorm::Plain => 0,
            InputNorm::Folded(norm) => norm.weight_bytes(),
            InputNorm::Apart(norm) => norm.weight_bytes(),
        };
        norm + self.linear.weight_bytes()
    }

    /// Kernels chosen, for few rows first, each with the name that is given for its place: those of a norm that runs by
    /// itself, if one does, and those of the product.
    pub fn kernels(&self, [norm, product]: [&'static str; 2]) -> Vec<Place> {
        let mut all = Vec::new();
        if let InputNorm::Apart(alone) = &self.norm {
            all.push((norm, alone.kernels()));
        }
        all.push((product, self.linear.kernels()));
        all
    }
}
