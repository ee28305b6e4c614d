//! One tile of keys for a block of query rows.

use super::body::{Unit, Way};
use super::operand::Strided;
use super::plan::Scratch;
use super::products::{Products, Shape};
use super::{Compute, MaskKind, TILE};
use crate::simd::math::{exp_nonpositive, tanh};
use crate::simd::{LANES, Simd};

impl<P: Products> Way<'_, P> {
    /// One tile for a block of rows: scores, weights, and the weighted sum of values.
    #[inline(always)]
    pub(super) unsafe fn block(
        &self,
        unit: &Unit,
        scratch: &Scratch<P::E>,
        tile: usize,
        row: usize,
        rows: usize,
        finite: bool,
    ) {
        // Neither end of the visible range falls from row to row: the first row's start and the last row's end hold
        // for the block.
        let (first, last) = (self.keys_of_row(unit, row), self.keys_of_row(unit, row + rows - 1));
        if first.0 >= tile + TILE || last.1 <= tile {
            return;
        }
        let end = (last.1 - tile).min(TILE);
        let vectors = end.div_ceil(LANES);
        let whole = last.0 <= tile && first.1 >= tile + TILE;
        let plain = whole && self.fixed.softcap.is_none() && self.fixed.mask.is_none();
        let plan = &self.plan;
        let shape = Shape { rows, head_dim: self.fixed.head_dim, depth: plan.depth, width: plan.width };
        // Lanes 0 to `rows`: what the state so far is multiplied by.
        let mut scale = [0.0f32; LANES];
        let mut max = [0.0f32; LANES];
        // SAFETY: rows are of the unit, vectors of the tile; scratch has room for both.
        unsafe {
            P::scores(shape, scratch.queries.add(row * plan.depth), scratch.keys, scratch.scores, vectors);
            for r in 0..rows {
                let scores = scratch.scores.add(r * TILE);
                let highest = if plain {
                    self.scale_scores(scores)
                } else {
                    let visible = if whole { None } else { Some(self.keys_of_row(unit, row + r)) };
                    self.finish_scores(unit, row + r, tile, visible, scores, vectors)
                };
                let before = scratch.group.max.add(row + r);
                let now = if highest > *before { highest } else { *before };
                // Where no key was seen yet, any finite value will do: all weights are e^-inf.
                max[r] = if now == f32::NEG_INFINITY { 0.0 } else { now };
                scale[r] = *before - max[r];
                *before = now;
            }
            let factors = exp_nonpositive::<P::S>(P::S::load(scale.as_ptr()));
            P::S::store(scale.as_mut_ptr(), factors);
            let round = self.fixed.compute == Compute::Bf16;
            for r in 0..rows {
                let (scores, weights) = (scratch.scores.add(r * TILE), scratch.weights.add(r * TILE));
                let highest = P::S::splat(max[r]);
                let mut p = [P::S::splat(0.0); TILE / LANES];
                for (v, p) in p.iter_mut().enumerate().take(vectors) {
                    *p = exp_nonpositive::<P::S>(P::S::sub(P::S::load(scores.add(v * LANES)), highest));
                    P::pack_weights(*p, weights.add(v * LANES), round);
                }
                let sum = scratch.group.sum.add((row + r) * LANES);
                let new = P::S::add(P::S::add(p[0], p[1]), P::S::add(p[2], p[3]));
                let old = P::S::mul(P::S::load(sum), P::S::splat(scale[r]));
                P::S::store(sum, P::S::add(old, new));
            }
            let acc = scratch.group.acc.add(row * plan.width);
            let (weights, values) = (scratch.weights, scratch.values);
            let keys = end.next_multiple_of(P::PAIR);
            if finite {
                P::weigh(shape, weights, values, acc, scale.as_ptr(), keys);
            } else {
                P::weigh_present(shape, weights, values, acc, scale.as_ptr(), keys);
            }
        }
    }

    /// Scales one row's scores of a tile in place, where that is all, and returns the largest (NaNs aside).
    #[inline(always)]
    unsafe fn scale_scores(&self, scores: *mut f32) -> f32 {
        // SAFETY: `scores` has a tile's vectors.
        unsafe {
            let scale = P::S::splat(self.fixed.scale.get());
            let mut highest = P::S::splat(f32::NEG_INFINITY);
            for v in 0..TILE / LANES {
                let s = P::S::mul(P::S::load(scores.add(v * LANES)), scale);
                P::S::store(scores.add(v * LANES), s);
                highest = P::S::max(s, highest);
            }
            P::S::reduce_max(highest)
        }
    }

    /// Scales, softens and masks one row's scores of a tile in place, and returns the largest (NaNs aside).
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
            let scale = P::S::splat(self.fixed.scale.get());
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
                let mut s = P::S::mul(P::S::load(at), scale);
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

/// Rows of the next block, of `left`: full blocks, and the last two alike.
#[inline(always)]
pub(super) fn block_rows(left: usize, most: usize) -> usize {
    if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) }
}
