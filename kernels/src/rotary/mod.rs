//! Rotary position embedding.
//!
//! Every head of a token is turned by angles that grow with the token's position `m` (RoFormer, Su et al. 2021,
//! section 3.2.2): of `head_dim` values the first `r = rotary_dim` are taken as `r/2` pairs, and pair `i`, of values
//! `(a, b)`, becomes
//!
//! ```text
//! a' = a · cos[m, i] - b · sin[m, i]
//! b' = b · cos[m, i] + a · sin[m, i]
//! ```
//!
//! which is computed in f32 and rounded once to the output's dtype; values from `r` on pass through. [`Style`] says
//! which values are pairs, and [`Table`] makes the tables.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod reference;
mod table;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::DType;

use crate::Result;
use crate::operator::{Operands, Operator, Row, Work, count_of, expect, expect_compute, refuse};
use crate::table::joined;

pub use table::Table;

/// The rows of [`Rotary`].
pub fn rows() -> Vec<Row<Rotary>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

/// Input: what is turned, `[tokens, heads, head_dim]`. Absent where that is the output itself.
pub const X: usize = 0;
/// Input: the position of each token, i32 `[tokens]`, each at least 0 and below the length of the tables.
pub const POSITIONS: usize = 1;
/// Input: the table of cosines, f32 `[positions, rotary_dim/2]`.
pub const COS: usize = 2;
/// Input: the table of sines, f32 `[positions, rotary_dim/2]`.
pub const SIN: usize = 3;
/// Output: what is turned, `[tokens, heads, head_dim]`; read as well where the problem is in place.
pub const OUT: usize = 0;

/// Which values of a head are pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// Pair `i` is `(x[i], x[i + rotary_dim/2])`, as in GPT-NeoX and in Llama's transformers checkpoints.
    Half,
    /// Pair `i` is `(x[2i], x[2i + 1])`, as in GPT-J and in the paper.
    Interleaved,
}

/// Rotary position embedding: see the [module](self).
///
/// ```
/// use sinew_kernels::rotary::{Rotary, RotaryDynamic, RotaryStatic, Style, Table};
/// use sinew_kernels::{Launch, Operands, Operator, Registry};
/// use sinew_memory::{Cpu, Device};
/// use sinew_tensor::{DType, Tensor};
///
/// let cpu = Cpu::get();
/// let table = Table::build(&[std::f64::consts::FRAC_PI_2], 1.0, 2);
/// let cos = Tensor::from_slice(&cpu, &table.cos, &[2, 1])?;
/// let sin = Tensor::from_slice(&cpu, &table.sin, &[2, 1])?;
/// let positions = Tensor::from_slice(&cpu, &[0i32, 1], &[2])?;
/// // Two tokens of one head of two values: the second is at position 1, and makes a quarter turn.
/// let mut x = Tensor::from_slice(&cpu, &[3f32, 4., 3., 4.], &[2, 1, 2])?;
///
/// let (head_dim, rotary_dim, dtype) = (2, 2, DType::F32);
/// let fixed = RotaryStatic { head_dim, rotary_dim, style: Style::Half, x: dtype, out: dtype, in_place: true };
/// let call = RotaryDynamic { tokens: 2, heads: 1 };
/// let stream = cpu.clone().stream()?;
/// let inputs = [None, Some(positions.view()), Some(cos.view()), Some(sin.view())];
/// let operands = Operands { inputs: &inputs, outputs: &[x.view_mut()?] };
/// let registry = Registry::standard();
/// let row = registry.table::<Rotary>()?.rows()[0];
/// row.launch(&Launch::new(&stream, None)?, &fixed, &call, operands)?;
/// let turned: Vec<f32> = x.to_vec::<f32>()?.iter().map(|x| x.round()).collect();
/// assert_eq!(turned, [3., 4., -4., 3.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rotary;

/// What is known of a rotary embedding when a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryStatic {
    /// Values of a head.
    pub head_dim: usize,
    /// Values of a head that are turned, its first ones: even, and at most `head_dim`.
    pub rotary_dim: usize,
    /// Which values are pairs.
    pub style: Style,
    /// Dtype of what is turned: f32, f16 or bf16.
    pub x: DType,
    /// Dtype of the result: f32, f16 or bf16.
    pub out: DType,
    /// Whether the output is turned where it lies; the dtypes are then the same.
    pub in_place: bool,
}

/// What each call brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryDynamic {
    /// Tokens.
    pub tokens: usize,
    /// Heads of each token.
    pub heads: usize,
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Half => "half",
            Self::Interleaved => "interleaved",
        })
    }
}

impl fmt::Display for RotaryStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {} {}", self.style, self.rotary_dim, self.head_dim, self.x)?;
        if self.in_place { f.write_str(" in place") } else { write!(f, " to {}", self.out) }
    }
}

impl fmt::Display for RotaryDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", count_of(self.tokens, "token"), count_of(self.heads, "head"))
    }
}

impl Operator for Rotary {
    const NAME: &'static str = "rotary";
    type Static = RotaryStatic;
    type Dynamic = RotaryDynamic;

    fn bucket(call: RotaryDynamic) -> RotaryDynamic {
        // Rows differ in speed by a factor, whatever the shape.
        RotaryDynamic { tokens: call.tokens.min(1), heads: call.heads.min(1) }
    }

    fn anchor(_: &RotaryStatic) -> RotaryDynamic {
        RotaryDynamic { tokens: 64, heads: 32 }
    }

    fn check(fixed: &RotaryStatic, call: &RotaryDynamic, operands: Operands<'_>) -> Result<()> {
        let RotaryStatic { head_dim, rotary_dim, x, out, in_place, .. } = *fixed;
        expect_compute(Self::NAME, fixed, [x, out])?;
        if in_place && x != out {
            return Err(refuse(Self::NAME, format!("in place, {x} cannot become {out}")));
        }
        let (inputs, outputs) = (operands.inputs.len(), operands.outputs.len());
        if inputs != 4 || outputs != 1 {
            return Err(refuse(Self::NAME, format!("{inputs} inputs and {outputs} outputs; expected 4 and 1")));
        }
        let shape = [call.tokens, call.heads, head_dim];
        match operands.optional(X) {
            Some(_) if in_place => return Err(refuse(Self::NAME, "in place, and yet x (input 0) is there")),
            None if in_place => {}
            _ => expect(Self::NAME, "x", operands.input(Self::NAME, X, "x")?, x, &shape)?,
        }
        expect(Self::NAME, "out", operands.output(Self::NAME, OUT, "out")?, out, &shape)?;
        expect_angles(Self::NAME, head_dim, rotary_dim, call.tokens, operands, [POSITIONS, COS, SIN])
    }

    fn work(fixed: &RotaryStatic, call: &RotaryDynamic) -> Work {
        let (tokens, heads) = (call.tokens as f64, call.heads as f64);
        let pairs = fixed.rotary_dim as f64 / 2.0;
        let touched = if fixed.in_place { fixed.rotary_dim } else { fixed.head_dim } as f64;
        let per_value = (fixed.x.size() + fixed.out.size()) as f64;
        Work {
            flops: 6.0 * tokens * heads * pairs,
            // Cosines, sines and a position for each token besides.
            bytes: tokens * (heads * touched * per_value + 8.0 * pairs + 4.0),
        }
    }
}

/// Refuses positions and tables that are not those of tokens whose heads are turned, at these places among an
/// operator's inputs.
pub(crate) fn expect_angles(
    operator: &'static str,
    head_dim: usize,
    rotary_dim: usize,
    tokens: usize,
    operands: Operands<'_>,
    [positions, cos, sin]: [usize; 3],
) -> Result<()> {
    if !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        let reason = format!("rotary_dim is {rotary_dim}; expected an even number up to head_dim {head_dim}");
        return Err(refuse(operator, reason));
    }
    let positions = operands.input(operator, positions, "positions")?;
    expect(operator, "positions", positions, DType::I32, &[tokens])?;
    let cos = operands.input(operator, cos, "cos")?;
    let table = [cos.shape().first().copied().unwrap_or(0), rotary_dim / 2];
    expect(operator, "cos", cos, DType::F32, &table)?;
    expect(operator, "sin", operands.input(operator, sin, "sin")?, DType::F32, &table)
}
