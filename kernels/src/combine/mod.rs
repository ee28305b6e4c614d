//! The weighted sum of each token's rows: `out[t] = Σ_j weights[t, j] · y[place[t · top_k + j]]`, or that added to
//! `out[t]`.
//!
//! What puts the experts' results back where the tokens are that [`route`](crate::route) sent to them. The sum is a
//! chain in f32 in the order of `j`, begun with zero, whatever the order of the rows: a token has the same bits in any
//! batch.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;

use sinew_tensor::DType;

use crate::Result;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, expect_compute, refuse};
use crate::table::joined;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

/// Weighted sums of rows. See the [module](self).
///
/// A place outside the rows is an error: on a CPU nothing is written, on a GPU it shows when the stream is
/// synchronised.
#[derive(Clone, Copy, Debug)]
pub struct Combine;

impl Combine {
    /// Input: the rows, `[tokens · top_k, width]`.
    pub const Y: usize = 0;
    /// Input: weights, f32 `[tokens, top_k]`.
    pub const WEIGHTS: usize = 1;
    /// Input: which row each weight is for, u32 `[tokens · top_k]`.
    pub const PLACE: usize = 2;
    /// Output, which is read where it is added to: `[tokens, width]`.
    pub const OUT: usize = 0;
}

/// The static part of [`Combine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineStatic {
    /// Values of a row.
    pub width: usize,
    /// Rows of a token.
    pub top_k: usize,
    /// Type of the rows.
    pub y: DType,
    /// Type of the result.
    pub out: DType,
    /// Whether the sum is added to what the output holds.
    pub accumulate: bool,
}

impl fmt::Display for CombineStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, top_k, y, out, accumulate } = *self;
        write!(f, "{} of {width} {y}→{out}{}", count_of(top_k, "row"), if accumulate { " added" } else { "" })
    }
}

/// The dynamic part of [`Combine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineDynamic {
    /// Tokens.
    pub tokens: usize,
}

impl fmt::Display for CombineDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.tokens, "token"))
    }
}

impl Operator for Combine {
    const NAME: &'static str = "combine";
    type Static = CombineStatic;
    type Dynamic = CombineDynamic;

    fn bucket(_: CombineDynamic) -> CombineDynamic {
        CombineDynamic { tokens: 1 }
    }

    fn anchor(_: &CombineStatic) -> CombineDynamic {
        CombineDynamic { tokens: 1 }
    }

    fn check(fixed: &CombineStatic, call: &CombineDynamic, operands: Operands<'_>) -> Result<()> {
        expect_compute(Self::NAME, fixed, [fixed.y, fixed.out])?;
        let Some(slots) = call.tokens.checked_mul(fixed.top_k) else {
            return Err(refuse(Self::NAME, format!("{call} of {} rows are too many", fixed.top_k)));
        };
        let inputs: [(&str, usize, DType, &[usize]); 3] = [
            ("y", Self::Y, fixed.y, &[slots, fixed.width]),
            ("weights", Self::WEIGHTS, DType::F32, &[call.tokens, fixed.top_k]),
            ("place", Self::PLACE, DType::U32, &[slots]),
        ];
        for (name, position, dtype, shape) in inputs {
            expect(Self::NAME, name, operands.input(Self::NAME, position, name)?, dtype, shape)?;
        }
        let out = operands.output(Self::NAME, Self::OUT, "out")?;
        expect(Self::NAME, "out", out, fixed.out, &[call.tokens, fixed.width])
    }

    fn work(fixed: &CombineStatic, call: &CombineDynamic) -> Work {
        let (values, slots) = ((call.tokens * fixed.width) as f64, (call.tokens * fixed.top_k) as f64);
        let out = fixed.out.size() * (1 + usize::from(fixed.accumulate));
        let bytes = slots * (fixed.width * fixed.y.size() + 8) as f64 + values * out as f64;
        Work { flops: 2.0 * slots * fixed.width as f64, bytes }
    }
}

/// The rows of [`Combine`].
pub fn rows() -> Vec<Row<Combine>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        vec![cuda::ROW],
        #[cfg(feature = "wgpu")]
        vec![wgpu::ROW],
    ])
}
