//! Softmax and its logarithm over the last dimension.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::DType;

use crate::operator::{Operands, Operator, Row, Work, count_of, expect, expect_compute, refuse};
use crate::table::joined;
use crate::{F32Bits, Result};

/// The rows of [`Softmax`].
pub fn rows() -> Vec<Row<Softmax>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// `y_i = e^(s_i) / Σ_j e^(s_j)` with `s = scale · x + mask`, for every row of `[.., width]`, computed in f32 from the
/// differences to the row's largest `s` (Goodfellow et al. 2016, section 4.1); or its natural logarithm.
///
/// A row in which every `s` is minus infinity gives zeros (minus infinity for the logarithm); one that holds a NaN or
/// plus infinity gives NaN, as in PyTorch.
///
/// Operands, in any strides and of any rank from 1 on: input [`Softmax::X`] `[.., width]`, absent to take and overwrite
/// the output's own values; input [`Softmax::MASK`] of `x`'s shape (with strides of 0 where it is broadcast) where the
/// static part names its dtype; output [`Softmax::Y`] of `x`'s shape.
#[derive(Debug)]
pub struct Softmax;

impl Softmax {
    /// Input: the rows. Absent: the output's own values, if the dtypes are one.
    pub const X: usize = 0;
    /// Input: what is added to the scaled rows.
    pub const MASK: usize = 1;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Softmax`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxStatic {
    /// The input's dtype: f32, f16 or bf16, as all others.
    pub x: DType,
    /// The output's dtype.
    pub out: DType,
    /// The mask's dtype, where there is one.
    pub mask: Option<DType>,
    /// What rows are multiplied with: 1 for none, `1 / √head_dim` in attention, `1 / temperature` in sampling.
    pub scale: F32Bits,
    /// The logarithm of the result instead.
    pub log: bool,
}

impl Default for SoftmaxStatic {
    /// Plain softmax in f32.
    fn default() -> Self {
        Self { x: DType::F32, out: DType::F32, mask: None, scale: F32Bits::new(1.0), log: false }
    }
}

impl fmt::Display for SoftmaxStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { x, out, mask, scale, log } = self;
        write!(f, "{}softmax {x} to {out} scale {scale}", if *log { "log " } else { "" })?;
        if let Some(dtype) = mask {
            write!(f, " mask {dtype}")?;
        }
        Ok(())
    }
}

/// The dynamic part of [`Softmax`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxDynamic {
    /// Rows: all indices of the leading dimensions.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

impl SoftmaxDynamic {
    /// The call for operands of this shape.
    pub fn of(shape: &[usize]) -> Self {
        match shape.split_last() {
            Some((&width, leading)) => Self { rows: leading.iter().product(), width },
            None => Self { rows: 1, width: 1 },
        }
    }
}

impl fmt::Display for SoftmaxDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count_of(self.rows, "row"), self.width)
    }
}

/// Operations per element: those of one exp, a maximum, a sum and a product.
const FLOPS: f64 = 24.0;

impl Operator for Softmax {
    const NAME: &'static str = "softmax";
    type Static = SoftmaxStatic;
    type Dynamic = SoftmaxDynamic;

    fn bucket(_: SoftmaxDynamic) -> SoftmaxDynamic {
        // Rows of the table differ in speed by a factor, whatever the shape.
        SoftmaxDynamic { rows: 64, width: 1024 }
    }

    fn anchor(_: &SoftmaxStatic) -> SoftmaxDynamic {
        SoftmaxDynamic { rows: 64, width: 1024 }
    }

    fn check(fixed: &SoftmaxStatic, call: &SoftmaxDynamic, operands: Operands<'_>) -> Result<()> {
        expect_compute(Self::NAME, fixed, [fixed.x, fixed.out])?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        let shape = y.shape();
        if shape.is_empty() || SoftmaxDynamic::of(shape) != *call {
            return Err(refuse(Self::NAME, format!("y is {:?}; the call names {call}", y.layout())));
        }
        expect(Self::NAME, "y", y, fixed.out, shape)?;
        match operands.optional(Self::X) {
            Some(x) => expect(Self::NAME, "x", x, fixed.x, shape)?,
            None if fixed.x == fixed.out => {}
            None => return Err(refuse(Self::NAME, format!("{fixed} in place: the dtypes differ"))),
        }
        match (fixed.mask, operands.optional(Self::MASK)) {
            (Some(dtype), _) => {
                expect(Self::NAME, "mask", operands.input(Self::NAME, Self::MASK, "mask")?, dtype, shape)
            }
            (None, Some(_)) => Err(refuse(Self::NAME, format!("{fixed} takes no mask"))),
            (None, None) => Ok(()),
        }
    }

    fn work(fixed: &SoftmaxStatic, call: &SoftmaxDynamic) -> Work {
        let n = (call.rows * call.width) as f64;
        let bytes = fixed.x.size() + fixed.out.size() + fixed.mask.map_or(0, DType::size);
        Work { flops: n * FLOPS, bytes: n * bytes as f64 }
    }
}
