//! A task: a unit of query rows over its keys, tile by tile.

use super::plan::{AttentionCall, Located, Scales, Scratch, SoftmaxState, Strided, TaskKind, Unit};
use super::products::{Ahead, Float, Products, TileProduct};
use crate::attention::{Compute, GROUP, MaskKind, TILE};
use crate::simd::math::{exp, exp2_nonpositive, tanh};
use crate::simd::{Kernel, LANES, Part, Simd};

/// What is known of a tile beside its packed keys and values.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// The position of its first key.
    start: usize,
    /// Whether all values, and their scales, are finite.
    finite: bool,
    /// Scales of keys and values that are codes.
    scales: Option<&'a Scales>,
    /// The rows to prefetch meanwhile.
    ahead: &'a Ahead<'a>,
}

/// Rows of a unit that one tile is multiplied with at once.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    rows: usize,
}

/// The shape of a block's scores.
#[derive(Clone, Copy)]
struct Scores {
    /// The position of the tile's first key.
    tile: usize,
    /// Whether every row sees every key, masks aside.
    whole: bool,
    /// `[rows, TILE]`.
    at: *mut f32,
    /// Vectors of a row that hold scores.
    vectors: usize,
}

impl Kernel for AttentionCall<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        // SAFETY: passed on; the call's plan is of this level's packing.
        unsafe { run_task::<Float<S>>(self, task, worker) }
    }
}

/// Runs a task: a unit of query rows, or a unit and a group of keys, or the merge of a unit's groups.
///
/// # Safety
/// Called with the instructions of `P` enabled, by one thread at a time per worker; the call's plan is of `P`'s packing,
/// and its contents were read.
#[inline(always)]
pub(super) unsafe fn run_task<P: Products>(call: &AttentionCall<'_>, task: usize, worker: usize) {
    let groups = if call.kind == TaskKind::Group { call.plan.split.unwrap_or(1) } else { 1 };
    // SAFETY: see above.
    unsafe {
        let unit = call.unit(task / groups);
        let scratch = call.workspace.scratch(&call.plan, worker);
        let (from, to) = call.keys_of(&unit);
        let (mut first, mut behind) = (from / GROUP, to.div_ceil(GROUP));
        if call.kind == TaskKind::Group {
            let group = task % groups;
            if !(first..behind).contains(&group) {
                return;
            }
            (first, behind) = (group, group + 1);
        } else {
            call.reset(&scratch.total, unit.rows);
        }
        if call.kind != TaskKind::Merge {
            let round = call.fixed.compute == Compute::Bf16;
            for r in 0..unit.rows {
                let (token, head) = call.token_and_head(&unit, r);
                let line = call.q.line([token, head, 0, 0], 2);
                let to = scratch.queries.cast::<P::E>().add(r * call.plan.depth);
                P::pack_query(line, call.fixed.head_dim, to, call.plan.depth, round);
            }
        }
        for group in first..behind {
            if call.kind != TaskKind::Merge {
                run_group::<P>(call, &unit, &scratch, group);
            }
            if call.kind == TaskKind::Group {
                return call.put_partials(&unit, &scratch.group, group);
            }
            P::S::part(MergeRows { call, unit: &unit, scratch: &scratch, group });
        }
        P::S::part(FinishRows { call, unit: &unit, total: &scratch.total });
    }
}

/// Computes one group of keys for a unit, into the scratch's group state.
#[inline(always)]
unsafe fn run_group<P: Products>(call: &AttentionCall<'_>, unit: &Unit, scratch: &Scratch, group: usize) {
    let (from, to) = call.keys_of(unit);
    let (from, to) = (from.max(group * GROUP), to.min((group + 1) * GROUP));
    // SAFETY: passed on; the keys are visible to a row of the unit, so `read` has checked where they lie.
    unsafe {
        call.reset(&scratch.group, unit.rows);
        let mut parts = call.tile_parts(unit, from, to);
        let (mut one, mut other) = (Located::NONE, Located::NONE);
        let (mut at, mut later) = (&mut one, &mut other);
        let mut here = parts.next();
        if let Some(part) = &here {
            part.source.locate(unit, part, at);
            Ahead::new(Some(at), 1).now();
        }
        while let Some(part) = here {
            // Blocks of a cache lie anywhere: the next part is prefetched while this one is multiplied.
            let next = parts.next();
            if let Some(part) = &next {
                part.source.locate(unit, part, later);
            }
            P::pack_keys(&part.source.keys(at), scratch.keys.cast(), call.plan.depth);
            let finite = P::pack_values(&part.source.values(at), scratch.values.cast(), call.plan.width);
            let scales = part.source.scales(unit, &part);
            let (first, behind) = part.rows;
            let most = P::PACKING.block_rows;
            let blocks = (behind - first).min(most).div_ceil(P::ROWS);
            let steps = call.fixed.head_dim.div_ceil(P::PAIR) + TILE / P::PAIR;
            let tile = Tile {
                start: part.tile,
                finite: finite && scales.as_ref().is_none_or(Scales::has_finite_values),
                scales: scales.as_ref(),
                ahead: &Ahead::new(next.as_ref().map(|_| &*later), blocks * steps),
            };
            let mut row = first;
            while row < behind {
                // Full blocks, and the last two alike.
                let left = behind - row;
                let rows = if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) };
                run_block::<P>(call, unit, scratch, tile, Block { first: row, rows });
                row += rows;
            }
            (at, later) = (later, at);
            here = next;
        }
    }
}

/// One tile for a block of rows: scores, weights, and the weighted sum of values.
#[inline(always)]
unsafe fn run_block<P: Products>(
    call: &AttentionCall<'_>,
    unit: &Unit,
    scratch: &Scratch,
    tile: Tile<'_>,
    block: Block,
) {
    let Block { first: row, rows } = block;
    // Neither end of the visible range falls from row to row: the first row's start and the last row's end hold for the
    // block.
    let (first, last) = (call.keys_of_row(unit, row), call.keys_of_row(unit, row + rows - 1));
    if first.0 >= tile.start + TILE || last.1 <= tile.start {
        return;
    }
    let end = (last.1 - tile.start).min(TILE);
    let vectors = end.div_ceil(LANES);
    let whole = last.0 <= tile.start && first.1 >= tile.start + TILE;
    let plan = &call.plan;
    let weights = scratch.weights.cast::<P::E>();
    // The largest score of each row; by lanes, as everything of the rows' states.
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut scale = [0.0f32; LANES];
    // SAFETY: rows are of the unit, vectors of the tile; scratch has room for both.
    unsafe {
        P::multiply(&TileProduct {
            rows,
            a: scratch.queries.cast::<P::E>().add(row * plan.depth),
            lda: plan.depth,
            b: scratch.keys.cast(),
            ldb: TILE,
            steps: call.fixed.head_dim.div_ceil(P::PAIR),
            c: scratch.scores,
            ldc: TILE,
            vectors,
            scale: std::ptr::null(),
            ahead: tile.ahead,
        });
        let scores = Scores { tile: tile.start, whole, at: scratch.scores, vectors };
        P::S::part(FinishScores { call, unit, block, scores, scales: tile.scales, max: &mut max });
        let factor = call.powers_per_score();
        let state = scratch.group.max.add(row);
        let (before, now) = (P::S::load_n(state, rows), P::S::load(max.as_ptr()));
        let now = P::S::select_lt(before, now, now, before);
        P::S::store_n(state, now, rows);
        // Where no key was seen yet, any finite value will do: all weights are 2^-inf.
        let now = P::S::select_lt(now, P::S::splat(f32::MIN), P::S::splat(0.0), now);
        P::S::store(max.as_mut_ptr(), now);
        let powers = P::S::mul(P::S::sub(before, now), P::S::splat(factor));
        P::S::store(scale.as_mut_ptr(), exp2_nonpositive::<P::S>(powers));
        let round = call.fixed.compute == Compute::Bf16;
        for r in 0..rows {
            let (from, to) = (scratch.scores.add(r * TILE), weights.add(r * TILE));
            let new = put_weights::<P>(tile, from, to, factor, max[r], vectors, round);
            let sum = scratch.group.sum.add((row + r) * LANES);
            let old = P::S::mul(P::S::load(sum), P::S::splat(scale[r]));
            P::S::store(sum, P::S::add(old, new));
        }
        let weighing = TileProduct {
            rows,
            a: weights.cast_const(),
            lda: TILE,
            b: scratch.values.cast::<P::E>().cast_const(),
            ldb: plan.width,
            steps: end.div_ceil(P::PAIR),
            c: scratch.group.acc.add(row * plan.width),
            ldc: plan.width,
            vectors: plan.width / LANES,
            scale: scale.as_ptr(),
            ahead: tile.ahead,
        };
        match tile.finite {
            true => P::multiply(&weighing),
            false => weighing.multiply_present::<P>(),
        }
    }
}

/// Packs the weights `2^(factor · (score − max))` of one row's first `vectors` vectors of scores, times the values'
/// scales. Returns the weights' sum by lanes.
#[inline(always)]
unsafe fn put_weights<P: Products>(
    tile: Tile<'_>,
    scores: *const f32,
    to: *mut P::E,
    factor: f32,
    max: f32,
    vectors: usize,
    round: bool,
) -> <P::S as Simd>::F {
    // SAFETY: `scores` and `to` have `vectors` vectors.
    unsafe {
        let (factor, max) = (P::S::splat(factor), P::S::splat(max));
        let mut weights = [P::S::splat(0.0); TILE / LANES];
        let mut v = 0;
        while v < vectors {
            let power = P::S::mul(P::S::sub(P::S::load(scores.add(v * LANES)), max), factor);
            let weight = exp2_nonpositive::<P::S>(power);
            weights[v] = weight;
            let mut scaled = weight;
            if let Some(scales) = tile.scales {
                scaled = P::S::mul(weight, P::S::load(scales.values.as_ptr().add(v * LANES)));
                if !tile.finite {
                    // A weight of 0 stays 0, whatever the scale of a key that is not seen.
                    scaled = P::S::select_lt(P::S::splat(0.0), weight, scaled, weight);
                }
            }
            P::pack_weights(scaled, to.add(v * LANES), round);
            v += 1;
        }
        P::S::add(P::S::add(weights[0], weights[1]), P::S::add(weights[2], weights[3]))
    }
}

impl AttentionCall<'_> {
    /// Whether a block's scores stay as products gave them until they become weights. Before that keys are only hidden,
    /// and the largest score is that of the largest product.
    fn raw_scores(&self) -> bool {
        let additive = matches!(self.fixed.mask, Some(MaskKind::Additive(_)));
        self.fixed.softcap.is_none() && !additive && self.fixed.scale.get() > 0.0
    }

    /// The factor that makes stored scores those of the operator.
    fn scale_of_scores(&self) -> f64 {
        if self.raw_scores() { f64::from(self.fixed.scale.get()) } else { 1.0 }
    }

    /// The factor that makes differences of scores exponents of two. It applies to differences, since a score may be the
    /// least finite number: masks have it for keys that are not to be seen.
    fn powers_per_score(&self) -> f32 {
        (self.scale_of_scores() * std::f64::consts::LOG2_E) as f32
    }

    /// A row's partial result of a group.
    fn partial(&self, unit: &Unit, row: usize, group: usize) -> SoftmaxState {
        let (token, head) = self.token_and_head(unit, row);
        let groups = self.plan.split.unwrap_or(1);
        let index = (token * self.fixed.num_heads + head) * groups + group;
        let at = self.workspace.partials.wrapping_add(index * self.plan.partial_len());
        SoftmaxState { max: at, sum: at.wrapping_add(LANES), acc: at.wrapping_add(2 * LANES) }
    }

    unsafe fn put_partials(&self, unit: &Unit, state: &SoftmaxState, group: usize) {
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
}

/// Makes products scores: multiplies them by the keys' scales, scales, softens and masks them. Writes the largest score
/// of each row (NaNs aside) to `max`.
///
/// `scores` are those of the block's rows.
struct FinishScores<'a> {
    call: &'a AttentionCall<'a>,
    unit: &'a Unit,
    block: Block,
    scores: Scores,
    scales: Option<&'a Scales>,
    max: &'a mut [f32; LANES],
}

impl Part for FinishScores<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { call, unit, block, scores, scales, max } = self;
        let Scores { tile, whole, vectors, .. } = scores;
        let raw = call.raw_scores();
        let plain = whole && raw && call.fixed.mask.is_none();
        // SAFETY: `scores` has the block's rows of `vectors` vectors.
        unsafe {
            let hidden = S::splat(f32::NEG_INFINITY);
            let lanes = S::load(NUMBERS.as_ptr());
            for (r, max) in max.iter_mut().enumerate().take(block.rows) {
                let row_scores = scores.at.add(r * TILE);
                if let Some(scales) = scales {
                    for at in (0..vectors * LANES).step_by(LANES) {
                        let to = row_scores.add(at);
                        S::store(to, S::mul(S::load(to), S::load(scales.keys.as_ptr().add(at))));
                    }
                }
                let mut highest = hidden;
                if plain {
                    for at in (0..TILE).step_by(LANES) {
                        highest = S::max(S::load(row_scores.add(at)), highest);
                    }
                    *max = S::reduce_max(highest);
                    continue;
                }
                let (from, to) = if whole { (0, tile + TILE) } else { call.keys_of_row(unit, block.first + r) };
                let mut mask = [0.0f32; TILE];
                if let Some(operand) = &call.mask {
                    let n = to.saturating_sub(tile).min(TILE);
                    read_mask::<S>(call, operand, unit, block.first + r, tile, n, &mut mask);
                }
                for at in (0..vectors * LANES).step_by(LANES) {
                    let mut s = S::load(row_scores.add(at));
                    if !raw {
                        s = S::mul(s, S::splat(call.fixed.scale.get()));
                    }
                    if let Some(cap) = call.fixed.softcap {
                        let cap = S::splat(cap.get());
                        s = S::mul(cap, tanh::<S>(S::div(s, cap)));
                    }
                    match call.fixed.mask {
                        // A sum, so that NaN scores stay as they do in PyTorch.
                        Some(MaskKind::Additive(_)) => s = S::add(s, S::load(mask.as_ptr().add(at))),
                        Some(MaskKind::Boolean) => {
                            let allowed = S::load(mask.as_ptr().add(at));
                            s = S::select_lt(allowed, S::splat(0.5), hidden, s);
                        }
                        None => {}
                    }
                    if !whole {
                        // Distances of one vector's worth are exact in f32, and of larger ones only the sign counts.
                        let here = (tile + at) as isize;
                        s = S::select_lt(lanes, S::splat((to as isize - here) as f32), s, hidden);
                        s = S::select_lt(lanes, S::splat((from as isize - here) as f32), hidden, s);
                    }
                    S::store(row_scores.add(at), s);
                    highest = S::max(s, highest);
                }
                *max = S::reduce_max(highest);
            }
        }
    }
}

/// The number of each lane.
const NUMBERS: [f32; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Reads the first `n` entries of a row's mask in a tile: numbers, or 1 and 0. The others stay as they are.
#[inline(always)]
unsafe fn read_mask<S: Simd>(
    call: &AttentionCall<'_>,
    mask: &Strided,
    unit: &Unit,
    row: usize,
    tile: usize,
    n: usize,
    to: &mut [f32; TILE],
) {
    if n == 0 {
        return;
    }
    let (token, head) = call.token_and_head(unit, row);
    // SAFETY: heads and tokens are the operand's; keys below `kv_len` are, by `read`.
    unsafe {
        let line = mask.line([head, token, tile, 0], 2);
        if call.fixed.mask == Some(MaskKind::Boolean) {
            for (j, to) in to[..n].iter_mut().enumerate() {
                *to = if line.skip(j).ptr().read() != 0 { 1.0 } else { 0.0 };
            }
        } else {
            line.widen::<S>(n, to.as_mut_ptr());
        }
    }
}

/// Merges a group behind the total of a unit's rows: the group's state, or its partial results where a unit was divided.
///
/// The group was computed.
struct MergeRows<'a> {
    call: &'a AttentionCall<'a>,
    unit: &'a Unit,
    scratch: &'a Scratch,
    group: usize,
}

impl Part for MergeRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { call, unit, scratch, group } = self;
        let width = call.plan.width;
        for r in 0..unit.rows {
            // SAFETY: both states have these rows.
            unsafe {
                let to = scratch.total.row(r, width);
                let from = match call.kind {
                    TaskKind::Merge => call.partial(unit, r, group),
                    _ => scratch.group.row(r, width),
                };
                let (before, new) = (*to.max, *from.max);
                let now = if new > before { new } else { before };
                let finite = if now == f32::NEG_INFINITY { 0.0 } else { now };
                let mut scale = [0.0f32; LANES];
                scale[0] = before - finite;
                scale[1] = new - finite;
                let powers = S::mul(S::load(scale.as_ptr()), S::splat(call.powers_per_score()));
                S::store(scale.as_mut_ptr(), exp2_nonpositive::<S>(powers));
                *to.max = now;
                let (old, new) = (S::splat(scale[0]), S::splat(scale[1]));
                S::store(to.sum, S::fma(S::load(from.sum), new, S::mul(S::load(to.sum), old)));
                for at in (0..width).step_by(LANES) {
                    let (to, from) = (to.acc.add(at), from.acc.add(at));
                    S::store(to, S::fma(S::load(from), new, S::mul(S::load(to), old)));
                }
            }
        }
    }
}

/// Divides by the sums and writes the unit's rows.
///
/// All groups were merged into the total.
struct FinishRows<'a> {
    call: &'a AttentionCall<'a>,
    unit: &'a Unit,
    total: &'a SoftmaxState,
}

impl Part for FinishRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { call, unit, total } = self;
        for r in 0..unit.rows {
            let (token, head) = call.token_and_head(unit, r);
            // SAFETY: token and head are inside the operand, and the row is this task's alone.
            unsafe {
                let total = total.row(r, call.plan.width);
                let sum = S::reduce_add(S::load(total.sum));
                let of_sink = match call.sink(head) {
                    Some(sink) => weight_of_sink::<S>(call, sink, *total.max),
                    None => 0.0,
                };
                let divisor = S::splat(sum + of_sink);
                let (line, n) = (call.o.line([token, head, 0, 0], 2), call.fixed.head_dim);
                for at in (0..n).step_by(LANES) {
                    let v = S::load(total.acc.add(at));
                    // No key seen: zeros. The sum with 0 makes zeros positive, whichever products they came from.
                    let v = if sum == 0.0 { S::splat(0.0) } else { S::div(v, divisor) };
                    line.skip(at).store::<S>(S::add(v, S::splat(0.0)), (n - at).min(LANES));
                }
            }
        }
    }
}

/// What a sink adds to the sum of a row whose largest score is `max`: `e^(sink - max)`.
#[inline(always)]
unsafe fn weight_of_sink<S: Simd>(call: &AttentionCall<'_>, sink: f32, max: f32) -> f32 {
    // Both may be far larger than their difference, or than f32 holds.
    let below = f64::from(sink) - call.scale_of_scores() * f64::from(max);
    let mut weight = [0.0f32; LANES];
    // SAFETY: passed on.
    unsafe { S::store(weight.as_mut_ptr(), exp::<S>(S::splat(below as f32))) };
    weight[0]
}
