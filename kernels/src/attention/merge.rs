//! Groups of keys merged in order, and the end of a row.

use super::body::Way;
use super::plan::{Scratch, State};
use super::products::Products;
use super::sequence::Unit;
use crate::simd::math::{exp, exp2_nonpositive};
use crate::simd::{LANES, Simd};

/// `to = to · old + from · new` for sixteen values.
///
/// # Safety
/// Those of [`Simd`].
#[inline(always)]
unsafe fn merge<S: Simd>(to: *mut f32, old: S::F, from: *const f32, new: S::F) {
    // SAFETY: passed on.
    unsafe { S::store(to, S::fma(S::load(from), new, S::mul(S::load(to), old))) }
}

impl<P: Products> Way<'_, P> {
    /// Merges row `r` of a group's state behind row `t` of the total.
    #[inline(always)]
    pub(super) unsafe fn merge_row(&self, total: &State, t: usize, group: &State, r: usize) {
        // SAFETY: both states have these rows.
        unsafe {
            let (before, new) = (*total.max.add(t), *group.max.add(r));
            let now = if new > before { new } else { before };
            let finite = if now == f32::NEG_INFINITY { 0.0 } else { now };
            let mut scale = [0.0f32; LANES];
            scale[0] = before - finite;
            scale[1] = new - finite;
            let powers = P::S::mul(P::S::load(scale.as_ptr()), P::S::splat(self.powers_per_score()));
            let factors = exp2_nonpositive::<P::S>(powers);
            P::S::store(scale.as_mut_ptr(), factors);
            *total.max.add(t) = now;
            let (old, new) = (P::S::splat(scale[0]), P::S::splat(scale[1]));
            merge::<P::S>(total.sum.add(t * LANES), old, group.sum.add(r * LANES), new);
            let (to, from) = (total.acc.add(t * self.plan.width), group.acc.add(r * self.plan.width));
            for at in (0..self.plan.width).step_by(LANES) {
                merge::<P::S>(to.add(at), old, from.add(at), new);
            }
        }
    }

    /// A row's partial result of a group.
    #[inline(always)]
    pub(super) fn partial(&self, unit: &Unit, row: usize, group: usize) -> State {
        let (token, head) = self.token_and_head(unit, row);
        let groups = self.plan.split.unwrap_or(1);
        let index = (token * self.fixed.num_heads + head) * groups + group;
        let at = self.workspace.partials.wrapping_add(index * self.plan.partial_len());
        State { max: at, sum: at.wrapping_add(LANES), acc: at.wrapping_add(2 * LANES) }
    }

    #[inline(always)]
    pub(super) unsafe fn put_partials(&self, unit: &Unit, state: &State, group: usize) {
        for r in 0..unit.rows {
            let to = self.partial(unit, r, group);
            // SAFETY: the workspace has a place for each row and group.
            unsafe {
                to.max.write(*state.max.add(r));
                std::ptr::copy_nonoverlapping(state.sum.add(r * LANES), to.sum, LANES);
                std::ptr::copy_nonoverlapping(state.acc.add(r * self.plan.width), to.acc, self.plan.width);
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn merge(&self, unit: &Unit, scratch: &Scratch<P::E>, first: usize, behind: usize) {
        // SAFETY: the tasks of the step before have written the partial results of these groups.
        unsafe {
            self.reset(&scratch.total, unit.rows);
            for r in 0..unit.rows {
                for group in first..behind {
                    self.merge_row(&scratch.total, r, &self.partial(unit, r, group), 0);
                }
            }
            self.finish(unit, &scratch.total);
        }
    }

    /// What a sink adds to the sum of a row whose largest score is `max`: `e^(sink - max)`.
    #[inline(always)]
    unsafe fn weight_of_sink(&self, sink: f32, max: f32) -> f32 {
        // Both may be far larger than their difference, or than f32 holds.
        let below = f64::from(sink) - self.scale_of_scores() * f64::from(max);
        let mut weight = [0.0f32; LANES];
        // SAFETY: passed on.
        unsafe { P::S::store(weight.as_mut_ptr(), exp::<P::S>(P::S::splat(below as f32))) };
        weight[0]
    }

    /// Divides by the sums and writes the unit's rows.
    #[inline(always)]
    pub(super) unsafe fn finish(&self, unit: &Unit, total: &State) {
        for r in 0..unit.rows {
            let (token, head) = self.token_and_head(unit, r);
            // SAFETY: token and head are inside the operand, and the row is this task's alone.
            unsafe {
                let sum = P::S::reduce_add(P::S::load(total.sum.add(r * LANES)));
                let of_sink = match self.sink(head) {
                    Some(sink) => self.weight_of_sink(sink, *total.max.add(r)),
                    None => 0.0,
                };
                let divisor = P::S::splat(sum + of_sink);
                let acc = total.acc.add(r * self.plan.width);
                for at in (0..self.plan.width).step_by(LANES) {
                    // No key seen: zeros. The sum with 0 makes zeros positive, whichever products they came from.
                    let v = if sum == 0.0 { P::S::splat(0.0) } else { P::S::div(P::S::load(acc.add(at)), divisor) };
                    P::S::store(acc.add(at), P::S::add(v, P::S::splat(0.0)));
                }
                self.o.line([token, head, 0, 0], 2).store_block::<P::S>(self.fixed.head_dim, acc);
            }
        }
    }
}
