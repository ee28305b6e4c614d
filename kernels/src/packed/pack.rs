//! Outputs into panels of floats, in registers.

use half::{bf16, f16};
use sinew_tensor::DType;

use super::pack_blocks::pack_blocks;
use super::panel::{PANEL, PanelKind};
use super::rows::{Row, Weights};
use crate::line::Line;
use crate::simd::{Kernel, LANES, Reach, Simd, Stored, prefetch};

/// The first of sixteen consecutive outputs and how many there are, if they lie side by side: then a step is one load.
#[inline(always)]
fn side_by_side(lines: &[Option<Line>], k: usize) -> Option<(Line, usize)> {
    let first = lines[0]?;
    let valid = lines.iter().take_while(|line| line.is_some()).count();
    let fits = lines[valid..].iter().all(Option::is_none)
        && lines[..valid].iter().flatten().enumerate().all(|(i, line)| {
            line.dtype == first.dtype && line.step == first.step && line.ptr() == first.moved(i).ptr()
        })
        // Rows that are contiguous along K are better read along K.
        && (k <= 1 || first.step != 1);
    fits.then_some((first, valid))
}

/// Packs values `k0..k0 + count` of 32 outputs as a panel, which holds [`PanelKind::padded_k`] of `count` steps. Those
/// that are not there count as zeros.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(crate) unsafe fn pack_panel<S: Simd>(
    lines: &[Option<Line>; PANEL],
    kind: PanelKind,
    k0: usize,
    count: usize,
    to: *mut u8,
) {
    // SAFETY: passed on; blocks of K are of whole groups.
    unsafe {
        match kind {
            PanelKind::F32 => pack_steps::<S, f32>(lines, k0, count, to.cast()),
            PanelKind::F16 => pack_steps::<S, f16>(lines, k0, count, to.cast()),
            PanelKind::Bf16 => pack_pairs::<S>(lines, k0, count, to),
            PanelKind::Blocks(format) => {
                pack_blocks::<S>(&lines.map(|line| line.map(Row::Floats)), format, k0, count, false, to);
            }
        }
    }
}

/// A panel of steps: half of it is the sixteen outputs at this place of every step.
#[inline(always)]
unsafe fn pack_steps<S: Simd, T: Stored>(lines: &[Option<Line>; PANEL], k0: usize, count: usize, to: *mut T) {
    for (half, lines) in lines.chunks_exact(LANES).enumerate() {
        // SAFETY: passed on.
        unsafe {
            let to = to.add(half * LANES);
            match side_by_side(lines, count) {
                Some(side) => across_to_steps::<S, T>(side, k0, count, to),
                None => along_to_steps::<S, T>(lines, k0, count, to),
            }
        }
    }
}

/// The same of pairs of steps in bf16.
#[inline(always)]
unsafe fn pack_pairs<S: Simd>(lines: &[Option<Line>; PANEL], k0: usize, count: usize, to: *mut u8) {
    for (half, lines) in lines.chunks_exact(LANES).enumerate() {
        // SAFETY: passed on.
        unsafe {
            let to = to.add(half * LANES * 4);
            match side_by_side(lines, count) {
                Some(side) => across_to_pairs::<S>(side, k0, count, to),
                None => along_to_pairs::<S>(lines, k0, count, to),
            }
        }
    }
}

/// Sixteen outputs that lie side by side, one step of K.
#[inline(always)]
unsafe fn load_across<S: Simd>((first, valid): (Line, usize), k: usize) -> S::F {
    let across = Line::new(first.skip(k).ptr(), first.dtype, 1);
    // SAFETY: passed on: `valid` outputs lie one element apart.
    unsafe { across.load::<S>(valid) }
}

/// Sixteen outputs that lie side by side: a step of K is one load.
#[inline(always)]
unsafe fn across_to_steps<S: Simd, T: Stored>(side: (Line, usize), k0: usize, count: usize, to: *mut T) {
    for k in 0..count {
        // SAFETY: passed on.
        unsafe { T::store::<S>(to.add(k * PANEL), load_across::<S>(side, k0 + k)) };
    }
}

/// The same, two steps of K rounded to bf16 side by side.
#[inline(always)]
unsafe fn across_to_pairs<S: Simd>(side: (Line, usize), k0: usize, count: usize, to: *mut u8) {
    for k in (0..count).step_by(2) {
        // SAFETY: passed on; behind an odd count stands a zero.
        unsafe {
            let even = load_across::<S>(side, k0 + k);
            let odd = if k + 1 < count { load_across::<S>(side, k0 + k + 1) } else { S::splat(0.0) };
            S::store(to.cast::<f32>().add(k / 2 * PANEL), S::round_bf16_pairs(even, odd));
        }
    }
}

/// Sixteen outputs whose values lie along K.
struct AlongK<'a> {
    lines: &'a [Option<Line>],
    /// The type that they share and where they begin, if each is there and without gaps: then a load is a load.
    plain: Option<(DType, [*const u8; LANES])>,
}

impl<'a> AlongK<'a> {
    #[inline(always)]
    fn new(lines: &'a [Option<Line>]) -> Self {
        let mut plain = None;
        if let Some(Line { dtype, .. }) = lines[0] {
            let mut ptrs = [std::ptr::null(); LANES];
            let mut there = 0;
            for line in lines.iter().flatten().filter(|line| line.dtype == dtype && line.step == 1) {
                ptrs[there] = line.ptr();
                there += 1;
            }
            plain = (there == LANES).then_some((dtype, ptrs));
        }
        Self { lines, plain }
    }

    /// Values `k..k + n` of each, at most 16, widened; zeros behind them.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, k: usize, n: usize) -> [S::F; LANES] {
        // SAFETY: the caller names `n` values of the lines from `k` on.
        unsafe {
            match &self.plain {
                Some((DType::F16, ptrs)) if n == LANES => load_plain::<S, f16>(ptrs, k),
                Some((DType::BF16, ptrs)) if n == LANES => load_plain::<S, bf16>(ptrs, k),
                Some((_, ptrs)) if n == LANES => load_plain::<S, f32>(ptrs, k),
                _ => {
                    let mut rows = [S::splat(0.0); LANES];
                    for (line, row) in self.lines.iter().zip(&mut rows) {
                        if let Some(line) = line {
                            *row = line.skip(k).load::<S>(n);
                        }
                    }
                    rows
                }
            }
        }
    }

    /// Values `k..k + n` of each, at most 32, in bf16: sixteen pairs, zeros behind them.
    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(&self, k: usize, n: usize) -> [S::F; LANES] {
        // SAFETY: passed on. Pairs are as long as f32, and their bits are only moved.
        unsafe {
            if let Some((DType::BF16, ptrs)) = &self.plain
                && n == 2 * LANES
            {
                prefetch_next::<bf16>(ptrs, k);
                let mut rows = [S::splat(0.0); LANES];
                for (ptr, row) in ptrs.iter().zip(&mut rows) {
                    *row = S::load(ptr.add(k * size_of::<bf16>()).cast());
                }
                return rows;
            }
            let mut rows = self.load::<S>(k, n.min(LANES));
            for (row, high) in rows.iter_mut().zip(self.load::<S>(k + LANES, n.saturating_sub(LANES))) {
                *row = S::round_pairs(*row, high);
            }
            rows
        }
    }
}

/// Values `k..k + 16` of sixteen rows of `T`s.
#[inline(always)]
unsafe fn load_plain<S: Simd, T: Stored>(ptrs: &[*const u8; LANES], k: usize) -> [S::F; LANES] {
    prefetch_next::<T>(ptrs, k);
    // SAFETY: the caller names rows that hold the values.
    unsafe {
        let mut rows = [S::splat(0.0); LANES];
        for (ptr, row) in ptrs.iter().zip(&mut rows) {
            *row = T::load::<S>(ptr.add(k * size_of::<T>()).cast());
        }
        rows
    }
}

/// Asks for what the sixteen rows behind these have at `k`: rows are short, so that a core's own prefetcher comes late
/// to each.
#[inline(always)]
fn prefetch_next<T>(ptrs: &[*const u8; LANES], k: usize) {
    let apart = (ptrs[1] as usize).wrapping_sub(ptrs[0] as usize);
    let ahead = apart.wrapping_mul(LANES).wrapping_add(k * size_of::<T>());
    for ptr in ptrs {
        prefetch(ptr.wrapping_add(ahead), Reach::Far);
    }
}

/// Values `k..k + n` of sixteen outputs, at most 16, a step in each vector; zeros behind them.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values.
#[inline(always)]
pub(super) unsafe fn load_steps<S: Simd>(lines: &[Option<Line>; LANES], k: usize, n: usize) -> [S::F; LANES] {
    // SAFETY: passed on.
    unsafe {
        let Some(side) = side_by_side(lines, k + n) else { return S::transpose(AlongK::new(lines).load::<S>(k, n)) };
        let mut steps = [S::splat(0.0); LANES];
        for (i, step) in steps.iter_mut().enumerate().take(n) {
            *step = load_across::<S>(side, k + i);
        }
        steps
    }
}

/// Sixteen outputs whose values lie along K: sixteen steps are turned around in registers.
#[inline(always)]
unsafe fn along_to_steps<S: Simd, T: Stored>(lines: &[Option<Line>], k0: usize, count: usize, to: *mut T) {
    let along = AlongK::new(lines);
    for k in (0..count).step_by(LANES) {
        let n = (count - k).min(LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's.
        unsafe {
            let steps = S::transpose(along.load::<S>(k0 + k, n));
            for (step, values) in steps.into_iter().enumerate().take(n) {
                T::store::<S>(to.add((k + step) * PANEL), values);
            }
        }
    }
}

/// The same in bf16, thirty-two steps in pairs.
#[inline(always)]
unsafe fn along_to_pairs<S: Simd>(lines: &[Option<Line>], k0: usize, count: usize, to: *mut u8) {
    let along = AlongK::new(lines);
    for k in (0..count).step_by(2 * LANES) {
        let n = (count - k).min(2 * LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's, and behind an odd number stands a zero.
        unsafe {
            let pairs = S::transpose(along.load_pairs::<S>(k0 + k, n));
            for (pair, values) in pairs.into_iter().enumerate().take(n.div_ceil(2)) {
                S::store(to.cast::<f32>().add((k / 2 + pair) * PANEL), values);
            }
        }
    }
}

/// A task packs a panel.
pub(super) struct Packing<'a> {
    pub kind: PanelKind,
    pub weights: &'a Weights<'a>,
    /// The first of the weights' values in rows of `k`.
    pub start: usize,
    pub k: usize,
    pub packed: *mut u8,
}

// SAFETY: tasks write disjoint panels through the pointer and only read the rest.
unsafe impl Sync for Packing<'_> {}

impl Kernel for Packing<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, panel: usize, _worker: usize) {
        let (weights, outputs) = (self.weights, self.weights.outputs());
        let mut rows = [None; PANEL];
        for half in 0..2 {
            for (to, row) in rows[half * LANES..].iter_mut().zip(outputs.half_panel(panel, half)) {
                *to = weights.row(row);
            }
        }
        // SAFETY: `pack` checked that rows are in their pieces, that they fit the format, and that the panel is in the
        // packed bytes.
        unsafe {
            let to = self.packed.add(panel * self.kind.bytes(self.k) + self.kind.bytes(self.start));
            match self.kind {
                PanelKind::Blocks(format) => {
                    pack_blocks::<S>(&rows, format, 0, weights.k(), weights.is_per_channel(), to);
                }
                kind @ (PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16) => {
                    pack_panel::<S>(&rows.map(|row| row.and_then(Row::line)), kind, 0, weights.k(), to);
                }
            }
        }
    }
}
