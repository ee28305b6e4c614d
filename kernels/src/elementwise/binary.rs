//! Functions and comparisons of two operands.

use std::fmt;

use sinew_tensor::DType;

use super::{Elements, INTEGERS, expect_elements};
use crate::Result;
use crate::operator::{Operands, Operator, Work, count_of, expect, refuse};

/// A function of two operands, named and defined as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryFunction {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`; floats only.
    Div,
    /// The larger; NaN where either is NaN.
    Max,
    /// The smaller; NaN where either is NaN.
    Min,
    /// `a^b`; floats only.
    Pow,
    /// Whether `a = b`, as bool.
    Eq,
    /// Whether `a ≠ b`, as bool.
    Ne,
    /// Whether `a < b`, as bool.
    Lt,
    /// Whether `a ≤ b`, as bool.
    Le,
    /// Whether `a > b`, as bool.
    Gt,
    /// Whether `a ≥ b`, as bool.
    Ge,
}

impl BinaryFunction {
    /// Every function.
    pub const ALL: [Self; 13] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::Max,
        Self::Min,
        Self::Pow,
        Self::Eq,
        Self::Ne,
        Self::Lt,
        Self::Le,
        Self::Gt,
        Self::Ge,
    ];

    /// The name in PyTorch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::Pow => "pow",
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }

    /// Whether the result is a bool.
    pub const fn compares(self) -> bool {
        matches!(self, Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge)
    }

    /// Whether integers are taken.
    pub const fn takes_integers(self) -> bool {
        !matches!(self, Self::Div | Self::Pow)
    }
}

/// `y = f(a, b)` for every element.
///
/// Operands: inputs [`Binary::A`] and [`Binary::B`]; output [`Binary::Y`]; all of one shape. Without `a` the output
/// is read and overwritten in place. Without `b` the call's scalar stands for it.
#[derive(Debug)]
pub struct Binary;

impl Binary {
    /// Input: the first operand. Absent: the output's own values.
    pub const A: usize = 0;
    /// Input: the second operand. Absent: [`BinaryDynamic::scalar`].
    pub const B: usize = 1;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Binary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BinaryStatic {
    /// The function.
    pub function: BinaryFunction,
    /// The first operand's dtype.
    pub a: DType,
    /// The second operand's dtype: any of f32, f16 and bf16 if the first is one of these, else the same.
    pub b: DType,
    /// The output's dtype: bool for comparisons; any of f32, f16 and bf16 if the operands are of these; else theirs.
    pub output: DType,
}

impl fmt::Display for BinaryStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} and {} to {}", self.function.name(), self.a, self.b, self.output)
    }
}

impl BinaryStatic {
    fn check(&self) -> Result<()> {
        let lanes = DType::COMPUTE.contains(&self.a) && DType::COMPUTE.contains(&self.b);
        let wide = self.a == self.b
            && (self.a == DType::F64 || (INTEGERS.contains(&self.a) && self.function.takes_integers()));
        let output = if self.function.compares() {
            self.output == DType::Bool
        } else if lanes {
            DType::COMPUTE.contains(&self.output)
        } else {
            self.output == self.a
        };
        if (lanes || wide) && output {
            return Ok(());
        }
        let rule = "operands are f32, f16 and bf16 in any mixture, or both f64, or both the same integer (not through \
                    div and pow); comparisons give bool; cast first";
        Err(refuse(Binary::NAME, format!("{self} is not defined: {rule}")))
    }
}

/// The dynamic part of [`Binary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BinaryDynamic {
    /// Elements of the output.
    pub elements: usize,
    /// The bits of the f64 that stands for `b` where that input is absent; rounded to [`BinaryStatic::b`].
    pub scalar: u64,
}

impl BinaryDynamic {
    /// A call with two operands.
    pub const fn new(elements: usize) -> Self {
        Self { elements, scalar: 0 }
    }

    /// A call whose second operand is a scalar.
    pub const fn with_scalar(elements: usize, scalar: f64) -> Self {
        Self { elements, scalar: scalar.to_bits() }
    }

    /// The scalar.
    pub const fn scalar(&self) -> f64 {
        f64::from_bits(self.scalar)
    }
}

impl fmt::Display for BinaryDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.elements, "element"))
    }
}

impl Operator for Binary {
    const NAME: &'static str = "binary";
    type Static = BinaryStatic;
    type Dynamic = BinaryDynamic;

    fn bucket(_: BinaryDynamic) -> BinaryDynamic {
        BinaryDynamic::new(Elements::TYPICAL.0)
    }

    fn anchor(_: &BinaryStatic) -> BinaryDynamic {
        BinaryDynamic::new(Elements::TYPICAL.0)
    }

    fn defined(fixed: &BinaryStatic) -> Result<()> {
        fixed.check()
    }

    fn check(fixed: &BinaryStatic, call: &BinaryDynamic, operands: Operands<'_>) -> Result<()> {
        Self::defined(fixed)?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        expect_elements(Self::NAME, y, call.elements)?;
        expect(Self::NAME, "y", y, fixed.output, y.shape())?;
        if let Some(b) = operands.optional(Self::B) {
            expect(Self::NAME, "b", b, fixed.b, y.shape())?;
        }
        match operands.optional(Self::A) {
            Some(a) => expect(Self::NAME, "a", a, fixed.a, y.shape()),
            None if fixed.a == fixed.output => Ok(()),
            None => Err(refuse(Self::NAME, format!("{fixed} in place: the dtypes of a and the output differ"))),
        }
    }

    fn work(fixed: &BinaryStatic, call: &BinaryDynamic) -> Work {
        let n = call.elements as f64;
        Work { flops: n, bytes: n * (fixed.a.size() + fixed.b.size() + fixed.output.size()) as f64 }
    }
}
