//! Reductions over the trailing dimensions.

mod cpu;
mod cpu_wide;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::{DType, Layout};

use crate::Result;
use crate::elementwise::INTEGERS;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, refuse};
use crate::strided::{Indices, largest_index};
use crate::table::joined;

/// The rows of [`Reduce`].
pub fn rows() -> Vec<Row<Reduce>> {
    joined(&mut [
        cpu::rows(),
        vec![cpu_wide::row()],
        #[cfg(feature = "cuda")]
        vec![cuda::row()],
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// What a row of elements becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceFunction {
    /// `Σ x`; 0 of nothing.
    Sum,
    /// `Σ x / n`; NaN of nothing.
    Mean,
    /// The largest; NaN if any is.
    Max,
    /// The smallest; NaN if any is.
    Min,
    /// Where the largest is first, NaN counting as larger than all.
    ArgMax,
    /// Where the smallest is first, NaN counting as smaller than all.
    ArgMin,
}

impl ReduceFunction {
    /// Every function.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Mean, Self::Max, Self::Min, Self::ArgMax, Self::ArgMin];

    /// The name in PyTorch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "amax",
            Self::Min => "amin",
            Self::ArgMax => "argmax",
            Self::ArgMin => "argmin",
        }
    }

    /// Whether the result is an index.
    pub const fn finds(self) -> bool {
        matches!(self, Self::ArgMax | Self::ArgMin)
    }
}

/// Reduces the last [`ReduceStatic::dims`] dimensions. Other axes are brought there by a transposed view.
///
/// Operands: input [`Reduce::X`] `[rows…, width…]`; output [`Reduce::Y`] `[rows…]`. Floats of 16 and 32 bits are summed
/// in blocks of 512 in f32 and over the blocks in f64; integers in i64.
#[derive(Debug)]
pub struct Reduce;

impl Reduce {
    /// Input.
    pub const X: usize = 0;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceStatic {
    /// The function.
    pub function: ReduceFunction,
    /// The input's dtype.
    pub input: DType,
    /// The output's dtype. For sum, mean, max and min: any of f32, f16 and bf16 if the input is of these, else the
    /// input's, but i64 for sums of integers and of bools (which are counted). For argmax and argmin: u32, i32 or i64.
    pub output: DType,
    /// How many of the last dimensions are reduced.
    pub dims: usize,
}

impl fmt::Display for ReduceStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = count_of(self.dims, "dim");
        write!(f, "{} {} to {} over {dims}", self.function.name(), self.input, self.output)
    }
}

impl ReduceStatic {
    fn check(&self) -> Result<()> {
        use ReduceFunction as F;
        let Self { function, input, output, .. } = *self;
        let lanes = DType::COMPUTE.contains(&input);
        let integer = INTEGERS.contains(&input);
        let fits = match function {
            F::ArgMax | F::ArgMin => (lanes || integer || input == DType::F64) && Indices::DTYPES.contains(&output),
            _ if lanes => DType::COMPUTE.contains(&output),
            _ if input == DType::F64 => output == DType::F64,
            F::Sum => (integer || input == DType::Bool) && output == DType::I64,
            F::Max | F::Min => integer && output == input,
            F::Mean => false,
        };
        if fits {
            return Ok(());
        }
        let rule = "f32, f16 and bf16 go to any of them, f64 to f64, sums of integers and bools to i64, their max and \
                    min to themselves, argmax and argmin to u32, i32 or i64; cast first";
        Err(refuse(Reduce::NAME, format!("{self} is not defined: {rule}")))
    }
}

/// The dynamic part of [`Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceDynamic {
    /// Results.
    pub rows: usize,
    /// Elements that each is made of.
    pub width: usize,
}

impl fmt::Display for ReduceDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count_of(self.rows, "row"), self.width)
    }
}

/// Splits an input's shape into rows and width.
fn split(layout: &Layout, dims: usize) -> (&[usize], &[usize]) {
    layout.shape().split_at(layout.rank() - dims)
}

impl Operator for Reduce {
    const NAME: &'static str = "reduce";
    type Static = ReduceStatic;
    type Dynamic = ReduceDynamic;

    fn bucket(_: ReduceDynamic) -> ReduceDynamic {
        ReduceDynamic { rows: 64, width: 1024 }
    }

    fn anchor(_: &ReduceStatic) -> ReduceDynamic {
        ReduceDynamic { rows: 64, width: 1024 }
    }

    fn defined(fixed: &ReduceStatic) -> Result<()> {
        fixed.check()
    }

    fn check(fixed: &ReduceStatic, call: &ReduceDynamic, operands: Operands<'_>) -> Result<()> {
        Self::defined(fixed)?;
        let x = operands.input(Self::NAME, Self::X, "x")?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        expect(Self::NAME, "x", x, fixed.input, x.shape())?;
        if x.shape().len() < fixed.dims {
            return Err(refuse(Self::NAME, format!("{fixed}: x is {:?}", x.layout())));
        }
        let (rows, width) = split(x.layout(), fixed.dims);
        expect(Self::NAME, "y", y, fixed.output, rows)?;
        let found = (rows.iter().product::<usize>(), width.iter().product::<usize>());
        if found != (call.rows, call.width) {
            return Err(refuse(Self::NAME, format!("x is {:?}, the call names {call}", x.layout())));
        }
        if found.1 == 0 && found.0 > 0 && !matches!(fixed.function, ReduceFunction::Sum | ReduceFunction::Mean) {
            return Err(refuse(Self::NAME, format!("{} of no elements: x is {:?}", fixed.function.name(), x.layout())));
        }
        if fixed.function.finds() && found.1.saturating_sub(1) > largest_index(fixed.output) {
            return Err(refuse(
                Self::NAME,
                format!("{} does not hold the indices of {} elements", fixed.output, found.1),
            ));
        }
        Ok(())
    }

    fn work(fixed: &ReduceStatic, call: &ReduceDynamic) -> Work {
        let (rows, width) = (call.rows as f64, call.width as f64);
        Work { flops: rows * width, bytes: rows * (width * fixed.input.size() as f64 + fixed.output.size() as f64) }
    }
}
