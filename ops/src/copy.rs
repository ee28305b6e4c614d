//! Copies, each by its name: casts, layouts made contiguous.

use sinew_kernels::cast::{Cast, CastStatic};
use sinew_kernels::elementwise::Elements;
use sinew_tensor::{DType, Tensor};

use crate::shape::expect_output;
use crate::{Context, Result};

/// A contiguous copy with every value as `dtype`.
///
/// | from | to | result |
/// |---|---|---|
/// | any | its own dtype | the same bytes |
/// | float | float | the nearest value, ties to even, rounded once; NaN stays NaN, and subnormals are kept |
/// | float, too large | f32, f16, bf16, f8_e5m2 | infinity of its sign; in f8_e5m2 from 61440 on |
/// | float, past ±464 or infinite | f8_e4m3 | NaN: the format has no infinity, and 448 is its largest value |
/// | float | integer | truncated towards 0, then saturated: beyond either end that end; NaN is 0 |
/// | integer | another integer | the value where it fits, else wrapped: its lowest bits, as Rust's `as` keeps them |
/// | integer | float | the nearest value, ties to even, and overflow as between floats |
/// | bool | number | 0 or 1; any byte but 0 is true |
/// | number | bool | false for 0 and -0, true for all else, NaN too |
///
/// Integers wrap and floats round as in PyTorch, with three differences. PyTorch leaves a float beyond an integer's
/// range undefined, and rounds f64 to f32 on the way to narrower floats. Past 464 its newer versions (2.15, for one)
/// saturate f8_e4m3 to 448. An i64 beyond ±2^53 is first rounded to f64 on its way to bf16. On wgpu devices there is
/// no f64, and f16 may lose its subnormals.
///
/// ```
/// use sinew_ops::{Context, cast};
/// use sinew_tensor::{DType, Tensor};
///
/// let ctx = Context::cpu()?;
/// let to = |x: &Tensor, dtype| cast(&ctx, x, dtype);
/// let f64s = |x: &Tensor| x.to_f64_vec(&**ctx.stream());
///
/// // Floats round to nearest, ties to even, once.
/// let x = ctx.tensor(&[2049.0f32, 2051.0, 1e6, f32::NAN], &[4])?;
/// let y = f64s(&to(&x, DType::F16)?)?;
/// assert_eq!(y[..3], [2048.0, 2052.0, f64::INFINITY]);
/// assert!(y[3].is_nan());
/// let x = ctx.tensor(&[1.0f64 + 2f64.powi(-8) + 2f64.powi(-40)], &[1])?; // by way of f32 it would be a tie, and 1
/// assert_eq!(f64s(&to(&x, DType::BF16)?)?, [1.0078125]);
///
/// // f8_e4m3 has no infinity, f8_e5m2 has one.
/// let x = ctx.tensor(&[464.0f32, 464.1, -1e9, f32::INFINITY], &[4])?;
/// let y = f64s(&to(&x, DType::F8E4M3)?)?;
/// assert_eq!(y[0], 448.0);
/// assert!(y[1..].iter().all(|y| y.is_nan()));
/// let x = ctx.tensor(&[61439.0f32, 61440.0, -1e9], &[3])?;
/// assert_eq!(f64s(&to(&x, DType::F8E5M2)?)?, [57344.0, f64::INFINITY, f64::NEG_INFINITY]);
///
/// // Floats are truncated and saturate as integers.
/// let x = ctx.tensor(&[2.9f32, -2.9, 300.0, -1.0, f32::INFINITY, f32::NAN], &[6])?;
/// assert_eq!(to(&x, DType::U8)?.to_vec::<u8>()?, [2, 0, 255, 0, 255, 0]);
/// assert_eq!(to(&x, DType::I8)?.to_vec::<i8>()?, [2, -2, 127, -1, 127, 0]);
///
/// // Integers wrap.
/// let x = ctx.tensor(&[300i64, -1, 1 << 40], &[3])?;
/// assert_eq!(to(&x, DType::U8)?.to_vec::<u8>()?, [44, 255, 0]);
/// assert_eq!(to(&x, DType::U32)?.to_vec::<u32>()?, [300, u32::MAX, 0]);
/// let x = ctx.tensor(&[(1i32 << 24) + 1, 3], &[2])?;
/// assert_eq!(to(&x, DType::F32)?.to_vec::<f32>()?, [16777216.0, 3.0]);
///
/// // Everything but 0 is true, and true is 1.
/// let x = ctx.tensor(&[0.0f32, -0.0, 0.3, f32::NAN], &[4])?;
/// let y = to(&x, DType::Bool)?;
/// assert_eq!(y.to_bools()?, [false, false, true, true]);
/// assert_eq!(to(&y, DType::I32)?.to_vec::<i32>()?, [0, 0, 1, 1]);
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
    expect_output("cast", "y", y, x.shape())?;
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
