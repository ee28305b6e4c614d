//! Functions of single elements, in place.

use sinew_kernels::elementwise::{
    Binary, BinaryDynamic, BinaryFunction, BinaryStatic, Elements, Unary, UnaryFunction, UnaryStatic,
};
use sinew_tensor::{DType, Layout, Tensor, View, ViewMut};

use super::names;
use crate::{Context, Planned, Result};

/// `x += y`, planned.
#[derive(Debug)]
pub struct Add {
    plan: Planned<Binary>,
}

impl Add {
    /// Plans the sum of two of `dtype`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, dtype: DType) -> Result<Self> {
        let fixed = BinaryStatic { function: BinaryFunction::Add, a: dtype, b: dtype, output: dtype };
        Ok(Self { plan: ctx.plan(fixed, &[BinaryDynamic::new(1)])? })
    }

    /// Enqueues `x += y`, both of one shape.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned.
    pub fn run(&self, ctx: &Context, x: ViewMut<'_>, y: View<'_>) -> Result<()> {
        let call = BinaryDynamic::new(x.layout().elements());
        self.plan.run(ctx, &call, &[None, Some(y)], &[x])
    }

    /// The row that serves it.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// `x *= factor`, planned.
#[derive(Debug)]
pub struct Scale {
    factor: f64,
    plan: Planned<Binary>,
}

impl Scale {
    /// Plans the product of what is of `dtype` with `factor`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, dtype: DType, factor: f64) -> Result<Self> {
        let fixed = BinaryStatic { function: BinaryFunction::Mul, a: dtype, b: DType::F32, output: dtype };
        Ok(Self { factor, plan: ctx.plan(fixed, &[BinaryDynamic::with_scalar(1, factor)])? })
    }

    /// Enqueues `x *= factor`.
    ///
    /// # Errors
    /// Another dtype than planned.
    pub fn run(&self, ctx: &Context, x: ViewMut<'_>) -> Result<()> {
        let call = BinaryDynamic::with_scalar(x.layout().elements(), self.factor);
        self.plan.run(ctx, &call, &[None, None], &[x])
    }
}

/// `x = cap · tanh(x / cap)`, which bounds its magnitude (Bello et al. 2016), planned.
///
/// ```
/// use sinew_ops::{Context, layers::Softcap};
/// use sinew_tensor::DType;
///
/// let ctx = Context::cpu()?;
/// let mut logits = ctx.tensor(&[0.0f32, 1e6], &[2])?;
/// let layout = *logits.layout();
/// Softcap::new(&ctx, DType::F32, 30.0)?.run(&ctx, &mut logits, &layout)?;
/// assert_eq!(logits.to_vec::<f32>()?, [0.0, 30.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct Softcap {
    shrink: Scale,
    tanh: Planned<Unary>,
    stretch: Scale,
}

impl Softcap {
    /// Plans the bound `cap` on what is of `dtype`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, dtype: DType, cap: f64) -> Result<Self> {
        let tanh = UnaryStatic { function: UnaryFunction::Tanh, input: dtype, output: dtype };
        Ok(Self {
            shrink: Scale::new(ctx, dtype, cap.recip())?,
            tanh: ctx.plan(tanh, &[Elements(1)])?,
            stretch: Scale::new(ctx, dtype, cap)?,
        })
    }

    /// Enqueues the bound on those values of `x` that `layout` names.
    ///
    /// # Errors
    /// Another dtype than planned, a shared tensor, or a layout that it does not hold.
    pub fn run(&self, ctx: &Context, x: &mut Tensor, layout: &Layout) -> Result<()> {
        self.shrink.run(ctx, x.view_mut()?.with_layout(*layout)?)?;
        let values = x.view_mut()?.with_layout(*layout)?;
        self.tanh.run(ctx, &Elements(layout.elements()), &[None], &[values])?;
        self.stretch.run(ctx, x.view_mut()?.with_layout(*layout)?)
    }
}
