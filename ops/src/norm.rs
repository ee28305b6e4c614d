//! RMS and layer norm.

use sinew_kernels::norm::{Norm as Operator, NormDynamic, NormFormula, NormKind, NormStatic};
use sinew_tensor::{DType, Tensor};

use crate::error::{operand, refuse};
use crate::shape::{expect_output, width};
use crate::{Context, Result};

/// `x / √(mean(x²) + eps) · weight + bias` over the last dimension (Zhang and Sennrich 2019), to be completed and run.
///
/// `x` is `[.., width]` in any strides, weight and bias are `[width]`; each f32, f16 or bf16. Without a weight it is 1,
/// without a bias 0; `eps` is 1e-6 unless [`Normalize::eps`] says otherwise.
///
/// ```
/// use sinew_ops::{Context, rms_norm};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[3.0f32, -3.0], &[1, 2])?;
/// let w = ctx.tensor(&[1.0f32, 0.5], &[2])?;
/// let y = rms_norm(&x).weight(&w).eps(0.0).run(&ctx)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, -0.5]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
pub fn rms_norm(x: &Tensor) -> Normalize<'_> {
    Normalize::new(x, NormKind::Rms, 1e-6)
}

/// `(x - mean(x)) / √(variance(x) + eps) · weight + bias` over the last dimension (Ba et al. 2016), to be completed and
/// run; the variance is that of the population. `eps` is 1e-5 unless [`Normalize::eps`] says otherwise. See
/// [`rms_norm`].
///
/// ```
/// use sinew_ops::{Context, layer_norm};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[1.0f32, 3.0], &[1, 2])?;
/// let b = ctx.tensor(&[1.0f32, 1.0], &[2])?;
/// let y = layer_norm(&x).bias(&b).eps(0.0).run(&ctx)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
pub fn layer_norm(x: &Tensor) -> Normalize<'_> {
    Normalize::new(x, NormKind::Layer, 1e-5)
}

/// A norm to be completed and run. See [`rms_norm`] and [`layer_norm`].
#[derive(Debug, Clone)]
#[must_use = "nothing is computed before it is run"]
pub struct Normalize<'a> {
    x: &'a Tensor,
    kind: NormKind,
    eps: f32,
    weight: Option<&'a Tensor>,
    weight_offset: f32,
    bias: Option<&'a Tensor>,
    output: Option<DType>,
}

impl<'a> Normalize<'a> {
    fn new(x: &'a Tensor, kind: NormKind, eps: f32) -> Self {
        Self { x, kind, eps, weight: None, weight_offset: 0.0, bias: None, output: None }
    }

    /// What is added to the mean square or the variance.
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }

    /// Multiplies by `[width]`.
    pub fn weight(self, weight: &'a Tensor) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// Adds a number to the weight: 1 for Gemma, whose weights are stored as differences from 1.
    pub fn weight_offset(self, offset: f32) -> Self {
        Self { weight_offset: offset, ..self }
    }

    /// Adds `[width]`, last.
    pub fn bias(self, bias: &'a Tensor) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Rounds the result to a dtype other than that of `x`.
    pub fn output(self, dtype: DType) -> Self {
        Self { output: Some(dtype), ..self }
    }

    /// Runs it and returns the result.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes other than f32, f16 and bf16, tensors of another device, or out of memory.
    pub fn run(&self, ctx: &Context) -> Result<Tensor> {
        let mut y = ctx.uninitialised(self.output.unwrap_or(self.x.dtype()), self.x.shape())?;
        self.run_with(ctx, None, &mut y)?;
        Ok(y)
    }

    /// Runs it into a tensor of the shape of `x`, in any strides. Its dtype is what the result is rounded to.
    ///
    /// # Errors
    /// Those of [`Normalize::run`], another shape, or a shared output.
    pub fn run_into(&self, ctx: &Context, y: &mut Tensor) -> Result<()> {
        self.run_with(ctx, None, y)
    }

    /// Adds `x` to the residual stream, of the same shape, and returns the norm of the sum as it is stored, in one
    /// pass.
    ///
    /// ```
    /// use sinew_ops::{Context, rms_norm};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0], &[1, 2])?;
    /// let mut stream = ctx.tensor(&[2.0f32, 1.0], &[1, 2])?;
    /// let y = rms_norm(&x).eps(0.0).run_residual(&ctx, &mut stream)?;
    /// assert_eq!(stream.to_vec::<f32>()?, [3.0, 3.0]);
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Normalize::run`], or a residual of another shape or that is shared.
    pub fn run_residual(&self, ctx: &Context, residual: &mut Tensor) -> Result<Tensor> {
        let mut y = ctx.uninitialised(self.output.unwrap_or(self.x.dtype()), self.x.shape())?;
        self.run_with(ctx, Some(residual), &mut y)?;
        Ok(y)
    }

    /// [`Normalize::run_residual`] into a tensor of the shape of `x`, in any strides.
    ///
    /// # Errors
    /// Those of [`Normalize::run_residual`], another shape, or a shared output.
    pub fn run_residual_into(&self, ctx: &Context, residual: &mut Tensor, y: &mut Tensor) -> Result<()> {
        self.run_with(ctx, Some(residual), y)
    }

    fn run_with(&self, ctx: &Context, residual: Option<&mut Tensor>, y: &mut Tensor) -> Result<()> {
        let name = if self.kind == NormKind::Rms { "rms_norm" } else { "layer_norm" };
        let width = width(name, "x", self.x)?;
        expect_output(name, "y", y, self.x.shape())?;
        for (what, vector) in [("weight", self.weight), ("bias", self.bias)] {
            if let Some(vector) = vector.filter(|v| v.shape() != [width]) {
                let reason = format!("{}, but {}", operand("x", self.x), operand(what, vector));
                return Err(refuse(name, format!("{reason}; the {what} must be [{width}]")));
            }
        }
        if let Some(residual) = residual.as_ref().filter(|r| r.shape() != self.x.shape()) {
            let reason = format!("{}, but {}", operand("x", self.x), operand("the residual", residual));
            return Err(refuse(name, format!("{reason}; they must have one shape")));
        }
        let fixed = NormStatic {
            width,
            formula: NormFormula {
                kind: self.kind,
                eps: self.eps.into(),
                weight: self.weight.map(Tensor::dtype),
                weight_offset: self.weight_offset.into(),
                bias: self.bias.map(Tensor::dtype),
            },
            x: self.x.dtype(),
            out: y.dtype(),
            residual: residual.as_ref().map(|r| r.dtype()),
            in_place: false,
        };
        let call = NormDynamic::of(self.x.shape());
        let inputs = [Some(self.x.view()), self.weight.map(Tensor::view), self.bias.map(Tensor::view)];
        match residual {
            Some(residual) => ctx.run::<Operator>(&fixed, &call, &inputs, &[y.view_mut()?, residual.view_mut()?]),
            None => ctx.run::<Operator>(&fixed, &call, &inputs, &[y.view_mut()?]),
        }
    }
}
