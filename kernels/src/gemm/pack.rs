//! Packing, in registers: rows of A into tiles, outputs of B into panels.

use half::{bf16, f16};
use sinew_tensor::DType;

use super::PANEL;
use super::driver::Rows;
use super::epilogue::load_line;
use super::format::padded_k;
use super::tile::{MAX_TILE, Tiles};
use crate::simd::{Kernel, LANES, Simd, Stored};

/// One row of a right operand: K values, `step` elements apart, at any alignment. An empty one counts as zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
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
        // SAFETY: the caller names `n` values of the lane from `k` on.
        unsafe {
            match self.dtype {
                DType::F16 => self.load_as::<S, f16>(k, n),
                DType::BF16 => self.load_as::<S, bf16>(k, n),
                _ => self.load_as::<S, f32>(k, n),
            }
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

/// Packs values `k0..k0 + count` of 32 outputs as a panel of `dtype`, which holds `padded_k(count)` steps.
///
/// # Safety
/// Those of [`Simd`]; lanes hold the values, and `to` may be written for the panel's bytes.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd>(lanes: &[Lane; PANEL], dtype: DType, k0: usize, count: usize, to: *mut u8) {
    for half in 0..2 {
        let lanes = &lanes[half * LANES..(half + 1) * LANES];
        // SAFETY: passed on; a half panel is the sixteen outputs at this place of every step.
        unsafe {
            match (dtype, side_by_side(lanes, count)) {
                (DType::BF16, Some(side)) => rows_to_pairs::<S>(&lanes[0], side, k0, count, to.add(half * LANES * 4)),
                (DType::BF16, None) => columns_to_pairs::<S>(lanes, k0, count, to.add(half * LANES * 4)),
                (DType::F16, Some(side)) => {
                    rows_to_steps::<S, f16>(&lanes[0], side, k0, count, to.cast::<f16>().add(half * LANES));
                }
                (DType::F16, None) => columns_to_steps::<S, f16>(lanes, k0, count, to.cast::<f16>().add(half * LANES)),
                (_, Some(side)) => {
                    rows_to_steps::<S, f32>(&lanes[0], side, k0, count, to.cast::<f32>().add(half * LANES));
                }
                (_, None) => columns_to_steps::<S, f32>(lanes, k0, count, to.cast::<f32>().add(half * LANES)),
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
struct Block([[f32; LANES]; LANES]);

impl Block {
    const ZERO: Self = Self([[0.0; LANES]; LANES]);

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
    unsafe fn columns<S: Simd>(&self) -> [S::F; LANES] {
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

/// Packs tiles of A's rows: `[steps][rows of the tile]`, where a step is one f32, or a pair of bf16.
pub(super) struct PackRows {
    /// The rows.
    pub rows: Rows,
    /// Group and row of the first tile.
    pub group: usize,
    pub row: usize,
    /// Rows packed of each group.
    pub count: usize,
    /// Length of a row, and the type of the panels, which says what padding they have.
    pub k: usize,
    pub panels: DType,
    /// Whether values are rounded to bf16.
    pub round: bool,
    /// The tiles.
    pub tiles: &'static Tiles,
    /// Where tiles go, and bytes from group to group.
    pub to: *mut u8,
    pub group_bytes: usize,
}

// SAFETY: tasks write disjoint tiles through the pointer and only read the rest.
unsafe impl Sync for PackRows {}

impl Kernel for PackRows {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        // SAFETY: the driver checked the rows and made room for their tiles.
        unsafe {
            match self.rows.dtype {
                DType::F16 => self.tile::<S, f16>(task),
                DType::BF16 => self.tile::<S, bf16>(task),
                _ => self.tile::<S, f32>(task),
            }
        }
    }
}

impl PackRows {
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Stored>(&self, task: usize) {
        let full = self.tiles.full().height;
        let tiles = self.count.div_ceil(full);
        let (group, first) = (task / tiles, task % tiles * full);
        let valid = (self.count - first).min(full);
        let height = self.tiles.fit(valid).height;
        let padded = padded_k(self.panels, self.k);
        let steps = if self.tiles.pairs { padded / 2 } else { padded };
        let to = self.to.wrapping_add(group * self.group_bytes + first * steps * 4);
        let mut lines = [std::ptr::null::<T>(); MAX_TILE];
        for (i, line) in lines.iter_mut().enumerate().take(valid) {
            *line = self.rows.address(self.group + group, self.row + first + i).cast();
        }
        let mut block = Block::ZERO;
        let per_step = if self.tiles.pairs { 2 } else { 1 };
        for step in (0..steps).step_by(LANES) {
            let (k, width) = (step * per_step, (steps - step).min(LANES));
            // SAFETY: lines hold K values; rows without a line stay zero; the tile holds `steps` steps.
            unsafe {
                for (line, values) in lines.iter().zip(&mut block.0).take(valid) {
                    if !self.round {
                        S::store(values.as_mut_ptr(), self.load::<S, T>(*line, k));
                        continue;
                    }
                    let mut rounded = [0u16; 2 * LANES];
                    for half in 0..per_step {
                        let x = self.load::<S, T>(*line, k + half * LANES);
                        S::store_bf16(rounded.as_mut_ptr().add(half * LANES), x);
                    }
                    let x = if self.tiles.pairs {
                        S::load(rounded.as_ptr().cast())
                    } else {
                        S::load_bf16(rounded.as_ptr())
                    };
                    S::store(values.as_mut_ptr(), x);
                }
                let to = to.cast::<f32>().add(step * height);
                for (i, values) in block.columns::<S>().into_iter().enumerate() {
                    if i < width {
                        S::store_n(to.add(i * height), values, height);
                    }
                }
            }
        }
    }

    /// Values `k..k + 16` of a row, zeros behind its end.
    #[inline(always)]
    unsafe fn load<S: Simd, T: Stored>(&self, line: *const T, k: usize) -> S::F {
        let n = self.k.saturating_sub(k).min(LANES);
        // SAFETY: passed on.
        unsafe { load_line::<S, T>(line.wrapping_add(k * self.rows.k_stride), self.rows.k_stride, n) }
    }
}
