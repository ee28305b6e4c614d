//! Values of sixteen outputs in registers, however their rows lie.

use half::{bf16, f16};
use sinew_tensor::DType;

use crate::cpu::line::Line;
use crate::simd::{LANES, Reach, Simd, Stored, prefetch};

/// Sixteen outputs, of which some may not be there.
pub(super) enum Sixteen<'a> {
    /// They lie side by side, so that a step is one load: the first, and how many there are.
    Across((Line, usize)),
    /// The values of each lie one behind another, or each lies in its own way.
    Along(AlongK<'a>),
}

impl<'a> Sixteen<'a> {
    /// Those of which values before `k` are asked for.
    #[inline(always)]
    pub(super) fn of(lines: &'a [Option<Line>], k: usize) -> Self {
        side_by_side(lines, k).map_or_else(|| Self::Along(AlongK::new(lines)), Self::Across)
    }

    /// Values `k..k + n`, at most 32, a step in each vector; zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; lines hold the values.
    #[inline(always)]
    pub(super) unsafe fn load_steps<S: Simd>(&self, k: usize, n: usize, steps: &mut [S::F; 2 * LANES]) {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::Across(side) => {
                    for (i, step) in steps.iter_mut().enumerate() {
                        *step = if i < n { load_across::<S>(*side, k + i) } else { S::splat(0.0) };
                    }
                }
                Self::Along(along) => along.load_steps::<S>(k, n, steps),
            }
        }
    }
}

/// The first of sixteen consecutive outputs and how many there are, if they lie side by side.
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

/// Sixteen outputs that lie side by side, one step of K.
///
/// # Safety
/// Those of [`Simd`]; lines hold the values.
#[inline(always)]
pub(super) unsafe fn load_across<S: Simd>((first, valid): (Line, usize), k: usize) -> S::F {
    let across = Line::new(first.skip(k).ptr(), first.dtype, 1);
    // SAFETY: passed on: `valid` outputs lie one element apart.
    unsafe { across.load::<S>(valid) }
}

/// Sixteen outputs whose values lie along K.
pub(super) struct AlongK<'a> {
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
    ///
    /// # Safety
    /// Those of [`Simd`]; lines hold the values.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(&self, k: usize, n: usize) -> [S::F; LANES] {
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

    /// Values `k..k + n` of each, at most 32, a step in each vector; zeros behind them.
    #[inline(always)]
    unsafe fn load_steps<S: Simd>(&self, k: usize, n: usize, steps: &mut [S::F; 2 * LANES]) {
        // SAFETY: passed on.
        unsafe {
            if let Some((DType::BF16, _)) = self.plain
                && n == 2 * LANES
            {
                // Half as many vectors to turn around, and all of a cache line at once: rows are often so far apart that
                // their lines push each other out of the first cache.
                let pairs = S::transpose(self.load_pairs::<S>(k, n));
                for (pair, [even, odd]) in pairs.into_iter().zip(steps.as_chunks_mut().0) {
                    (*even, *odd) = S::widen_bf16_pairs(pair);
                }
                return;
            }
            let (low, high) = steps.split_at_mut(LANES);
            low.copy_from_slice(&S::transpose(self.load::<S>(k, n.min(LANES))));
            high.copy_from_slice(&S::transpose(self.load::<S>(k + LANES, n.saturating_sub(LANES))));
        }
    }

    /// Values `k..k + n` of each, at most 32, in bf16: sixteen pairs, zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; lines hold the values.
    #[inline(always)]
    pub(super) unsafe fn load_pairs<S: Simd>(&self, k: usize, n: usize) -> [S::F; LANES] {
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
