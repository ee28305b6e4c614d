//! The operator: what can be asked, and its cases.

use std::fmt;

use sinew_tensor::{DType, MAX_RANK};

use super::Activation;
use crate::Result;
use crate::operator::{Operands, Operator, Work, expect, expect_compute, refuse};

/// `y = act(x)`, or `y = act(gate) · factor(up)`, for every element; computed in f32 and rounded once. The factor is the
/// up itself, unless the [`Activation`] says another.
///
/// Operands, of any rank and strides: input [`Activate::X`], input [`Activate::UP`] with [`Gate::Tensor`]; output
/// [`Activate::Y`]. All have one shape `[.., width]`, but that with [`Gate::Halves`] `x` is `[.., 2 · width]`. Without
/// an `x` the output's own values are taken and overwritten.
#[derive(Debug)]
pub struct Activate;

impl Activate {
    /// Input: what the activation is taken of; with [`Gate::Halves`] gate and up side by side. Absent: the output's
    /// own values, if the dtypes are one.
    pub const X: usize = 0;
    /// Input, with [`Gate::Tensor`] only: what the activation is multiplied with.
    pub const UP: usize = 1;
    /// Output.
    pub const Y: usize = 0;
}

/// What the activation is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// Nothing.
    None,
    /// A tensor of its own.
    Tensor,
    /// The second half of `x`'s last dimension; the first half is the gate.
    Halves,
}

/// The static part of [`Activate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationStatic {
    /// The function.
    pub activation: Activation,
    /// What it is multiplied with.
    pub gate: Gate,
    /// The dtype of the inputs: f32, f16 or bf16.
    pub x: DType,
    /// The dtype of the output: f32, f16 or bf16.
    pub out: DType,
}

impl fmt::Display for ActivationStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = match self.gate {
            Gate::None => "",
            Gate::Tensor => " gated",
            Gate::Halves => " gated by halves",
        };
        write!(f, "{}{gate} {} to {}", self.activation, self.x, self.out)
    }
}

/// The dynamic part of [`Activate`]: the output's shape, leading dimensions taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationDynamic {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

impl ActivationDynamic {
    /// The call for an output of this shape.
    pub fn of(shape: &[usize]) -> Self {
        match shape.split_last() {
            Some((&width, leading)) => Self { rows: leading.iter().product(), width },
            None => Self { rows: 1, width: 1 },
        }
    }
}

impl fmt::Display for ActivationDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.width)
    }
}

/// Operations per element: about as many as exp and a division take.
const FLOPS: f64 = 20.0;

impl Operator for Activate {
    const NAME: &'static str = "activation";
    type Static = ActivationStatic;
    type Dynamic = ActivationDynamic;

    fn bucket(_: ActivationDynamic) -> ActivationDynamic {
        // Rows of the table differ in speed by a factor, whatever the number of elements.
        ActivationDynamic { rows: 16, width: 4096 }
    }

    fn anchor(_: &ActivationStatic) -> ActivationDynamic {
        ActivationDynamic { rows: 16, width: 4096 }
    }

    fn check(fixed: &ActivationStatic, call: &ActivationDynamic, operands: Operands<'_>) -> Result<()> {
        expect_compute(Self::NAME, fixed, [fixed.x, fixed.out])?;
        let y = operands.output(Self::NAME, Self::Y, "y")?;
        let shape = y.shape();
        if ActivationDynamic::of(shape) != *call {
            return Err(refuse(Self::NAME, format!("y has {:?}, the call names {call}", y.layout())));
        }
        expect(Self::NAME, "y", y, fixed.out, shape)?;
        let mut x_shape = [0; MAX_RANK];
        let x_shape = &mut x_shape[..shape.len()];
        x_shape.copy_from_slice(shape);
        if fixed.gate == Gate::Halves {
            let twice = shape.last().and_then(|width| width.checked_mul(2));
            let (Some(last), Some(twice)) = (x_shape.last_mut(), twice) else {
                return Err(refuse(Self::NAME, format!("{fixed}: y is {:?}, and no x is twice as wide", y.layout())));
            };
            *last = twice;
        }
        match operands.optional(Self::X) {
            Some(x) => expect(Self::NAME, "x", x, fixed.x, x_shape)?,
            None if fixed.gate != Gate::Halves && fixed.x == fixed.out => {}
            None => return Err(refuse(Self::NAME, format!("{fixed} in place: dtypes and shapes of x and y differ"))),
        }
        match (fixed.gate, operands.optional(Self::UP)) {
            (Gate::Tensor, Some(up)) => expect(Self::NAME, "up", up, fixed.x, shape),
            (Gate::Tensor, None) => operands.input(Self::NAME, Self::UP, "up").map(|_| ()),
            (_, Some(_)) => Err(refuse(Self::NAME, format!("{fixed} takes no up tensor"))),
            (_, None) => Ok(()),
        }
    }

    fn work(fixed: &ActivationStatic, call: &ActivationDynamic) -> Work {
        let n = (call.rows * call.width) as f64;
        let inputs = if fixed.gate == Gate::None { 1 } else { 2 };
        Work { flops: n * FLOPS, bytes: n * (inputs * fixed.x.size() + fixed.out.size()) as f64 }
    }
}
