//! Selection of elements by index along a dimension.

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

use crate::Result;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, refuse};
use crate::strided::Indices;
use crate::table::joined;

/// The rows of [`Gather`].
pub fn rows() -> Vec<Row<Gather>> {
    joined(&mut [
        vec![cpu::row()],
        #[cfg(feature = "cuda")]
        vec![cuda::row()],
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// `y[i…] = x[i…, with index[i…] in dimension dim]`: `torch.gather`.
///
/// Operands: inputs [`Gather::X`] and [`Gather::INDEX`] of u32, i32 or i64; output [`Gather::Y`] of the index's shape
/// and the input's dtype, any. In the other dimensions the input is at least as long as the index. An index outside
/// the dimension is an error: on a CPU nothing is written, on a GPU it shows when the stream is synchronised.
///
/// `torch.index_select` is the same with a list of indices that is broadcast (with strides of 0) over the other
/// dimensions: each index is then checked once, and whole rows are copied.
#[derive(Debug)]
pub struct Gather;

impl Gather {
    /// Input: what is selected from.
    pub const X: usize = 0;
    /// Input: which elements.
    pub const INDEX: usize = 1;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Gather`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherStatic {
    /// The dtype of input and output.
    pub dtype: DType,
    /// The dimension along which elements are selected.
    pub dim: usize,
}

impl fmt::Display for GatherStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} along dimension {}", self.dtype, self.dim)
    }
}

/// The dynamic part of [`Gather`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherDynamic {
    /// Elements of the output.
    pub elements: usize,
    /// Elements of the input along the dimension.
    pub size: usize,
}

impl fmt::Display for GatherDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} out of {}", count_of(self.elements, "element"), self.size)
    }
}

impl Operator for Gather {
    const NAME: &'static str = "gather";
    type Static = GatherStatic;
    type Dynamic = GatherDynamic;

    fn bucket(_: GatherDynamic) -> GatherDynamic {
        GatherDynamic { elements: 1 << 16, size: 1024 }
    }

    fn anchor(_: &GatherStatic) -> GatherDynamic {
        GatherDynamic { elements: 1 << 16, size: 1024 }
    }

    fn check(fixed: &GatherStatic, call: &GatherDynamic, operands: Operands<'_>) -> Result<()> {
        let x = operands.input(Self::NAME, Self::X, "x")?;
        let index = operands.input(Self::NAME, Self::INDEX, "index")?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        Indices::check_dtype(Self::NAME, "indices", index.dtype())?;
        expect(Self::NAME, "x", x, fixed.dtype, x.shape())?;
        expect(Self::NAME, "y", y, fixed.dtype, index.shape())?;
        let (rank, dim) = (y.shape().len(), fixed.dim);
        if x.shape().len() != rank || dim >= rank {
            return Err(refuse(
                Self::NAME,
                format!("x is {:?} and the index {:?}: dimension {dim} of each", x.layout(), index.layout()),
            ));
        }
        if (0..rank).any(|d| d != dim && x.shape()[d] < y.shape()[d]) {
            return Err(refuse(
                Self::NAME,
                format!("x is {:?}, shorter than the index {:?}", x.layout(), index.layout()),
            ));
        }
        if y.layout().elements() != call.elements || x.shape()[dim] != call.size {
            return Err(refuse(
                Self::NAME,
                format!("x is {:?} and y {:?}, the call names {call}", x.layout(), y.layout()),
            ));
        }
        Ok(())
    }

    fn work(fixed: &GatherStatic, call: &GatherDynamic) -> Work {
        Work { flops: 0.0, bytes: (call.elements * (2 * fixed.dtype.size() + 4)) as f64 }
    }
}
