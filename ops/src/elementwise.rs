//! Functions of single elements, with broadcasting.

use sinew_kernels::elementwise::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic, Where,
    WhereStatic,
};
use sinew_tensor::{DType, Tensor};

use crate::error::{operand, refuse};
use crate::shape::{common, expect_output, promote, same_dtype};
use crate::{Context, Result};

/// The second operand of a function of two: a tensor, which is broadcast, or a number.
///
/// A number has the dtype of the first operand, but is not rounded to 16 bits.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number.
    Scalar(f64),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<f64> for Operand<'_> {
    fn from(scalar: f64) -> Self {
        Self::Scalar(scalar)
    }
}

/// A function of two operands: the shape of its result, and how each operand is read.
struct Prepared {
    shape: Vec<usize>,
    fixed: BinaryStatic,
    scalar: f64,
}

fn prepare(function: BinaryFunction, a: &Tensor, b: Operand<'_>, output: Option<DType>) -> Result<Prepared> {
    let name = function.name();
    let (shape, dtype, b, scalar) = match b {
        Operand::Tensor(b) => {
            let (a, b) = (("a", a), ("b", b));
            (common(name, &[a, b])?, promote(name, a, b)?, b.1.dtype(), 0.0)
        }
        Operand::Scalar(scalar) => {
            let dtype = a.dtype();
            let b = if DType::COMPUTE.contains(&dtype) { DType::F32 } else { dtype };
            if !b.is_float() && b.round(scalar) != scalar {
                let advice = format!("{scalar} is no value of {dtype}; cast a to a float first");
                return Err(refuse(name, format!("{}; {advice}", operand("a", a))));
            }
            (a.shape().to_vec(), dtype, b, scalar)
        }
    };
    let output = output.unwrap_or(if function.compares() { DType::Bool } else { dtype });
    Ok(Prepared { shape, fixed: BinaryStatic { function, a: a.dtype(), b, output }, scalar })
}

fn run_binary(ctx: &Context, of: &Prepared, a: &Tensor, b: Operand<'_>, y: &mut Tensor) -> Result<()> {
    let call = BinaryDynamic::with_scalar(y.layout().elements(), of.scalar);
    let b = match b {
        Operand::Tensor(b) => Some(b.view().broadcast_to(&of.shape)?),
        Operand::Scalar(_) => None,
    };
    ctx.run::<Binary>(&of.fixed, &call, &[Some(a.view().broadcast_to(&of.shape)?), b], &[y.view_mut()?])
}

fn binary(ctx: &Context, function: BinaryFunction, a: &Tensor, b: Operand<'_>) -> Result<Tensor> {
    let of = prepare(function, a, b, None)?;
    let mut y = ctx.uninitialised(of.fixed.output, &of.shape)?;
    run_binary(ctx, &of, a, b, &mut y)?;
    Ok(y)
}

fn binary_into(ctx: &Context, function: BinaryFunction, a: &Tensor, b: Operand<'_>, y: &mut Tensor) -> Result<()> {
    let of = prepare(function, a, b, Some(y.dtype()))?;
    expect_output(function.name(), "y", y, &of.shape)?;
    run_binary(ctx, &of, a, b, y)
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $function:ident, $read:literal, $y:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `b` is a tensor or a number. Shapes broadcast: aligned at their ends, sizes equal or 1. f32, f16 and bf16
        /// may be mixed: they are computed in f32 and rounded once, to their common dtype or, where they differ, to
        /// f32.
        ///
        /// ```
        #[doc = concat!("use sinew_ops::{Context, ", stringify!($name), "};")]
        ///
        /// let ctx = Context::cpu()?;
        /// let a = ctx.tensor(&[1.0f32, 5.0], &[2])?;
        #[doc = concat!("let y = ", stringify!($name), "(&ctx, &a, 2.0)?;")]
        #[doc = concat!("assert_eq!(y.", $read, "()?, ", $y, ");")]
        /// let b = ctx.tensor(&[2.0f32], &[1])?;
        #[doc = concat!("assert_eq!(", stringify!($name), "(&ctx, &a, &b)?.", $read, "()?, ", $y, ");")]
        /// # Ok::<(), sinew_ops::Error>(())
        /// ```
        ///
        /// # Errors
        /// Shapes that do not broadcast, dtypes that the function does not take together, tensors of another device,
        /// or out of memory.
        pub fn $name<'b>(ctx: &Context, a: &Tensor, b: impl Into<Operand<'b>>) -> Result<Tensor> {
            binary(ctx, BinaryFunction::$function, a, b.into())
        }

        #[doc = concat!("[`", stringify!($name), "`] into a tensor of the result's shape, in any strides.")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`], another shape or a dtype that the function does not ")]
        /// give, or a shared output.
        pub fn $into<'b>(ctx: &Context, a: &Tensor, b: impl Into<Operand<'b>>, y: &mut Tensor) -> Result<()> {
            binary_into(ctx, BinaryFunction::$function, a, b.into(), y)
        }
    )*};
}

binary! {
    /// `a + b`.
    add, add_into, Add, "to_vec::<f32>", "[3.0, 7.0]";
    /// `a - b`.
    sub, sub_into, Sub, "to_vec::<f32>", "[-1.0, 3.0]";
    /// `a · b`.
    mul, mul_into, Mul, "to_vec::<f32>", "[2.0, 10.0]";
    /// `a / b`; floats only.
    div, div_into, Div, "to_vec::<f32>", "[0.5, 2.5]";
    /// The larger of `a` and `b`; NaN where either is NaN.
    maximum, maximum_into, Max, "to_vec::<f32>", "[2.0, 5.0]";
    /// The smaller of `a` and `b`; NaN where either is NaN.
    minimum, minimum_into, Min, "to_vec::<f32>", "[1.0, 2.0]";
    /// `a^b`; floats only.
    pow, pow_into, Pow, "to_vec::<f32>", "[1.0, 25.0]";
    /// Whether `a = b`, as bool.
    eq, eq_into, Eq, "to_bools", "[false, false]";
    /// Whether `a ≠ b`, as bool.
    ne, ne_into, Ne, "to_bools", "[true, true]";
    /// Whether `a < b`, as bool.
    lt, lt_into, Lt, "to_bools", "[true, false]";
    /// Whether `a ≤ b`, as bool.
    le, le_into, Le, "to_bools", "[true, false]";
    /// Whether `a > b`, as bool.
    gt, gt_into, Gt, "to_bools", "[false, true]";
    /// Whether `a ≥ b`, as bool.
    ge, ge_into, Ge, "to_bools", "[false, true]";
}

fn unary(ctx: &Context, function: UnaryFunction, x: &Tensor) -> Result<Tensor> {
    let dtype = if function == UnaryFunction::Not { DType::Bool } else { x.dtype() };
    let mut y = ctx.uninitialised(dtype, x.shape())?;
    unary_into(ctx, function, x, &mut y)?;
    Ok(y)
}

fn unary_into(ctx: &Context, function: UnaryFunction, x: &Tensor, y: &mut Tensor) -> Result<()> {
    expect_output(function.name(), "y", y, x.shape())?;
    let fixed = UnaryStatic { function, input: x.dtype(), output: y.dtype() };
    ctx.run::<Unary>(&fixed, &Elements(x.layout().elements()), &[Some(x.view())], &[y.view_mut()?])
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $function:ident, $x:literal, $read:literal, $y:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// f16 and bf16 are computed in f32 and rounded once.
        ///
        /// ```
        #[doc = concat!("use sinew_ops::{Context, ", stringify!($name), "};")]
        ///
        /// let ctx = Context::cpu()?;
        #[doc = concat!("let x = ctx.tensor::<f32>(&", $x, ", &[2])?;")]
        #[doc = concat!("assert_eq!(", stringify!($name), "(&ctx, &x)?.", $read, "()?, ", $y, ");")]
        /// # Ok::<(), sinew_ops::Error>(())
        /// ```
        ///
        /// # Errors
        /// A dtype that the function does not take, a tensor of another device, or out of memory.
        pub fn $name(ctx: &Context, x: &Tensor) -> Result<Tensor> {
            unary(ctx, UnaryFunction::$function, x)
        }

        #[doc = concat!("[`", stringify!($name), "`] into a tensor of the same shape, in any strides.")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`], another shape or a dtype that the function does not ")]
        /// give, or a shared output.
        pub fn $into(ctx: &Context, x: &Tensor, y: &mut Tensor) -> Result<()> {
            unary_into(ctx, UnaryFunction::$function, x, y)
        }
    )*};
}

unary! {
    /// `-x`; of integers too.
    neg, neg_into, Neg, "[1.0, -2.0]", "to_vec::<f32>", "[-1.0, 2.0]";
    /// `|x|`; of integers too.
    abs, abs_into, Abs, "[1.0, -2.0]", "to_vec::<f32>", "[1.0, 2.0]";
    /// -1, 0 or 1, and NaN for NaN; of integers too.
    sign, sign_into, Sign, "[0.5, -2.0]", "to_vec::<f32>", "[1.0, -1.0]";
    /// `x²`; of integers too.
    square, square_into, Square, "[3.0, -2.0]", "to_vec::<f32>", "[9.0, 4.0]";
    /// `√x`, correctly rounded; NaN below 0.
    sqrt, sqrt_into, Sqrt, "[9.0, 4.0]", "to_vec::<f32>", "[3.0, 2.0]";
    /// `1 / √x`.
    rsqrt, rsqrt_into, Rsqrt, "[4.0, 16.0]", "to_vec::<f32>", "[0.5, 0.25]";
    /// `1 / x`.
    reciprocal, reciprocal_into, Recip, "[4.0, -2.0]", "to_vec::<f32>", "[0.25, -0.5]";
    /// `e^x`.
    exp, exp_into, Exp, "[0.0, f32::NEG_INFINITY]", "to_vec::<f32>", "[1.0, 0.0]";
    /// The natural logarithm; NaN below 0.
    log, log_into, Log, "[1.0, 0.0]", "to_vec::<f32>", "[0.0, f32::NEG_INFINITY]";
    /// `sin x`.
    sin, sin_into, Sin, "[0.0, -0.0]", "to_vec::<f32>", "[0.0, 0.0]";
    /// `cos x`.
    cos, cos_into, Cos, "[0.0, -0.0]", "to_vec::<f32>", "[1.0, 1.0]";
    /// `tanh x`.
    tanh, tanh_into, Tanh, "[0.0, 100.0]", "to_vec::<f32>", "[0.0, 1.0]";
    /// The next integer below.
    floor, floor_into, Floor, "[1.5, -1.5]", "to_vec::<f32>", "[1.0, -2.0]";
    /// The next integer above.
    ceil, ceil_into, Ceil, "[1.5, -1.5]", "to_vec::<f32>", "[2.0, -1.0]";
    /// The nearest integer, ties to even.
    round, round_into, Round, "[0.5, 1.5]", "to_vec::<f32>", "[0.0, 2.0]";
    /// Whether `x` is 0, as bool; of integers and bools too.
    logical_not, logical_not_into, Not, "[0.0, 3.0]", "to_bools", "[true, false]";
}

/// `a` where `condition` (bool) is true, else `b`: `torch.where`. Shapes broadcast; `a` and `b` have one dtype, any.
///
/// ```
/// use sinew_ops::{Context, gt, where_};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[-1.0f32, 2.0], &[2])?;
/// let zero = ctx.tensor(&[0.0f32], &[])?;
/// let y = where_(&ctx, &gt(&ctx, &x, 0.0)?, &x, &zero)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not broadcast, a condition that is not bool, two dtypes, tensors of another device, or out of memory.
pub fn where_(ctx: &Context, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = where_shape(condition, a, b)?;
    let mut y = ctx.uninitialised(a.dtype(), &shape)?;
    where_into(ctx, condition, a, b, &mut y)?;
    Ok(y)
}

/// [`where_`] into a tensor of the result's shape and dtype, in any strides.
///
/// # Errors
/// Those of [`where_`], another shape or dtype, or a shared output.
pub fn where_into(ctx: &Context, condition: &Tensor, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
    let shape = where_shape(condition, a, b)?;
    expect_output("where", "y", y, &shape)?;
    let read = |x: &'_ Tensor| x.layout().broadcast_to(&shape);
    let (of, elements) = (WhereStatic { dtype: a.dtype() }, Elements(y.layout().elements()));
    let inputs = [
        Some(condition.view().with_layout(read(condition)?)?),
        Some(a.view().with_layout(read(a)?)?),
        Some(b.view().with_layout(read(b)?)?),
    ];
    ctx.run::<Where>(&of, &elements, &inputs, &[y.view_mut()?])
}

fn where_shape(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Vec<usize>> {
    if condition.dtype() != DType::Bool {
        let advice = "it must be bool: a comparison gives one, as ne(ctx, condition, 0.0)";
        return Err(refuse("where", format!("{}; {advice}", operand("condition", condition))));
    }
    same_dtype("where", ("a", a), ("b", b))?;
    common("where", &[("condition", condition), ("a", a), ("b", b)])
}
