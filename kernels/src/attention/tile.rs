//! One tile of keys for a block of query rows.

use super::accumulate::Chains;
use super::ahead::Ahead;
use super::body::Way;
use super::operand::Strided;
use super::plan::Scratch;
use super::products::{Products, Shape};
use super::sequence::Unit;
use super::source::Scales;
use super::{Compute, MaskKind, TILE};
use crate::simd::math::{exp2_nonpositive, tanh};
use crate::simd::{LANES, Simd};

/// What is known of a tile beside its packed keys and values.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// The position of its first key.
    pub start: usize,
    /// Whether all values are finite.
    pub finite: bool,
    /// Of keys and values that are codes.
    pub scales: Option<&'a Scales>,
    /// What is asked for meanwhile.
    pub ahead: &'a Ahead<'a>,
}

impl<P: Products> Way<'_, P> {
    /// One tile for a block of rows: scores, weights, and the weighted sum of values.
    #[inline(always)]
    pub(super) unsafe fn block(&self, unit: &Unit, scratch: &Scratch<P::E>, of: Tile<'_>, row: usize, rows: usize) {
        let tile = of.start;
        // Neither end of the visible range falls from row to row: the first row's start and the last row's end hold
        // for the block.
        let (first, last) = (self.keys_of_row(unit, row), self.keys_of_row(unit, row + rows - 1));
        if first.0 >= tile + TILE || last.1 <= tile {
            return;
        }
        let end = (last.1 - tile).min(TILE);
        let vectors = end.div_ceil(LANES);
        let whole = last.0 <= tile && first.1 >= tile + TILE;
        let plain = whole && self.raw_scores() && self.fixed.mask.is_none();
        let plan = &self.plan;
        let (head_dim, ahead) = (self.fixed.head_dim, of.ahead);
        let shape = |rows| Shape { rows, head_dim, depth: plan.depth, width: plan.width, ahead };
        // The largest score of each row; by lanes, as everything of the rows' states.
        let mut max = [f32::NEG_INFINITY; LANES];
        let mut scale = [0.0f32; LANES];
        // SAFETY: rows are of the unit, vectors of the tile; scratch has room for both.
        unsafe {
            for (at, rows) in parts(rows, P::ROWS) {
                let queries = scratch.queries.add((row + at) * plan.depth);
                P::scores(shape(rows), queries, scratch.keys, scratch.scores.add(at * TILE), vectors);
            }
            if let Some(scales) = of.scales {
                for r in 0..rows {
                    multiply::<P::S>(scratch.scores.add(r * TILE), &scales.keys, vectors);
                }
            }
            for (r, max) in max.iter_mut().enumerate().take(rows) {
                let scores = scratch.scores.add(r * TILE);
                *max = match plain {
                    true => highest::<P::S>(scores),
                    false => {
                        let visible = if whole { None } else { Some(self.keys_of_row(unit, row + r)) };
                        self.finish_scores(unit, row + r, tile, visible, scores, vectors)
                    }
                };
            }
            let factor = self.powers_per_score();
            let state = scratch.group.max.add(row);
            let (before, now) = (P::S::load_n(state, rows), P::S::load(max.as_ptr()));
            let now = P::S::select_lt(before, now, now, before);
            P::S::store_n(state, now, rows);
            // Where no key was seen yet, any finite value will do: all weights are 2^-inf.
            let now = P::S::select_lt(now, P::S::splat(f32::MIN), P::S::splat(0.0), now);
            P::S::store(max.as_mut_ptr(), now);
            let powers = P::S::mul(P::S::sub(before, now), P::S::splat(factor));
            P::S::store(scale.as_mut_ptr(), exp2_nonpositive::<P::S>(powers));
            for r in 0..rows {
                let (scores, weights) = (scratch.scores.add(r * TILE), scratch.weights.add(r * TILE));
                let new = match vectors == TILE / LANES {
                    true => self.weights(of, scores, weights, factor, max[r], TILE / LANES),
                    false => self.weights(of, scores, weights, factor, max[r], vectors),
                };
                let sum = scratch.group.sum.add((row + r) * LANES);
                let old = P::S::mul(P::S::load(sum), P::S::splat(scale[r]));
                P::S::store(sum, P::S::add(old, new));
            }
            let keys = end.next_multiple_of(P::PAIR);
            for (at, rows) in parts(rows, P::ROWS) {
                let (weights, acc) = (scratch.weights.add(at * TILE), scratch.group.acc.add((row + at) * plan.width));
                let (shape, values, scale) = (shape(rows), scratch.values, scale.as_ptr().add(at));
                match of.finite {
                    true => P::weigh(shape, weights, values, acc, scale, keys),
                    false => P::weigh_present(shape, weights, values, acc, scale, keys),
                }
            }
        }
    }

    /// Whether a block's scores stay as products gave them until they become weights: then all that is done to them
    /// before is to hide keys, and the largest is that of the largest product.
    #[inline(always)]
    fn raw_scores(&self) -> bool {
        let additive = matches!(self.fixed.mask, Some(MaskKind::Additive(_)));
        self.fixed.softcap.is_none() && !additive && self.fixed.scale.get() > 0.0
    }

    /// What scores that are kept are multiplied by to be those of the operator.
    #[inline(always)]
    pub(super) fn scale_of_scores(&self) -> f64 {
        if self.raw_scores() { f64::from(self.fixed.scale.get()) } else { 1.0 }
    }

    /// What differences of scores are multiplied by to be exponents of two. Of differences, since a score may be the
    /// least finite number: masks have it for keys that are not to be seen.
    #[inline(always)]
    pub(super) fn powers_per_score(&self) -> f32 {
        (self.scale_of_scores() * std::f64::consts::LOG2_E) as f32
    }

    /// The weights `2^(factor · (score − max))` of one row's first `vectors` vectors of scores, times the values' scales,
    /// packed; returns the weights' sum by lanes.
    #[inline(always)]
    unsafe fn weights(
        &self,
        of: Tile<'_>,
        scores: *const f32,
        to: *mut P::E,
        factor: f32,
        max: f32,
        vectors: usize,
    ) -> SimdOf<P> {
        let round = self.fixed.compute == Compute::Bf16;
        // SAFETY: `scores` and `to` have `vectors` vectors.
        unsafe {
            let (factor, max) = (P::S::splat(factor), P::S::splat(max));
            let mut p = [P::S::splat(0.0); TILE / LANES];
            for (v, p) in p.iter_mut().enumerate().take(vectors) {
                let power = P::S::mul(P::S::sub(P::S::load(scores.add(v * LANES)), max), factor);
                *p = exp2_nonpositive::<P::S>(power);
                let mut scaled = *p;
                if let Some(scales) = of.scales {
                    scaled = P::S::mul(*p, P::S::load(scales.values.as_ptr().add(v * LANES)));
                    if !of.finite {
                        // A weight of 0 stays 0, whatever the scale of a key that is not seen.
                        scaled = P::S::select_lt(P::S::splat(0.0), *p, scaled, *p);
                    }
                }
                P::pack_weights(scaled, to.add(v * LANES), round);
            }
            P::S::add(P::S::add(p[0], p[1]), P::S::add(p[2], p[3]))
        }
    }

    /// Masks one row's scores of a tile in place, scales and softens them first unless they stay raw, and returns the
    /// largest (NaNs aside).
    #[inline(always)]
    unsafe fn finish_scores(
        &self,
        unit: &Unit,
        row: usize,
        tile: usize,
        visible: Option<(usize, usize)>,
        scores: *mut f32,
        vectors: usize,
    ) -> f32 {
        // SAFETY: `scores` has `vectors` vectors.
        unsafe {
            let hidden = P::S::splat(f32::NEG_INFINITY);
            let scale = if self.raw_scores() { None } else { Some(P::S::splat(self.fixed.scale.get())) };
            let mut mask = [0.0f32; TILE];
            if let Some(operand) = &self.mask {
                let end = visible.map_or(tile + TILE, |v| v.1);
                self.read_mask(operand, unit, row, tile, end.saturating_sub(tile).min(TILE), &mut mask);
            }
            let lanes: [f32; LANES] = std::array::from_fn(|i| i as f32);
            let lanes = P::S::load(lanes.as_ptr());
            let mut highest = hidden;
            for v in 0..vectors {
                let at = scores.add(v * LANES);
                let mut s = P::S::load(at);
                if let Some(scale) = scale {
                    s = P::S::mul(s, scale);
                }
                if let Some(cap) = self.fixed.softcap {
                    let cap = P::S::splat(cap.get());
                    s = P::S::mul(cap, tanh::<P::S>(P::S::div(s, cap)));
                }
                match self.fixed.mask {
                    // A sum, so that NaN scores stay as they do in PyTorch.
                    Some(MaskKind::Additive(_)) => s = P::S::add(s, P::S::load(mask.as_ptr().add(v * LANES))),
                    Some(MaskKind::Boolean) => {
                        let allowed = P::S::load(mask.as_ptr().add(v * LANES));
                        s = P::S::select_lt(allowed, P::S::splat(0.5), hidden, s);
                    }
                    None => {}
                }
                if let Some((from, to)) = visible {
                    // Distances of one vector's worth are exact in f32, and of larger ones only the sign counts.
                    let here = (tile + v * LANES) as isize;
                    s = P::S::select_lt(lanes, P::S::splat((to as isize - here) as f32), s, hidden);
                    s = P::S::select_lt(lanes, P::S::splat((from as isize - here) as f32), hidden, s);
                }
                P::S::store(at, s);
                highest = P::S::max(s, highest);
            }
            P::S::reduce_max(highest)
        }
    }

    /// The first `n` entries of a row's mask in a tile: numbers, or 1 and 0. The others stay as they are.
    #[inline(always)]
    unsafe fn read_mask(&self, mask: &Strided, unit: &Unit, row: usize, tile: usize, n: usize, to: &mut [f32; TILE]) {
        if n == 0 {
            return;
        }
        let (token, head) = self.token_and_head(unit, row);
        // SAFETY: heads and tokens are the operand's; keys below `kv_len` are, by `read`.
        unsafe {
            let line = mask.line([head, token, tile, 0], 2);
            if self.fixed.mask == Some(MaskKind::Boolean) {
                for (j, to) in to.iter_mut().enumerate().take(n) {
                    *to = if line.skip(j).ptr().read() != 0 { 1.0 } else { 0.0 };
                }
            } else {
                line.widen::<P::S>(n, to.as_mut_ptr());
            }
        }
    }
}

/// The lanes of a way.
type SimdOf<P> = <<P as Chains>::S as Simd>::F;

/// Multiplies the first `vectors` vectors of a tile's row with as many factors, in place.
#[inline(always)]
unsafe fn multiply<S: Simd>(scores: *mut f32, factors: &[f32; TILE], vectors: usize) {
    for at in (0..vectors * LANES).step_by(LANES) {
        // SAFETY: the caller's row has the vectors, and a tile has as many factors.
        unsafe { S::store(scores.add(at), S::mul(S::load(scores.add(at)), S::load(factors.as_ptr().add(at)))) };
    }
}

/// The largest score of a tile's row (NaNs aside).
#[inline(always)]
unsafe fn highest<S: Simd>(scores: *const f32) -> f32 {
    // SAFETY: the caller's row has a tile's vectors.
    unsafe {
        let mut highest = S::splat(f32::NEG_INFINITY);
        for v in 0..TILE / LANES {
            highest = S::max(S::load(scores.add(v * LANES)), highest);
        }
        S::reduce_max(highest)
    }
}

/// `rows` rows in parts of `most`, as first row and number: full parts, and the last two alike.
#[inline(always)]
pub(super) fn parts(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = rows - first;
        let part = if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) };
        first += part;
        (part > 0).then_some((first - part, part))
    })
}
