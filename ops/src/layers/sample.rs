//! Tokens drawn from logits on the device that has them.

use sinew_kernels::sample::{Sample as Operator, SampleDynamic, SampleStatic};
use sinew_tensor::{View, ViewMut};

use super::{names, size};
use crate::{Context, Planned, Result};

/// A draw from each row of logits, planned. What is asked of each row is [`sinew_kernels::sample`]'s.
#[derive(Debug)]
pub struct Sample {
    plan: Planned<Operator>,
}

impl Sample {
    /// Plans draws from up to `max_rows` rows of `vocab` logits.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, vocab: usize, max_rows: usize) -> Result<Self> {
        let calls = [SampleDynamic { rows: 1 }, SampleDynamic { rows: max_rows }];
        Ok(Self { plan: ctx.plan(SampleStatic { vocab }, &calls)? })
    }

    /// Enqueues a draw from each row of `logits`, f32 `[rows, vocab]`, by `params`, f32 `[rows, 4]` (temperature,
    /// `top_p`, `min_p`, a draw from `[0, 1)`), and `top_k`, u32 `[rows]`, to `tokens`, u32 `[rows]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or logits of which none can be drawn.
    pub fn run(
        &self,
        ctx: &Context,
        logits: View<'_>,
        params: View<'_>,
        top_k: View<'_>,
        tokens: ViewMut<'_>,
    ) -> Result<()> {
        let call = SampleDynamic { rows: size(&top_k, 0) };
        self.plan.run(ctx, &call, &[Some(logits), Some(params), Some(top_k)], &[tokens])
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}
