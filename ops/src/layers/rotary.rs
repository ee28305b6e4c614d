//! Rotary position embedding with its table.

use sinew_kernels::Placed;
use sinew_kernels::kv_append::KeyRotary;
use sinew_kernels::rotary::{self, COS, POSITIONS, Rotary as Operator, RotaryDynamic, RotaryStatic, SIN, Style};
use sinew_tensor::{DType, Tensor, View, ViewMut};

use super::{names, size};
use crate::{Context, Planned, Result};

/// Rotary position embedding (Su et al. 2021), planned for queries and keys of one width.
#[derive(Debug)]
pub struct Rotary {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
    fixed: RotaryStatic,
    plan: Planned<Operator>,
}

/// By what keys are turned on their way into the cache.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Tables of angles.
    pub rotary: &'a Rotary,
    /// i32 `[tokens]`.
    pub positions: View<'a>,
}

impl Rotary {
    /// Tables for `positions` positions, built in f64: pair `i` of a head turns by `position · inv_freq[i]`, and cos
    /// and sin are multiplied by `scale`. Halves are paired, as Llama and GPT-NeoX do.
    ///
    /// # Errors
    /// No kernel for it on the context's device, or out of memory.
    pub fn new(
        ctx: &Context,
        inv_freq: &[f64],
        scale: f64,
        positions: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<Self> {
        let table = rotary::Table::build(inv_freq, scale, positions);
        let shape = [positions, inv_freq.len()];
        let of = |values: &[f32]| ctx.tensor_tagged("rotary tables", values, &shape);
        let (cos, sin) = (of(&table.cos)?, of(&table.sin)?);
        let fixed = RotaryStatic {
            head_dim,
            rotary_dim: 2 * inv_freq.len(),
            style: Style::Half,
            x: dtype,
            out: dtype,
            in_place: true,
        };
        let plan = ctx.plan(fixed, &[RotaryDynamic { tokens: 1, heads: 1 }])?;
        Ok(Self { cos, sin, fixed, plan })
    }

    /// Dtype of what it turns.
    pub(super) fn dtype(&self) -> DType {
        self.fixed.x
    }

    /// The same embedding of keys that are written to a cache.
    pub(super) fn of_keys(&self) -> KeyRotary {
        KeyRotary { rotary_dim: self.fixed.rotary_dim, style: self.fixed.style }
    }

    /// Bytes of the tables for `positions` positions of which each has `pairs` pairs that turn.
    pub fn bytes(pairs: usize, positions: usize) -> usize {
        pairs.saturating_mul(positions).saturating_mul(2 * DType::F32.size())
    }

    /// Enqueues the turn of `x [tokens, heads, head_dim]` by `positions` i32 `[tokens]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or a position past the table.
    pub fn run_in_place(&self, ctx: &Context, x: ViewMut<'_>, positions: View<'_>) -> Result<()> {
        let call = RotaryDynamic { tokens: size(x.view(), 0), heads: size(x.view(), 1) };
        let (cos, sin) = (self.cos.view(), self.sin.view());
        let inputs = Placed::of([(POSITIONS, Some(positions)), (COS, Some(cos)), (SIN, Some(sin))]);
        self.plan.run(ctx, &call, &inputs, &[x])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
