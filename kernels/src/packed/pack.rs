//! Packing, in registers: outputs into panels.

use half::{bf16, f16};
use sinew_tensor::DType;

use super::panel::{PANEL, PanelKind};
use crate::simd::{LANES, Simd, Stored};

/// One row of a right operand: K values of f32, f16 or bf16, `step` elements apart, at any alignment. An empty one counts
/// as zeros.
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
    let mut steps = [[0u16; LANES]; 2];
    for k in (0..count).step_by(2) {
        // SAFETY: passed on; behind an odd count stands a zero.
        unsafe {
            S::store_bf16(steps[0].as_mut_ptr(), load_side::<S>(first, side, k0 + k));
            let odd = if k + 1 < count { load_side::<S>(first, side, k0 + k + 1) } else { S::splat(0.0) };
            S::store_bf16(steps[1].as_mut_ptr(), odd);
            let to = to.cast::<u32>().add(k / 2 * PANEL);
            for (lane, (&even, &odd)) in steps[0].iter().zip(&steps[1]).enumerate() {
                let pair = u32::from(even) | u32::from(odd) << 16;
                to.add(lane).write_unaligned(pair);
            }
        }
    }
}

/// Sixteen by sixteen values of 32 bits on their way through registers.
#[repr(align(64))]
pub(crate) struct Block(pub [[f32; LANES]; LANES]);

impl Block {
    /// Zeros.
    pub const ZERO: Self = Self([[0.0; LANES]; LANES]);

    /// Row `i` as sixteen pairs of bf16.
    #[inline(always)]
    fn pairs(&mut self, i: usize) -> *mut u16 {
        self.0[i].as_mut_ptr().cast()
    }

    /// The columns.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn columns<S: Simd>(&self) -> [S::F; LANES] {
        // SAFETY: every row has sixteen values.
        unsafe {
            let mut rows = [S::splat(0.0); LANES];
            for (row, values) in rows.iter_mut().zip(&self.0) {
                *row = S::load(values.as_ptr());
            }
            S::transpose(rows)
        }
    }
}

#[inline(always)]
unsafe fn columns_to_steps<S: Simd, T: Stored>(lanes: &[Lane], k0: usize, count: usize, to: *mut T) {
    let mut block = Block::ZERO;
    for k in (0..count).step_by(LANES) {
        let n = (count - k).min(LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's.
        unsafe {
            for (lane, values) in lanes.iter().zip(&mut block.0) {
                S::store(values.as_mut_ptr(), lane.load::<S>(k0 + k, n));
            }
            for (step, values) in block.columns::<S>().into_iter().enumerate() {
                if step < n {
                    T::store::<S>(to.add((k + step) * PANEL), values);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn columns_to_pairs<S: Simd>(lanes: &[Lane], k0: usize, count: usize, to: *mut u8) {
    let mut block = Block::ZERO;
    for k in (0..count).step_by(2 * LANES) {
        let n = (count - k).min(2 * LANES);
        // SAFETY: passed on; `n` steps from `k` on are the panel's, and loads put zeros behind them.
        unsafe {
            for (i, lane) in lanes.iter().enumerate() {
                let to = block.pairs(i);
                for half in 0..2 {
                    let (k, n) = (k + half * LANES, n.saturating_sub(half * LANES).min(LANES));
                    S::store_bf16(to.add(half * LANES), lane.load::<S>(k0 + k, n));
                }
            }
            for (pair, values) in block.columns::<S>().into_iter().enumerate() {
                if 2 * pair < n {
                    S::store(to.cast::<f32>().add((k / 2 + pair) * PANEL), values);
                }
            }
        }
    }
}
