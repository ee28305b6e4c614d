//! Softmax over the last dimension.

use sinew_kernels::softmax::{Softmax, SoftmaxDynamic, SoftmaxStatic};
use sinew_tensor::Tensor;

use crate::error::{operand, refuse};
use crate::{Context, Result};

/// `e^x / Σ e^x` over the last dimension, for f32, f16 and bf16 in any strides. Rows of `-inf` alone give zeros.
///
/// ```
/// use sinew_ops::{Context, softmax};
///
/// let ctx = Context::cpu()?;
/// let y = softmax(&ctx, &ctx.tensor(&[0.0f32, 0.0, f32::NEG_INFINITY], &[1, 3])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.5, 0.5, 0.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// A tensor without dimensions, another dtype, or a tensor of another device.
pub fn softmax(ctx: &Context, x: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(x.dtype(), x.shape())?;
    run(ctx, x, &mut y, false)?;
    Ok(y)
}

/// [`softmax`] into a tensor of the same shape, rounded to its dtype.
///
/// # Errors
/// Those of [`softmax`], another shape, or a shared output.
pub fn softmax_into(ctx: &Context, x: &Tensor, y: &mut Tensor) -> Result<()> {
    run(ctx, x, y, false)
}

/// `x - ln Σ e^x` over the last dimension. See [`softmax`].
///
/// # Errors
/// Those of [`softmax`].
pub fn log_softmax(ctx: &Context, x: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(x.dtype(), x.shape())?;
    run(ctx, x, &mut y, true)?;
    Ok(y)
}

/// [`log_softmax`] into a tensor of the same shape, rounded to its dtype.
///
/// # Errors
/// Those of [`softmax`], another shape, or a shared output.
pub fn log_softmax_into(ctx: &Context, x: &Tensor, y: &mut Tensor) -> Result<()> {
    run(ctx, x, y, true)
}

fn run(ctx: &Context, x: &Tensor, y: &mut Tensor, log: bool) -> Result<()> {
    if x.shape().is_empty() || x.shape() != y.shape() {
        let operands = [operand("x", x), operand("y", y)].join(", ");
        return Err(refuse("softmax", format!("{operands}; they must have one shape [.., n]")));
    }
    let fixed = SoftmaxStatic { x: x.dtype(), out: y.dtype(), mask: None, scale: 1.0.into(), log };
    let call = SoftmaxDynamic::of(x.shape());
    ctx.run::<Softmax>(&fixed, &call, &[Some(x.view())], &[y.view_mut()?])
}
