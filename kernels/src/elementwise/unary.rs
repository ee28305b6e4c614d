//! Functions of one operand.

use std::fmt;

use sinew_tensor::DType;

use super::{Elements, INTEGERS, expect_elements};
use crate::Result;
use crate::operator::{Operands, Operator, Work, expect, refuse};

/// A function of one operand, named and defined as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryFunction {
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// -1, 0 or 1; NaN for NaN.
    Sign,
    /// `x²`.
    Square,
    /// `√x`, correctly rounded; NaN below 0.
    Sqrt,
    /// `1 / √x`.
    Rsqrt,
    /// `1 / x`.
    Recip,
    /// `e^x`.
    Exp,
    /// The natural logarithm; NaN below 0.
    Log,
    /// `sin x`.
    Sin,
    /// `cos x`.
    Cos,
    /// `tanh x`.
    Tanh,
    /// The next integer below.
    Floor,
    /// The next integer above.
    Ceil,
    /// The nearest integer, ties to even.
    Round,
    /// Whether `x` is 0, as bool.
    Not,
}

impl UnaryFunction {
    /// Every function.
    pub const ALL: [Self; 16] = [
        Self::Neg,
        Self::Abs,
        Self::Sign,
        Self::Square,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Recip,
        Self::Exp,
        Self::Log,
        Self::Sin,
        Self::Cos,
        Self::Tanh,
        Self::Floor,
        Self::Ceil,
        Self::Round,
        Self::Not,
    ];

    /// The name in PyTorch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Abs => "abs",
            Self::Sign => "sign",
            Self::Square => "square",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Recip => "reciprocal",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sin => "sin",
            Self::Cos => "cos",
            Self::Tanh => "tanh",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round",
            Self::Not => "logical_not",
        }
    }

    /// Whether integers are taken.
    pub const fn takes_integers(self) -> bool {
        matches!(self, Self::Neg | Self::Abs | Self::Sign | Self::Square | Self::Not)
    }
}

/// `y = f(x)` for every element.
///
/// Operands: input [`Unary::X`]; output [`Unary::Y`] of the same shape. Without an input the output is read and
/// overwritten in place.
#[derive(Debug)]
pub struct Unary;

impl Unary {
    /// Input: what the function is taken of. Absent: the output's own values.
    pub const X: usize = 0;
    /// Output.
    pub const Y: usize = 0;
}

/// The static part of [`Unary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnaryStatic {
    /// The function.
    pub function: UnaryFunction,
    /// The input's dtype.
    pub input: DType,
    /// The output's dtype: any of f32, f16 and bf16 if the input is one of these; bool for
    /// [`UnaryFunction::Not`]; else the input's.
    pub output: DType,
}

impl fmt::Display for UnaryStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.function.name(), self.input, self.output)
    }
}

impl UnaryStatic {
    /// Checks that the function is defined for these dtypes.
    fn check(&self) -> Result<()> {
        let (function, x, y) = (self.function, self.input, self.output);
        let fits = if function == UnaryFunction::Not {
            y == DType::Bool && (DType::COMPUTE.contains(&x) || x == DType::F64 || INTEGERS.contains(&x) || x == y)
        } else if DType::COMPUTE.contains(&x) {
            DType::COMPUTE.contains(&y)
        } else {
            x == y && (x == DType::F64 || (function.takes_integers() && INTEGERS.contains(&x)))
        };
        if fits {
            return Ok(());
        }
        let rule = "floats go to floats (f64 to f64), integers to themselves and only through neg, abs, sign and \
                    square, and logical_not gives bool; cast first";
        Err(refuse(Unary::NAME, format!("{self} is not defined: {rule}")))
    }
}

impl Operator for Unary {
    const NAME: &'static str = "unary";
    type Static = UnaryStatic;
    type Dynamic = Elements;

    fn bucket(_: Elements) -> Elements {
        Elements::TYPICAL
    }

    fn anchor(_: &UnaryStatic) -> Elements {
        Elements::TYPICAL
    }

    fn defined(fixed: &UnaryStatic) -> Result<()> {
        fixed.check()
    }

    fn check(fixed: &UnaryStatic, call: &Elements, operands: Operands<'_>) -> Result<()> {
        Self::defined(fixed)?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        expect_elements(Self::NAME, y, call.0)?;
        expect(Self::NAME, "y", y, fixed.output, y.shape())?;
        match operands.optional(Self::X) {
            Some(x) => expect(Self::NAME, "x", x, fixed.input, y.shape()),
            None if fixed.input == fixed.output => Ok(()),
            None => Err(refuse(Self::NAME, format!("{fixed} in place: the dtypes differ"))),
        }
    }

    fn work(fixed: &UnaryStatic, call: &Elements) -> Work {
        let n = call.0 as f64;
        Work { flops: n, bytes: n * (fixed.input.size() + fixed.output.size()) as f64 }
    }
}
