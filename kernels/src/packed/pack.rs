//! Outputs into panels: in registers, but for int8, whose values go to their quads one by one.

use half::{bf16, f16};
use sinew_tensor::DType;

use super::panel::{GROUP, PANEL, PanelKind};
use super::quantize::{OFFSET, Quantized};
use super::source::Weights;
use crate::simd::{Kernel, LANES, Reach, Simd, Stored, prefetch};

/// One row of a right operand: K values of f32, f16 or bf16, `step` elements apart, at any alignment. An empty one
/// counts as zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub ptr: *const u8,
    pub step: usize,
    pub dtype: DType,
}

impl Lane {
    /// Zeros.
    pub const EMPTY: Self = Self { ptr: std::ptr::null(), step: 0, dtype: DType::F32 };

    /// Values `k..k + n`, at most 16, widened; zeros behind them.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, k: usize, n: usize) -> S::F {
        debug_assert!(DType::COMPUTE.contains(&self.dtype));
        // SAFETY: the caller names `n` values of the lane from `k` on.
        unsafe {
            match self.dtype {
                DType::F16 => self.load_as::<S, f16>(k, n),
                DType::BF16 => self.load_as::<S, bf16>(k, n),
                _ => self.load_as::<S, f32>(k, n),
            }
        }
    }

    /// Values `k..k + n`, widened to `out`.
    ///
    /// # Safety
    /// Those of [`Simd`]; the lane has the values and `out` has room for them.
    #[inline(always)]
    pub(crate) unsafe fn widen<S: Simd>(&self, k: usize, n: usize, out: *mut f32) {
        for i in (0..n).step_by(LANES) {
            let count = (n - i).min(LANES);
            // SAFETY: passed on.
            unsafe { S::store_n(out.add(i), self.load::<S>(k + i, count), count) };
        }
    }

    #[inline(always)]
    unsafe fn load_as<S: Simd, T: Stored>(&self, k: usize, n: usize) -> S::F {
        if self.ptr.is_null() {
            // SAFETY: passed on.
            return unsafe { S::splat(0.0) };
        }
        let p = self.ptr.wrapping_add(k * self.step * size_of::<T>());
        // SAFETY: as in `load`. A checkpoint's bytes may be at any address, so they are not read as `T`s but copied.
        unsafe {
            if self.step == 1 && n == LANES {
                return T::load::<S>(p.cast());
            }
            let mut values = [T::zeroed(); LANES];
            if self.step == 1 {
                std::ptr::copy_nonoverlapping(p, values.as_mut_ptr().cast(), n * size_of::<T>());
            } else {
                for (i, value) in values.iter_mut().enumerate().take(n) {
                    *value = p.add(i * self.step * size_of::<T>()).cast::<T>().read_unaligned();
                }
            }
            T::load::<S>(values.as_ptr())
        }
    }
}

/// The type that sixteen consecutive outputs share, if they lie side by side: then a step is one load.
#[inline(always)]
fn side_by_side(lanes: &[Lane], k: usize) -> Option<(usize, DType)> {
    let first = lanes[0];
    let size = first.dtype.size();
    let valid = lanes.iter().take_while(|l| !l.ptr.is_null()).count();
    let fits = valid > 0
        && lanes[valid..].iter().all(|l| l.ptr.is_null())
        && lanes[..valid].iter().enumerate().all(|(i, l)| {
            l.dtype == first.dtype && l.step == first.step && l.ptr == first.ptr.wrapping_add(i * size)
        })
        // Rows that are contiguous along K are better read along K.
        && (k <= 1 || first.step != 1);
    fits.then_some((valid, first.dtype))
}

/// Packs values `k0..k0 + count` of 32 outputs as a panel, which holds [`PanelKind::padded_k`] of `count` steps.
///
/// # Safety
/// Those of [`Simd`]; lanes hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(crate) unsafe fn pack_panel<S: Simd>(lanes: &[Lane; PANEL], kind: PanelKind, k0: usize, count: usize, to: *mut u8) {
    for half in 0..2 {
        let lanes = &lanes[half * LANES..(half + 1) * LANES];
        // SAFETY: passed on; a half panel is the sixteen outputs at this place of every step.
        unsafe {
            match (kind, side_by_side(lanes, count)) {
                (PanelKind::Bf16, Some(side)) => {
                    rows_to_pairs::<S>(&lanes[0], side, k0, count, to.add(half * LANES * 4));
                }
                (PanelKind::Bf16, None) => columns_to_pairs::<S>(lanes, k0, count, to.add(half * LANES * 4)),
                (PanelKind::F16, Some(side)) => {
                    rows_to_steps::<S, f16>(&lanes[0], side, k0, count, to.cast::<f16>().add(half * LANES));
                }
                (PanelKind::F16, None) => {
                    columns_to_steps::<S, f16>(lanes, k0, count, to.cast::<f16>().add(half * LANES));
                }
                (PanelKind::F32, Some(side)) => {
                    rows_to_steps::<S, f32>(&lanes[0], side, k0, count, to.cast::<f32>().add(half * LANES));
                }
                (PanelKind::F32, None) => {
                    columns_to_steps::<S, f32>(lanes, k0, count, to.cast::<f32>().add(half * LANES));
                }
                (PanelKind::I8, _) => columns_to_quads::<S>(lanes, half * LANES, k0, count, to),
            }
        }
    }
}

/// Outputs from `first` on of a panel: in each group their scales, and their values in fours.
#[inline(always)]
unsafe fn columns_to_quads<S: Simd>(lanes: &[Lane], first: usize, k0: usize, count: usize, to: *mut u8) {
    for k in (0..count).step_by(GROUP) {
        let n = (count - k).min(GROUP);
        // SAFETY: passed on; the group's values are followed by none or by the next group.
        unsafe {
            let scales = to.add(PanelKind::I8.bytes(k));
            let quads = scales.add(PANEL * size_of::<f32>());
            for (output, lane) in (first..).zip(lanes) {
                let mut values = [0.0; GROUP];
                lane.widen::<S>(k0 + k, n, values.as_mut_ptr());
                let Quantized { scale, values } = Quantized::of::<S>(&values);
                scales.cast::<f32>().add(output).write_unaligned(scale);
                for (quad, four) in values.chunks_exact(4).enumerate().take(n.div_ceil(4)) {
                    for (i, &value) in four.iter().enumerate() {
                        *quads.add((quad * PANEL + output) * 4 + i) = (value as u8).wrapping_add(OFFSET);
                    }
                }
            }
        }
    }
}

/// Sixteen outputs that lie side by side, one step of K.
#[inline(always)]
unsafe fn load_side<S: Simd>(first: &Lane, (valid, dtype): (usize, DType), k: usize) -> S::F {
    let row = Lane { ptr: first.ptr.wrapping_add(k * first.step * dtype.size()), step: 1, dtype };
    // SAFETY: passed on: `valid` outputs lie one element apart.
    unsafe { row.load::<S>(0, valid) }
}

#[inline(always)]
unsafe fn rows_to_steps<S: Simd, T: Stored>(first: &Lane, side: (usize, DType), k0: usize, count: usize, to: *mut T) {
    for k in 0..count {
        // SAFETY: passed on.
        unsafe { T::store::<S>(to.add(k * PANEL), load_side::<S>(first, side, k0 + k)) };
    }
}

#[inline(always)]
unsafe fn rows_to_pairs<S: Simd>(first: &Lane, side: (usize, DType), k0: usize, count: usize, to: *mut u8) {
    for k in (0..count).step_by(2) {
        // SAFETY: passed on; behind an odd count stands a zero.
        unsafe {
            let even = load_side::<S>(first, side, k0 + k);
            let odd = if k + 1 < count { load_side::<S>(first, side, k0 + k + 1) } else { S::splat(0.0) };
            S::store(to.cast::<f32>().add(k / 2 * PANEL), S::round_bf16_pairs(even, odd));
        }
    }
}

/// Sixteen outputs whose values lie along K.
#[derive(Clone, Copy)]
struct Columns<'a> {
    lanes: &'a [Lane],
    /// The type that they share, if each is there and without gaps: then a load is a load.
    plain: Option<DType>,
}

impl<'a> Columns<'a> {
    #[inline(always)]
    fn new(lanes: &'a [Lane]) -> Self {
        let dtype = lanes[0].dtype;
        let plain = lanes.iter().all(|lane| lane.dtype == dtype && lane.step == 1 && !lane.ptr.is_null());
        Self { lanes, plain: plain.then_some(dtype) }
    }

    /// Values `k..k + n` of each, at most 16, widened; zeros behind them.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, k: usize, n: usize) -> [S::F; LANES] {
        // SAFETY: the caller names `n` values of the lanes from `k` on.
        unsafe {
            match self.plain {
                Some(DType::F16) if n == LANES => self.load_plain::<S, f16>(k),
                Some(DType::BF16) if n == LANES => self.load_plain::<S, bf16>(k),
                Some(_) if n == LANES => self.load_plain::<S, f32>(k),
                _ => {
                    let mut rows = [S::splat(0.0); LANES];
                    for (lane, row) in self.lanes.iter().zip(&mut rows) {
                        *row = lane.load::<S>(k, n);
                    }
                    rows
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_plain<S: Simd, T: Stored>(self, k: usize) -> [S::F; LANES] {
        self.prefetch_next(k);
        // SAFETY: passed on.
        unsafe {
            let mut rows = [S::splat(0.0); LANES];
            for (lane, row) in self.lanes.iter().zip(&mut rows) {
                *row = T::load::<S>(lane.ptr.add(k * size_of::<T>()).cast());
            }
            rows
        }
    }

    /// Values `k..k + n` of each, at most 32, in bf16: sixteen pairs, zeros behind them.
    #[inline(always)]
    unsafe fn load_pairs<S: Simd>(self, k: usize, n: usize) -> [S::F; LANES] {
        // SAFETY: passed on. Pairs are as long as f32, and their bits are only moved.
        unsafe {
            if self.plain == Some(DType::BF16) && n == 2 * LANES {
                self.prefetch_next(k);
                let mut rows = [S::splat(0.0); LANES];
                for (lane, row) in self.lanes.iter().zip(&mut rows) {
                    *row = S::load(lane.ptr.add(k * size_of::<bf16>()).cast());
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

    /// Asks for what the sixteen rows behind these have at `k`: rows are short, so that a core's own prefetcher comes
    /// late to each.
    #[inline(always)]
    fn prefetch_next(self, k: usize) {
        let [first, second] = [0, 1].map(|i| self.lanes[i].ptr as usize);
        let ahead = second.wrapping_sub(first).wrapping_mul(LANES).wrapping_add(k * self.lanes[0].dtype.size());
        for lane in self.lanes {
            prefetch(lane.ptr.wrapping_add(ahead), Reach::Far);
        }
    }
}

#[inline(always)]
unsafe fn columns_to_steps<S: Simd, T: Stored>(lanes: &[Lane], k0: usize, count: usize, to: *mut T) {
    let lanes = Columns::new(lanes);
    for k in (0..count).step_by(LANES) {
        let n = (count - k).min(LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's.
        unsafe {
            let steps = S::transpose(lanes.load::<S>(k0 + k, n));
            for (step, values) in steps.into_iter().enumerate().take(n) {
                T::store::<S>(to.add((k + step) * PANEL), values);
            }
        }
    }
}

#[inline(always)]
unsafe fn columns_to_pairs<S: Simd>(lanes: &[Lane], k0: usize, count: usize, to: *mut u8) {
    let lanes = Columns::new(lanes);
    for k in (0..count).step_by(2 * LANES) {
        let n = (count - k).min(2 * LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's, and behind an odd number stands a zero.
        unsafe {
            let pairs = S::transpose(lanes.load_pairs::<S>(k0 + k, n));
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
    pub packed: *mut u8,
}

// SAFETY: tasks write disjoint panels through the pointer and only read the rest.
unsafe impl Sync for Packing<'_> {}

impl Kernel for Packing<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, panel: usize, _worker: usize) {
        let (weights, outputs) = (self.weights, self.weights.outputs());
        let mut lanes = [Lane::EMPTY; PANEL];
        for half in 0..2 {
            for (lane, row) in lanes[half * LANES..].iter_mut().zip(outputs.half_panel(panel, half)) {
                *lane = weights.lane(row);
            }
        }
        // SAFETY: `pack` checked that rows are in their pieces and that the panel is in the packed bytes.
        unsafe {
            let to = self.packed.add(panel * self.kind.bytes(weights.k));
            pack_panel::<S>(&lanes, self.kind, 0, weights.k, to);
        }
    }
}
