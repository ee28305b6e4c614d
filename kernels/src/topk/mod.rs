//! The largest elements of each row, in order.

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
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, expect_compute, refuse};
use crate::strided::{Indices, largest_index};
use crate::table::joined;

/// The rows of [`TopK`].
pub fn rows() -> Vec<Row<TopK>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// The `k` largest elements of the last dimension, largest first: `torch.topk`.
///
/// NaN counts as larger than all; -0 and 0 are equal; of equal elements the one with the lowest index comes first.
///
/// Operands: input [`TopK::X`] `[rows…, width]`; outputs [`TopK::VALUES`] `[rows…, k]` of its dtype and
/// [`TopK::INDICES`] `[rows…, k]` of u32, i32 or i64.
#[derive(Debug)]
pub struct TopK;

impl TopK {
    /// Input.
    pub const X: usize = 0;
    /// Output: the values.
    pub const VALUES: usize = 0;
    /// Output: where they are.
    pub const INDICES: usize = 1;
}

/// The static part of [`TopK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopKStatic {
    /// How many.
    pub k: usize,
    /// The dtype of input and values: f32, f16 or bf16.
    pub dtype: DType,
    /// The dtype of indices.
    pub indices: DType,
}

impl fmt::Display for TopKStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "top {} of {} with {}", self.k, self.dtype, self.indices)
    }
}

/// The dynamic part of [`TopK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopKDynamic {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

impl fmt::Display for TopKDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count_of(self.rows, "row"), self.width)
    }
}

impl Operator for TopK {
    const NAME: &'static str = "topk";
    type Static = TopKStatic;
    type Dynamic = TopKDynamic;

    fn bucket(call: TopKDynamic) -> TopKDynamic {
        // No narrower: as many are to be found.
        let up = |n: usize| n.checked_next_power_of_two().unwrap_or(n);
        TopKDynamic { rows: up(call.rows), width: up(call.width) }
    }

    fn anchor(_: &TopKStatic) -> TopKDynamic {
        TopKDynamic { rows: 1, width: 1 << 15 }
    }

    fn defined(fixed: &TopKStatic) -> Result<()> {
        expect_compute(Self::NAME, fixed, [fixed.dtype])?;
        Indices::check_dtype(Self::NAME, "indices", fixed.indices)
    }

    fn check(fixed: &TopKStatic, call: &TopKDynamic, operands: Operands<'_>) -> Result<()> {
        let x = operands.input(Self::NAME, Self::X, "x")?;
        let values = operands.output(Self::NAME, Self::VALUES, "values")?;
        let indices = operands.output(Self::NAME, Self::INDICES, "indices")?;
        Self::defined(fixed)?;
        expect(Self::NAME, "x", x, fixed.dtype, x.shape())?;
        expect(Self::NAME, "values", values, fixed.dtype, values.shape())?;
        expect(Self::NAME, "indices", indices, fixed.indices, values.shape())?;
        let (Some((&width, rows)), Some((&k, found))) = (x.shape().split_last(), values.shape().split_last()) else {
            return Err(refuse(Self::NAME, format!("x is {:?}; expected [rows…, width]", x.layout())));
        };
        if rows != found || k != fixed.k {
            return Err(refuse(
                Self::NAME,
                format!("x is {:?}; values {:?}; expected the last {}", x.layout(), values.layout(), fixed.k),
            ));
        }
        if k > width {
            return Err(refuse(Self::NAME, format!("the top {k} of {width} elements: x is {:?}", x.layout())));
        }
        // Candidates are kept as 32 bits of value and 32 of index.
        if width.saturating_sub(1) > largest_index(fixed.indices).min(u32::MAX as usize) {
            return Err(refuse(
                Self::NAME,
                format!("rows of {width} elements are too long for indices of {}", fixed.indices),
            ));
        }
        if (rows.iter().product(), width) != (call.rows, call.width) {
            return Err(refuse(Self::NAME, format!("x is {:?}, the call names {call}", x.layout())));
        }
        Ok(())
    }

    fn work(fixed: &TopKStatic, call: &TopKDynamic) -> Work {
        let (rows, width, k) = (call.rows as f64, call.width as f64, fixed.k as f64);
        let out = k * (fixed.dtype.size() + fixed.indices.size()) as f64;
        Work { flops: rows * (width + k * (k + 1.0).log2()), bytes: rows * (width * fixed.dtype.size() as f64 + out) }
    }
}
