//! Rotary position embedding.

use sinew_kernels::Placed;
use sinew_kernels::rotary::{self, COS, POSITIONS, Rotary as Operator, RotaryDynamic, RotaryStatic, SIN, Style, X};
use sinew_tensor::{DType, Tensor};

use crate::error::{operand, refuse};
use crate::shape::{each_folded, expect_output};
use crate::{Context, Result};

/// Cosines and sines of every position, f32 `[positions, rotary_dim / 2]`, built in f64.
#[derive(Debug, Clone)]
pub struct RotaryTable {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
}

impl RotaryTable {
    /// Pair `i` of a head turns by `position · inv_freq[i]`; cosines and sines are multiplied by `scale`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(ctx: &Context, inv_freq: &[f64], scale: f64, positions: usize) -> Result<Self> {
        let table = rotary::Table::build(inv_freq, scale, positions);
        let shape = [positions, inv_freq.len()];
        Ok(Self { cos: ctx.tensor(&table.cos, &shape)?, sin: ctx.tensor(&table.sin, &shape)? })
    }

    /// The plain frequencies of the paper: `inv_freq[i] = theta^(-2i / rotary_dim)`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn with_theta(ctx: &Context, theta: f64, rotary_dim: usize, positions: usize) -> Result<Self> {
        let inv_freq: Vec<f64> = (0..rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
        Self::new(ctx, &inv_freq, 1.0, positions)
    }
}

/// Every head of `x [.., seq, heads, head_dim]` turned by the angles of its token's position (Su et al. 2021), to be
/// completed and run.
///
/// `positions` are i32 `[seq]` or `[.., seq]`, below the table's length: one for each token, and dimensions before the
/// last broadcast. One position for a whole sequence is not repeated. Of `head_dim` values the first `rotary_dim`
/// (twice the table's width) are turned, the others pass. Halves are paired, as in Llama and GPT-NeoX, unless
/// [`Rotate::interleaved`] says otherwise.
///
/// ```
/// use sinew_ops::{Context, RotaryTable, rotary};
///
/// let ctx = Context::cpu()?;
/// let table = RotaryTable::new(&ctx, &[std::f64::consts::FRAC_PI_2], 1.0, 2)?;
/// let x = ctx.tensor(&[3.0f32, 4.0, 3.0, 4.0], &[2, 1, 2])?; // two tokens of one head
/// let positions = ctx.tensor(&[0i32, 1], &[2])?; // the second makes a quarter turn
/// let y = rotary(&x, &positions, &table).run(&ctx)?.to_vec::<f32>()?;
/// assert_eq!(y.iter().map(|y| y.round()).collect::<Vec<_>>(), [3.0, 4.0, -4.0, 3.0]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
pub fn rotary<'a>(x: &'a Tensor, positions: &'a Tensor, table: &'a RotaryTable) -> Rotate<'a> {
    Rotate { x, positions, table, style: Style::Half, output: None }
}

/// A turn to be completed and run. See [`rotary`](fn@rotary).
#[derive(Debug, Clone)]
#[must_use = "nothing is computed before `run` or `run_into`"]
pub struct Rotate<'a> {
    x: &'a Tensor,
    positions: &'a Tensor,
    table: &'a RotaryTable,
    style: Style,
    output: Option<DType>,
}

impl Rotate<'_> {
    /// Pairs neighbours, `(x[2i], x[2i + 1])`, as in GPT-J and in the paper.
    pub fn interleaved(self) -> Self {
        Self { style: Style::Interleaved, ..self }
    }

    /// Rounds the result to a dtype other than that of `x`.
    pub fn output(self, dtype: DType) -> Self {
        Self { output: Some(dtype), ..self }
    }

    /// Runs it and returns the result.
    ///
    /// # Errors
    /// Shapes that do not fit, positions past the table, other dtypes, tensors of another device, or out of memory.
    pub fn run(&self, ctx: &Context) -> Result<Tensor> {
        let mut y = ctx.uninitialised(self.output.unwrap_or(self.x.dtype()), self.x.shape())?;
        self.run_into(ctx, &mut y)?;
        Ok(y)
    }

    /// Runs it into a tensor of the shape of `x`, in any strides. Its dtype is what the result is rounded to.
    ///
    /// # Errors
    /// Those of [`Rotate::run`], another shape, or a shared output.
    pub fn run_into(&self, ctx: &Context, y: &mut Tensor) -> Result<()> {
        let Self { x, positions, table, style, .. } = *self;
        let &[ref leading @ .., heads, head_dim] = x.shape() else {
            return Err(refuse("rotary", format!("{}; it must be [.., seq, heads, head_dim]", operand("x", x))));
        };
        if leading.is_empty() {
            return Err(refuse("rotary", format!("{}; it must be [.., seq, heads, head_dim]", operand("x", x))));
        }
        expect_output("rotary", "y", y, x.shape())?;
        let at = positions.layout().broadcast_to(leading).ok();
        let Some(at) = at.filter(|_| positions.shape().last() == leading.last()) else {
            let reason = format!("{}, but {}", operand("x", x), operand("positions", positions));
            return Err(refuse("rotary", format!("{reason}; they must be [seq] or [.., seq], here {leading:?}")));
        };
        if positions.dtype() != DType::I32 {
            let advice = "they must be i32: cast(ctx, positions, i32) gives them";
            return Err(refuse("rotary", format!("{}; {advice}", operand("positions", positions))));
        }
        let rotary_dim = 2 * table.cos.shape().last().copied().unwrap_or(0);
        let fixed = RotaryStatic { head_dim, rotary_dim, style, x: x.dtype(), out: y.dtype(), in_place: false };
        each_folded([*x.layout(), at, *y.layout()], leading.len(), |[x_at, positions_at, y_at]| {
            let call = RotaryDynamic { tokens: x_at.shape()[0], heads };
            let positions = positions.view().with_layout(positions_at)?;
            let inputs = Placed::of([
                (X, Some(x.view().with_layout(x_at)?)),
                (POSITIONS, Some(positions)),
                (COS, Some(table.cos.view())),
                (SIN, Some(table.sin.view())),
            ]);
            ctx.run::<Operator>(&fixed, &call, &inputs, &[y.view_mut()?.with_layout(y_at)?])
        })
    }
}
