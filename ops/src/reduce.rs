//! Reductions over chosen dimensions.

use sinew_kernels::reduce::{Reduce as Operator, ReduceDynamic, ReduceFunction, ReduceStatic};
use sinew_tensor::{DType, Layout, Tensor};

use crate::error::{operand, refuse};
use crate::shape::{expect_dim, expect_output};
use crate::{Context, Result};

/// A reduction to be completed and run: over all dimensions, or over those that [`Reduce::dim`] names. See [`sum`].
#[derive(Debug, Clone)]
#[must_use = "nothing is computed before `run` or `run_into`"]
pub struct Reduce<'a> {
    x: &'a Tensor,
    function: ReduceFunction,
    dims: Vec<usize>,
    keepdim: bool,
    output: Option<DType>,
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident, $function:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor) -> Reduce<'_> {
            Reduce { x, function: ReduceFunction::$function, dims: Vec::new(), keepdim: false, output: None }
        }
    )*};
}

reductions! {
    /// `Σ x`, to be completed and run; 0 of nothing. Floats keep their dtype (sums are made in f32 in blocks, and over
    /// the blocks in f64); integers and bools give i64.
    ///
    /// ```
    /// use sinew_ops::{Context, sum};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    /// assert_eq!(sum(&x).run(&ctx)?.to_vec::<f32>()?, [21.0]);
    /// assert_eq!(sum(&x).dim(0).run(&ctx)?.to_vec::<f32>()?, [5.0, 7.0, 9.0]);
    /// assert_eq!(sum(&x).dim(1).keepdim().run(&ctx)?.shape(), [2, 1]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    sum, Sum;
    /// `Σ x / n` of floats, to be completed and run; NaN of nothing.
    ///
    /// ```
    /// use sinew_ops::{Context, mean};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(mean(&x).dim(0).run(&ctx)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    mean, Mean;
    /// The largest element, to be completed and run; NaN if any is. See [`sum`].
    ///
    /// ```
    /// use sinew_ops::{Context, max};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 4.0, 3.0], &[2, 2])?;
    /// assert_eq!(max(&x).dim(1).run(&ctx)?.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    max, Max;
    /// The smallest element, to be completed and run; NaN if any is. See [`sum`].
    ///
    /// ```
    /// use sinew_ops::{Context, min};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 4.0, 3.0], &[2, 2])?;
    /// assert_eq!(min(&x).dim(1).run(&ctx)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    min, Min;
    /// Where the largest element is first, as i64, to be completed and run; NaN counts as larger than all. Over several
    /// dimensions it is the row-major index among them.
    ///
    /// ```
    /// use sinew_ops::{Context, argmax};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 4.0, 3.0], &[2, 2])?;
    /// assert_eq!(argmax(&x).dim(1).run(&ctx)?.to_vec::<i64>()?, [1, 0]);
    /// assert_eq!(argmax(&x).run(&ctx)?.to_vec::<i64>()?, [2]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    argmax, ArgMax;
    /// Where the smallest element is first, as i64, to be completed and run; NaN counts as smaller than all. See
    /// [`argmax`].
    ///
    /// ```
    /// use sinew_ops::{Context, argmin};
    ///
    /// let ctx = Context::cpu()?;
    /// let x = ctx.tensor(&[1.0f32, 2.0, 4.0, 3.0], &[2, 2])?;
    /// assert_eq!(argmin(&x).dim(1).run(&ctx)?.to_vec::<i64>()?, [0, 1]);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    argmin, ArgMin;
}

impl Reduce<'_> {
    /// Reduces this dimension; may be said of several.
    pub fn dim(mut self, dim: usize) -> Self {
        self.dims.push(dim);
        self
    }

    /// Keeps the dimensions that are reduced, with size 1.
    pub fn keepdim(self) -> Self {
        Self { keepdim: true, ..self }
    }

    /// Gives a result of this dtype: f32, f16 or bf16 of any of them; u32, i32 or i64 of [`argmax`] and [`argmin`].
    pub fn output(self, dtype: DType) -> Self {
        Self { output: Some(dtype), ..self }
    }

    /// Which dimensions are reduced.
    fn reduced(&self) -> Result<Vec<bool>> {
        let mut reduced = vec![self.dims.is_empty(); self.x.layout().rank()];
        for &dim in &self.dims {
            expect_dim(self.function.name(), self.x, dim)?;
            if std::mem::replace(&mut reduced[dim], true) {
                let reason = format!("dimension {dim} is named twice; {}", operand("x", self.x));
                return Err(refuse(self.function.name(), reason));
            }
        }
        Ok(reduced)
    }

    fn shape(&self, reduced: &[bool]) -> Vec<usize> {
        let sizes = self.x.shape().iter().zip(reduced);
        sizes.filter(|&(_, &gone)| self.keepdim || !gone).map(|(&size, &gone)| if gone { 1 } else { size }).collect()
    }

    /// Runs it and returns the result.
    ///
    /// # Errors
    /// Dimensions that are not there, a largest or smallest of nothing, dtypes that the function does not take, tensors
    /// of another device, or out of memory.
    pub fn run(&self, ctx: &Context) -> Result<Tensor> {
        let input = self.x.dtype();
        let own = match self.function {
            ReduceFunction::ArgMax | ReduceFunction::ArgMin => DType::I64,
            ReduceFunction::Sum if !input.is_float() => DType::I64,
            _ => input,
        };
        let shape = self.shape(&self.reduced()?);
        let mut y = ctx.uninitialised(self.output.unwrap_or(own), &shape)?;
        self.run_into(ctx, &mut y)?;
        Ok(y)
    }

    /// Runs it into a tensor of the result's shape, in any strides. Its dtype is what the result is given in.
    ///
    /// # Errors
    /// Those of [`Reduce::run`], another shape, or a shared output.
    pub fn run_into(&self, ctx: &Context, y: &mut Tensor) -> Result<()> {
        let reduced = self.reduced()?;
        expect_output(self.function.name(), "y", y, &self.shape(&reduced))?;
        let rank = reduced.len();
        let (last, first): (Vec<usize>, Vec<usize>) = (0..rank).partition(|&d| reduced[d]);
        let order: Vec<usize> = first.iter().chain(&last).copied().collect();
        let x = self.x.view().permute(&order)?;
        let (rows, width) = x.shape().split_at(first.len());
        let call = ReduceDynamic { rows: rows.iter().product(), width: width.iter().product() };
        let fixed = ReduceStatic { function: self.function, input: x.dtype(), output: y.dtype(), dims: last.len() };
        let kept: Layout = match self.keepdim {
            true => last.iter().rev().try_fold(*y.layout(), |layout, &dim| layout.squeeze(dim))?,
            false => *y.layout(),
        };
        ctx.run::<Operator>(&fixed, &call, &[Some(x)], &[y.view_mut()?.with_layout(kept)?])
    }
}
