//! Copies, each by its name: casts, layouts made contiguous.

use sinew_kernels::cast::{Cast, CastStatic};
use sinew_kernels::elementwise::Elements;
use sinew_tensor::{DType, Tensor};

use crate::{Context, Result};

/// A contiguous copy with every value as `dtype`: rounded to nearest, ties to even, between floats; truncated and
/// saturated to integers; 0 or 1 as bool.
///
/// ```
/// use sinew_ops::{Context, cast};
/// use sinew_tensor::DType;
///
/// let ctx = Context::cpu()?;
/// let x = cast(&ctx, &ctx.tensor(&[1.0f32, 2.5], &[2])?, DType::BF16)?;
/// assert_eq!(x.dtype(), DType::BF16);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Tensors of another device, or out of memory.
pub fn cast(ctx: &Context, x: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut y = ctx.uninitialised(dtype, x.shape())?;
    cast_into(ctx, x, &mut y)?;
    Ok(y)
}

/// [`cast`] into a tensor of the same shape, in any strides.
///
/// # Errors
/// Another shape, a shared output, or tensors of another device.
pub fn cast_into(ctx: &Context, x: &Tensor, y: &mut Tensor) -> Result<()> {
    let fixed = CastStatic { input: x.dtype(), output: y.dtype() };
    let call = Elements(x.layout().elements());
    ctx.run::<Cast>(&fixed, &call, &[Some(x.view())], &[y.view_mut()?])
}

/// The tensor itself where its elements follow one another in row-major order already, else a copy that does.
///
/// # Errors
/// Tensors of another device, or out of memory.
pub fn to_contiguous(ctx: &Context, x: &Tensor) -> Result<Tensor> {
    if x.layout().is_contiguous() { Ok(x.clone()) } else { cast(ctx, x, x.dtype()) }
}
