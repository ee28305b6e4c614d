//! Conversion between dtypes, and strided copies.

mod cpu;
mod cpu_copy;
mod cpu_wide;
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
use crate::elementwise::{Elements, expect_elements};
use crate::operator::{Operands, Operator, Row, Work, expect};
use crate::table::joined;

/// The rows of [`Cast`].
pub fn rows() -> Vec<Row<Cast>> {
    joined(&mut [
        cpu::rows(),
        vec![cpu_copy::row(), cpu_wide::row()],
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// `y = x` in another dtype or another layout.
///
/// Floats round to nearest, ties to even, and overflow to infinity (f8_e4m3, which has none: to NaN). Floats become
/// integers by truncation, saturating, NaN giving 0; integers become integers modulo 2^bits; everything but 0 becomes
/// true. A cast to the same dtype copies elements of any dtype as they are.
///
/// Operands: input [`Cast::X`]; output [`Cast::Y`] of the same shape.
#[derive(Debug)]
pub struct Cast;

impl Cast {
    /// Input.
    pub const X: usize = 0;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Cast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CastStatic {
    /// The input's dtype.
    pub input: DType,
    /// The output's dtype.
    pub output: DType,
}

impl fmt::Display for CastStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.input, self.output)
    }
}

impl Operator for Cast {
    const NAME: &'static str = "cast";
    type Static = CastStatic;
    type Dynamic = Elements;

    fn bucket(_: Elements) -> Elements {
        Elements::TYPICAL
    }

    fn anchor(_: &CastStatic) -> Elements {
        Elements::TYPICAL
    }

    fn check(fixed: &CastStatic, call: &Elements, operands: Operands<'_>) -> Result<()> {
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        let x = operands.input(Self::NAME, Self::X, "x")?;
        expect_elements(Self::NAME, y, call.0)?;
        expect(Self::NAME, "y", y, fixed.output, y.shape())?;
        expect(Self::NAME, "x", x, fixed.input, y.shape())
    }

    fn work(fixed: &CastStatic, call: &Elements) -> Work {
        Work { flops: 0.0, bytes: call.0 as f64 * (fixed.input.size() + fixed.output.size()) as f64 }
    }
}
