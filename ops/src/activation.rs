//! Activations, plain and gated.

use sinew_kernels::activation::{Activate, Activation, ActivationDynamic, ActivationStatic, Gate};
use sinew_tensor::Tensor;

use crate::error::{operand, refuse};
use crate::shape::{expect_output, same_dtype, width};
use crate::{Context, Result};

/// `act(x)` of every element; f16 and bf16 are computed in f32 and rounded once.
///
/// ```
/// use sinew_ops::layers::Activation;
/// use sinew_ops::{Context, activation};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[-1.0f32, 3.0], &[2])?;
/// assert_eq!(activation(&ctx, Activation::Relu2, &x)?.to_vec::<f32>()?, [0.0, 9.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// A dtype other than f32, f16 and bf16, a tensor of another device, or out of memory.
pub fn activation(ctx: &Context, activation: Activation, x: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(x.dtype(), x.shape())?;
    activation_into(ctx, activation, x, &mut y)?;
    Ok(y)
}

/// [`activation()`] into a tensor of the same shape, in any strides.
///
/// # Errors
/// Those of [`activation()`], another shape, or a shared output.
pub fn activation_into(ctx: &Context, activation: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
    expect_output(activation.name(), "y", y, x.shape())?;
    let fixed = ActivationStatic { activation, gate: Gate::None, x: x.dtype(), out: y.dtype() };
    ctx.run::<Activate>(&fixed, &ActivationDynamic::of(x.shape()), &[Some(x.view())], &[y.view_mut()?])
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $activation:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// ```
        #[doc = concat!("use sinew_ops::{Context, ", stringify!($name), "};")]
        ///
        /// let ctx = Context::cpu()?;
        /// let x = ctx.tensor(&[0.0f32, -200.0], &[2])?;
        #[doc = concat!("assert_eq!(", stringify!($name), "(&ctx, &x)?.to_vec::<f32>()?, [0.0, 0.0]);")]
        /// # Ok::<(), sinew_ops::Error>(())
        /// ```
        ///
        /// # Errors
        /// Those of [`activation()`].
        pub fn $name(ctx: &Context, x: &Tensor) -> Result<Tensor> {
            activation(ctx, Activation::$activation, x)
        }

        #[doc = concat!("[`", stringify!($name), "`] into a tensor of the same shape, in any strides.")]
        ///
        /// # Errors
        /// Those of [`activation_into`].
        pub fn $into(ctx: &Context, x: &Tensor, y: &mut Tensor) -> Result<()> {
            activation_into(ctx, Activation::$activation, x, y)
        }
    )*};
}

activations! {
    /// `x · σ(x)`, also called swish (Elfwing et al. 2018).
    silu, silu_into, Silu;
    /// `x · Φ(x)` with the normal distribution's `Φ`, exact (Hendrycks and Gimpel 2016).
    gelu, gelu_into, Gelu;
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`, the same paper's approximation.
    gelu_tanh, gelu_tanh_into, GeluTanh;
    /// `x · σ(1.702·x)`, the same paper's other approximation.
    quick_gelu, quick_gelu_into, QuickGelu;
    /// `max(x, 0)`.
    relu, relu_into, Relu;
    /// `max(x, 0)²` (So et al. 2021).
    relu2, relu2_into, Relu2;
}

/// `act(gate) · up` of every element (Shazeer 2020), or what the [`Activation`] makes of both, of one shape and dtype.
///
/// ```
/// use sinew_ops::layers::Activation;
/// use sinew_ops::{Context, gated};
///
/// let ctx = Context::cpu()?;
/// let gate = ctx.tensor(&[-1.0f32, 3.0], &[2])?;
/// let up = ctx.tensor(&[5.0f32, 7.0], &[2])?;
/// assert_eq!(gated(&ctx, Activation::Relu, &gate, &up)?.to_vec::<f32>()?, [0.0, 21.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// Two shapes or dtypes, a dtype other than f32, f16 and bf16, tensors of another device, or out of memory.
pub fn gated(ctx: &Context, activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(gate.dtype(), gate.shape())?;
    gated_into(ctx, activation, gate, up, &mut y)?;
    Ok(y)
}

/// [`gated`] into a tensor of the same shape, in any strides.
///
/// # Errors
/// Those of [`gated`], another shape, or a shared output.
pub fn gated_into(ctx: &Context, activation: Activation, gate: &Tensor, up: &Tensor, y: &mut Tensor) -> Result<()> {
    same_dtype("gated", ("gate", gate), ("up", up))?;
    if gate.shape() != up.shape() {
        let reason = format!("{}, but {}", operand("gate", gate), operand("up", up));
        return Err(refuse("gated", format!("{reason}; they must have one shape")));
    }
    expect_output("gated", "y", y, gate.shape())?;
    let fixed = ActivationStatic { activation, gate: Gate::Tensor, x: gate.dtype(), out: y.dtype() };
    let call = ActivationDynamic::of(gate.shape());
    ctx.run::<Activate>(&fixed, &call, &[Some(gate.view()), Some(up.view())], &[y.view_mut()?])
}

/// [`gated`] where gate and up are the halves of the last dimension: `[.., 2 · width]` gives `[.., width]`.
///
/// ```
/// use sinew_ops::layers::Activation;
/// use sinew_ops::{Context, gated_halves};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[-1.0f32, 3.0, 5.0, 7.0], &[1, 4])?;
/// assert_eq!(gated_halves(&ctx, Activation::Relu, &x)?.to_vec::<f32>()?, [0.0, 21.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
///
/// # Errors
/// A last dimension of odd size, a dtype other than f32, f16 and bf16, a tensor of another device, or out of memory.
pub fn gated_halves(ctx: &Context, activation: Activation, x: &Tensor) -> Result<Tensor> {
    let mut y = ctx.uninitialised(x.dtype(), &halved(x)?)?;
    gated_halves_into(ctx, activation, x, &mut y)?;
    Ok(y)
}

/// [`gated_halves`] into a tensor `[.., width]`, in any strides.
///
/// # Errors
/// Those of [`gated_halves`], another shape, or a shared output.
pub fn gated_halves_into(ctx: &Context, activation: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
    let shape = halved(x)?;
    expect_output("gated_halves", "y", y, &shape)?;
    let fixed = ActivationStatic { activation, gate: Gate::Halves, x: x.dtype(), out: y.dtype() };
    ctx.run::<Activate>(&fixed, &ActivationDynamic::of(&shape), &[Some(x.view())], &[y.view_mut()?])
}

fn halved(x: &Tensor) -> Result<Vec<usize>> {
    let width = width("gated_halves", "x", x)?;
    if !width.is_multiple_of(2) {
        return Err(refuse("gated_halves", format!("{}; the last dimension must be even", operand("x", x))));
    }
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(width / 2);
    Ok(shape)
}
