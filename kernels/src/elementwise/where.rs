//! Selection by a mask.

use std::fmt;

use sinew_tensor::DType;

use super::{Elements, expect_elements};
use crate::Result;
use crate::operator::{Operands, Operator, Work, expect};

/// `y = c ? a : b` for every element: `torch.where`.
///
/// Operands: inputs [`Where::CONDITION`] (bool; any byte but 0 is true), [`Where::A`] and [`Where::B`]; output
/// [`Where::Y`]. All have one shape, and `a`, `b` and `y` one dtype, whichever: elements are moved as they are.
#[derive(Debug)]
pub struct Where;

impl Where {
    /// Input: the mask.
    pub const CONDITION: usize = 0;
    /// Input: taken where the mask is set.
    pub const A: usize = 1;
    /// Input: taken elsewhere.
    pub const B: usize = 2;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Where`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WhereStatic {
    /// The dtype of both choices and of the output.
    pub dtype: DType,
}

impl fmt::Display for WhereStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "where {}", self.dtype)
    }
}

impl Operator for Where {
    const NAME: &'static str = "where";
    type Static = WhereStatic;
    type Dynamic = Elements;

    fn bucket(_: Elements) -> Elements {
        Elements::TYPICAL
    }

    fn anchor(_: &WhereStatic) -> Elements {
        Elements::TYPICAL
    }

    fn check(fixed: &WhereStatic, call: &Elements, operands: Operands<'_>) -> Result<()> {
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        expect_elements(Self::NAME, y, call.0)?;
        expect(Self::NAME, "y", y, fixed.dtype, y.shape())?;
        let condition = operands.input(Self::NAME, Self::CONDITION, "condition")?;
        expect(Self::NAME, "condition", condition, DType::Bool, y.shape())?;
        expect(Self::NAME, "a", operands.input(Self::NAME, Self::A, "a")?, fixed.dtype, y.shape())?;
        expect(Self::NAME, "b", operands.input(Self::NAME, Self::B, "b")?, fixed.dtype, y.shape())
    }

    fn work(fixed: &WhereStatic, call: &Elements) -> Work {
        let n = call.0 as f64;
        Work { flops: 0.0, bytes: n * (1 + 3 * fixed.dtype.size()) as f64 }
    }
}
