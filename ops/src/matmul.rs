//! Matrix products with everything that may follow them in one pass.

use sinew_kernels::activation::Activation;
use sinew_kernels::gemm::{A, B, BIAS, Epilogue, Gemm, GemmDynamic, GemmStatic, ORDER, RESIDUAL, Residual, Rhs};
use sinew_kernels::{Compute, Error as KernelError, Placed};
use sinew_tensor::{DType, Layout, MAX_RANK, Tensor};

use crate::error::{operand, refuse};
use crate::layers::PackedWeight;
use crate::{Context, Error, Result};

/// `a · b`, to be completed and run.
///
/// `a` is `[.., M, K]` and `b` is `[.., K, N]` in any strides; dimensions before the last two are broadcast. f32, f16
/// and bf16 may be mixed. With [`Matmul::bias`] and the rest it computes
/// `act(alpha · a · b + bias) + residual` in one pass.
///
/// ```
/// use sinew_ops::{Context, matmul};
///
/// let ctx = Context::cpu()?;
/// let x = ctx.tensor(&[1.0f32, -1.0], &[1, 2])?;
/// let w = ctx.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?; // one row per output, as in checkpoints
/// let b = ctx.tensor(&[0.5f32, -4.0], &[2])?;
/// let y = matmul(&x, &w.transpose(0, 1)?).bias(&b).relu().run(&ctx)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
pub fn matmul<'a>(a: &'a Tensor, b: &'a Tensor) -> Matmul<'a> {
    Matmul::new(a, Right::Tensor(b))
}

/// `a · Wᵀ` with a packed weight `[N, K]`, to be completed and run. See [`matmul`].
pub fn linear<'a>(a: &'a Tensor, weight: &'a PackedWeight) -> Matmul<'a> {
    Matmul::new(a, Right::Packed(weight))
}

/// A product to be completed and run. See [`matmul`].
#[derive(Debug, Clone)]
#[must_use = "nothing is computed before `run` or `run_into`"]
pub struct Matmul<'a> {
    a: &'a Tensor,
    b: Right<'a>,
    bias: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
    activation: Option<Activation>,
    alpha: f32,
    output: Option<DType>,
    compute: Option<Compute>,
}

#[derive(Debug, Clone, Copy)]
enum Right<'a> {
    Tensor(&'a Tensor),
    Packed(&'a PackedWeight),
}

const NAME: &str = "matmul";

impl<'a> Matmul<'a> {
    fn new(a: &'a Tensor, b: Right<'a>) -> Self {
        Self { a, b, bias: None, residual: None, activation: None, alpha: 1.0, output: None, compute: None }
    }

    /// Adds `[N]` to every row.
    pub fn bias(self, bias: &'a Tensor) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Adds a tensor of the result's shape, last.
    pub fn residual(self, residual: &'a Tensor) -> Self {
        Self { residual: Some(residual), ..self }
    }

    /// Multiplies the product.
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Applies an activation after the bias. A gated one needs a weight packed as gated, and halves the result.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation: Some(activation), ..self }
    }

    /// Applies `max(x, 0)`.
    pub fn relu(self) -> Self {
        self.activation(Activation::Relu)
    }

    /// Applies GELU with the error function.
    pub fn gelu(self) -> Self {
        self.activation(Activation::Gelu)
    }

    /// Applies `x · sigmoid(x)`.
    pub fn silu(self) -> Self {
        self.activation(Activation::Silu)
    }

    /// Rounds the result to a dtype other than that of `a`.
    pub fn output(self, dtype: DType) -> Self {
        Self { output: Some(dtype), ..self }
    }

    /// Says what operands are rounded to. By default bf16 if one of them is bf16 and the other no wider, else nothing:
    /// f32 operands are never rounded unasked.
    pub fn compute(self, compute: Compute) -> Self {
        Self { compute: Some(compute), ..self }
    }

    fn fixed(&self) -> Result<GemmStatic> {
        let k = self.a.shape().last().copied();
        let (n, b_k, b) = match self.b {
            Right::Tensor(b) => match b.shape() {
                [.., k, n] => (*n, *k, Rhs::Strided(b.dtype())),
                _ => return Err(refuse(NAME, format!("{}; a matrix has at least two dimensions", operand("b", b)))),
            },
            Right::Packed(w) => (w.shape().n, w.shape().k, Rhs::Packed(w.shape().format)),
        };
        if self.a.shape().len() < 2 || k != Some(b_k) {
            let a = operand("a", self.a);
            return Err(refuse(NAME, format!("{a}, and b has {b_k} rows of {n}; a must be [.., M, {b_k}]")));
        }
        let gated = matches!(self.b, Right::Packed(w) if w.shape().gated);
        if gated && self.activation.is_none() {
            return Err(refuse(NAME, "a weight packed as gated needs an activation"));
        }
        let b_dtype = match b {
            Rhs::Strided(dtype) => Some(dtype),
            Rhs::Packed(format) => format.dtype(),
        };
        // What a block-quantized weight stands for is not bf16, but its codes are.
        let rounded = self.a.dtype() == DType::BF16 && b_dtype.is_none_or(|dtype| dtype == DType::BF16);
        let compute = self.compute.unwrap_or(if rounded { Compute::Bf16 } else { Compute::F32 });
        let out = self.output.unwrap_or(self.a.dtype());
        let product = GemmStatic::new(n, b_k, self.a.dtype(), b, out, compute).with(Epilogue {
            bias: self.bias.map(Tensor::dtype),
            activation: self.activation,
            gated,
            residual: self.residual.map(|r| Residual::Input(r.dtype())),
            alpha: self.alpha,
            ..Epilogue::default()
        });
        Ok(GemmStatic { gathered: self.order().is_some(), ..product })
    }

    /// The order in which a packed weight has its inputs.
    fn order(&self) -> Option<&'a Tensor> {
        match self.b {
            Right::Tensor(_) => None,
            Right::Packed(weight) => weight.order(),
        }
    }

    /// Shape of the result, with the broadcast dimensions of both operands before the last two.
    fn shape(&self, fixed: &GemmStatic) -> Result<Vec<usize>> {
        let a = self.a.shape();
        let mut batch = a[..a.len() - 2].to_vec();
        if let Right::Tensor(b) = self.b {
            batch = broadcast(&batch, &b.shape()[..b.shape().len() - 2])
                .ok_or_else(|| refuse(NAME, format!("{a:?} and {:?} cannot be broadcast together", b.shape())))?;
        }
        batch.extend([a[a.len() - 2], fixed.columns()]);
        Ok(batch)
    }

    /// Runs it and returns the result.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes other than f32, f16 and bf16, tensors of another device, or no kernel.
    pub fn run(&self, ctx: &Context) -> Result<Tensor> {
        let fixed = self.fixed()?;
        let mut out = ctx.uninitialised(fixed.out, &self.shape(&fixed)?)?;
        self.run_fixed(ctx, &fixed, &mut out)?;
        Ok(out)
    }

    /// Runs it into a tensor that nothing else shares, in any strides. Its dtype is what the result is rounded to.
    ///
    /// # Errors
    /// Those of [`Matmul::run`], and a result of another shape.
    pub fn run_into(&self, ctx: &Context, out: &mut Tensor) -> Result<()> {
        let fixed = Self { output: Some(out.dtype()), ..self.clone() }.fixed()?;
        let shape = self.shape(&fixed)?;
        if out.shape() != shape {
            return Err(refuse(NAME, format!("the result has shape {shape:?}, but {}", operand("the output", out))));
        }
        self.run_fixed(ctx, &fixed, out)
    }

    /// If no kernel takes the product, names the operand whose dtype is the likely reason.
    fn name_operand(&self, error: Error) -> Error {
        let b = match self.b {
            Right::Tensor(b) => Some(("b", b)),
            Right::Packed(_) => None,
        };
        let unusual = [Some(("a", self.a)), b, self.bias.map(|x| ("bias", x)), self.residual.map(|x| ("residual", x))];
        let unusual = unusual.into_iter().flatten().find(|(_, x)| !DType::COMPUTE.contains(&x.dtype()));
        match (error, unusual) {
            (Error::Kernel(KernelError::NoKernel { .. }), Some((name, x))) => {
                let advice = format!("products take f32, f16 and bf16: cast(ctx, {name}, …) gives one of them");
                refuse(NAME, format!("{}; {advice}", operand(name, x)))
            }
            (error, _) => error,
        }
    }

    fn run_fixed(&self, ctx: &Context, fixed: &GemmStatic, out: &mut Tensor) -> Result<()> {
        let shape = out.shape().to_vec();
        let batch = &shape[..shape.len() - 2];
        // The innermost batch dimension is the kernel's; those around it are walked here.
        let (outer, inner) = match batch {
            [outer @ .., inner] => (outer, *inner),
            [] => (batch, 1),
        };
        let matrices = |layout: &Layout, name: &str| -> Result<Layout> {
            let rank = layout.rank();
            let full: Vec<usize> = batch.iter().chain(&layout.shape()[rank - 2..]).copied().collect();
            let layout = layout
                .broadcast_to(&full)
                .map_err(|_| refuse(NAME, format!("{name} {:?} does not fit the result {shape:?}", layout.shape())))?;
            Ok(if batch.is_empty() { layout.unsqueeze(0)? } else { layout })
        };
        let a = matrices(self.a.layout(), "a")?;
        let b = match self.b {
            Right::Tensor(b) => Some(matrices(b.layout(), "b")?),
            Right::Packed(_) => None,
        };
        let residual = match self.residual {
            Some(r) if r.shape() == shape => Some(matrices(r.layout(), "the residual")?),
            Some(r) => {
                let residual = operand("the residual", r);
                return Err(refuse(NAME, format!("the result has shape {shape:?}, but {residual}; both must match")));
            }
            None => None,
        };
        let result = matrices(out.layout(), "the output")?;
        let call = GemmDynamic { batch: inner, m: shape[shape.len() - 2] };
        let mut index = [0; MAX_RANK];
        for flat in 0..outer.iter().product() {
            let mut rest: usize = flat;
            for d in (0..outer.len()).rev() {
                index[d] = rest % outer[d];
                rest /= outer[d];
            }
            let at = |layout: &Layout| -> Result<Layout> {
                let mut layout = *layout;
                for &i in &index[..outer.len()] {
                    layout = layout.select(0, i)?;
                }
                Ok(layout)
            };
            let b = match (self.b, &b) {
                (Right::Tensor(tensor), Some(layout)) => tensor.view().with_layout(at(layout)?)?,
                (Right::Packed(weight), _) => weight.tensor().view(),
                (Right::Tensor(tensor), None) => tensor.view(),
            };
            let residual = match (self.residual, &residual) {
                (Some(tensor), Some(layout)) => Some(tensor.view().with_layout(at(layout)?)?),
                _ => None,
            };
            let a = self.a.view().with_layout(at(&a)?)?;
            let order = self.order().map(Tensor::view);
            let bias = self.bias.map(Tensor::view);
            let inputs = Placed::of([(A, Some(a)), (B, Some(b)), (BIAS, bias), (RESIDUAL, residual), (ORDER, order)]);
            let d = out.view_mut()?.with_layout(at(&result)?)?;
            ctx.run::<Gemm>(fixed, &call, &inputs, &[d]).map_err(|error| self.name_operand(error))?;
        }
        Ok(())
    }
}

/// The shape that two shapes broadcast to, aligned at their ends.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    (0..rank)
        .map(|d| {
            let size = |s: &[usize]| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
            match (size(a), size(b)) {
                (x, y) if x == y => Some(x),
                (1, y) => Some(y),
                (x, 1) => Some(x),
                _ => None,
            }
        })
        .collect()
}
