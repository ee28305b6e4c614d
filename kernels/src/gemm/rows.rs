//! Rows of operands: where they lie, and how A's are packed, in registers, into tiles.

use half::{bf16, f16};
use sinew_tensor::{DType, View};

use super::input_norm::{NormedRows, Vectors};
use super::tile::{Left, MAX_TILE, Tiles};
use crate::Result;
use crate::norm::lanes::Scale;
use crate::packed::{GROUP, OFFSET, PanelKind, Quantized};
use crate::simd::{self, Kernel, LANES, Reach, Simd, Stored};

/// Values that rows are asked for ahead of where they are packed: twelve rows at once are more than a core's own
/// prefetcher follows.
const AHEAD: usize = 128;

/// A `[batch, M, …]` operand: where each row is.
///
/// Where all products share one right operand, rows of all of them are counted through (`group` 0); otherwise a group
/// is a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub dtype: DType,
    /// Elements from value to value of a row.
    pub k_stride: usize,
    ptr: *const u8,
    /// Rows of a batch; without an end where the next batch goes on at the same stride.
    m: usize,
    batch_stride: usize,
    row_stride: usize,
}

impl Rows {
    /// The rows of `[batch, m, …]` on the host.
    pub fn new(view: &View<'_>, m: usize) -> Result<Self> {
        let (ptr, strides) = (view.host_ptr()?, view.strides());
        let (batch_stride, row_stride, k_stride) = (strides[0], strides[1], strides[2]);
        let m = if view.shape()[0] == 1 || batch_stride == m * row_stride { usize::MAX } else { m };
        Ok(Self { dtype: view.dtype(), k_stride, ptr, m, batch_stride, row_stride })
    }

    /// The first value of a row.
    #[inline(always)]
    pub fn address(&self, group: usize, row: usize) -> *const u8 {
        // A division takes as long as a result's own arithmetic.
        let (batch, row) = if row < self.m { (group, row) } else { (group + row / self.m, row % self.m) };
        let at = batch * self.batch_stride + row * self.row_stride;
        self.ptr.wrapping_add(at * self.dtype.size())
    }

    /// A row.
    #[inline(always)]
    pub fn line(&self, group: usize, row: usize) -> Line {
        Line { ptr: self.address(group, row), step: self.k_stride, dtype: self.dtype }
    }
}

/// A span of one dimension: an address, the step between elements in elements, and their type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub ptr: *const u8,
    pub step: usize,
    pub dtype: DType,
}

impl Line {
    /// The line from element `at` on.
    #[inline(always)]
    pub fn from(self, at: usize) -> Self {
        Self { ptr: self.ptr.wrapping_add(at * self.step * self.dtype.size()), ..self }
    }

    /// Its first `n` values, at most 16, widened; zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `n` elements.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(self, n: usize) -> S::F {
        // SAFETY: passed on; the type is the elements'.
        unsafe {
            match self.dtype {
                DType::F16 => load_line::<S, f16>(self.ptr.cast(), self.step, n),
                DType::BF16 => load_line::<S, bf16>(self.ptr.cast(), self.step, n),
                _ => load_line::<S, f32>(self.ptr.cast(), self.step, n),
            }
        }
    }

    /// Rounds the first `n` lanes, at most 16, to its first elements.
    ///
    /// # Safety
    /// Those of [`Simd`]; the line has `n` elements, which may be written.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(self, v: S::F, n: usize) {
        // SAFETY: passed on; the type is the elements'.
        unsafe {
            match self.dtype {
                DType::F16 => store_line::<S, f16>(self.ptr.cast_mut().cast(), self.step, v, n),
                DType::BF16 => store_line::<S, bf16>(self.ptr.cast_mut().cast(), self.step, v, n),
                _ => store_line::<S, f32>(self.ptr.cast_mut().cast(), self.step, v, n),
            }
        }
    }
}

#[inline(always)]
unsafe fn load_line<S: Simd, T: Stored>(p: *const T, step: usize, n: usize) -> S::F {
    debug_assert!(n <= LANES);
    // SAFETY: the caller names `n` elements, `step` apart.
    unsafe {
        match (step, n) {
            (1, LANES) => T::load::<S>(p),
            (1, _) => T::load_n::<S>(p, n),
            _ => {
                let mut values = [0.0f32; LANES];
                for (i, value) in values.iter_mut().enumerate().take(n) {
                    *value = (*p.add(i * step)).widen();
                }
                S::load(values.as_ptr())
            }
        }
    }
}

#[inline(always)]
unsafe fn store_line<S: Simd, T: Stored>(p: *mut T, step: usize, v: S::F, n: usize) {
    debug_assert!(n <= LANES);
    // SAFETY: the caller names `n` elements, `step` apart.
    unsafe {
        match (step, n) {
            (1, LANES) => T::store::<S>(p, v),
            (1, _) => T::store_n::<S>(p, v, n),
            _ => {
                let mut values = [T::zeroed(); LANES];
                T::store::<S>(values.as_mut_ptr(), v);
                for (i, value) in values.iter().enumerate().take(n) {
                    p.add(i * step).write(*value);
                }
            }
        }
    }
}

/// Rows of A that are packed together and multiplied with one right operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    /// Which right operand.
    pub right: usize,
    /// Group and row of the first one, and how many there are.
    pub group: usize,
    pub row: usize,
    pub count: usize,
    /// Tiles of the slabs before it, and where its own go, in bytes.
    pub tile: usize,
    pub at: usize,
}

/// Packs tiles of A's rows: `[steps][rows of the tile]`, where a step is one f32, or a pair of bf16.
pub(super) struct PackRows<'a> {
    /// The rows.
    pub rows: Rows,
    /// The norm of each, where it is their norm that is packed.
    pub norm: Option<NormedRows>,
    /// Which of them.
    pub slabs: &'a [Slab],
    /// Length of a row, and the kind of the panels, which says what padding they have.
    pub k: usize,
    pub panels: PanelKind,
    /// Whether values are rounded to bf16.
    pub round: bool,
    /// The tiles.
    pub tiles: &'static Tiles,
    /// Where tiles go.
    pub to: *mut u8,
}

// SAFETY: tasks write disjoint tiles through the pointer and only read the rest.
unsafe impl Sync for PackRows<'_> {}

impl Kernel for PackRows<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        // SAFETY: the driver checked the rows and made room for their tiles.
        unsafe {
            match (self.rows.dtype, self.norm.is_some()) {
                (DType::F16, false) => self.tile::<S, f16, false>(task),
                (DType::BF16, false) => self.tile::<S, bf16, false>(task),
                (_, false) => self.tile::<S, f32, false>(task),
                (DType::F16, true) => self.tile::<S, f16, true>(task),
                (DType::BF16, true) => self.tile::<S, bf16, true>(task),
                (_, true) => self.tile::<S, f32, true>(task),
            }
        }
    }
}

impl PackRows<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd, T: Stored, const NORMED: bool>(&self, task: usize) {
        let full = self.tiles.full().height;
        let slab = &self.slabs[self.slabs.partition_point(|slab| slab.tile <= task) - 1];
        let first = (task - slab.tile) * full;
        let valid = (slab.count - first).min(full);
        let height = self.tiles.fit(valid).height;
        let padded = self.panels.padded_k(self.k);
        let left = self.tiles.left;
        let to = self.to.wrapping_add(slab.at + first * left.bytes(padded));
        let mut lines = [std::ptr::null::<T>(); MAX_TILE];
        for (i, line) in lines.iter_mut().enumerate().take(valid) {
            *line = self.rows.address(slab.group, slab.row + first + i).cast();
        }
        let norm = if NORMED { self.norm.as_ref() } else { None };
        let mut scales = [Scale::default(); MAX_TILE];
        if let Some(norm) = norm {
            for (line, scale) in lines.iter().zip(&mut scales).take(valid) {
                // SAFETY: lines hold K values.
                *scale = unsafe { norm.scale::<S>(&self.rows, line.cast(), self.k) };
            }
        }
        if left == Left::Quads {
            // SAFETY: passed on; rows without a line count as zeros.
            return unsafe { self.quads::<S, T>(&lines[..valid], norm, &scales, height, to) };
        }
        let (per_step, pairs) = (left.per_step(), left == Left::Pairs);
        let steps = padded / per_step;
        let as_it_is = !NORMED && self.rows.dtype == DType::BF16 && self.rows.k_stride == 1;
        for step in (0..steps).step_by(LANES) {
            let (k, width) = (step * per_step, (steps - step).min(LANES));
            // SAFETY: lines hold K values; rows without a line stay zero; the tile holds `steps` steps.
            unsafe {
                let mut rows = [S::splat(0.0); LANES];
                let vectors = match norm {
                    Some(norm) => [
                        Some(norm.vectors::<S>(k, self.values(k))),
                        Some(norm.vectors::<S>(k + LANES, self.values(k + LANES))),
                    ],
                    None => [None; 2],
                };
                for ((line, scale), row) in lines.iter().zip(&scales).zip(&mut rows).take(valid) {
                    simd::prefetch(line.wrapping_add((k + AHEAD) * self.rows.k_stride).cast(), Reach::Near);
                    *row = if pairs && as_it_is && k + 2 * LANES <= self.k {
                        S::load(line.add(k).cast())
                    } else if pairs {
                        S::round_pairs(
                            self.load::<S, T>(*line, k, *scale, vectors[0]),
                            self.load::<S, T>(*line, k + LANES, *scale, vectors[1]),
                        )
                    } else if self.round {
                        let mut rounded = [0; LANES];
                        S::store_bf16(rounded.as_mut_ptr(), self.load::<S, T>(*line, k, *scale, vectors[0]));
                        S::load_bf16(rounded.as_ptr())
                    } else {
                        self.load::<S, T>(*line, k, *scale, vectors[0])
                    };
                }
                let to = to.cast::<f32>().add(step * height);
                for (i, values) in S::transpose(rows).into_iter().enumerate().take(width) {
                    S::store_n(to.add(i * height), values, height);
                }
            }
        }
    }

    /// Groups of int8: each row's scale, what its sums start from, and quads.
    #[inline(always)]
    unsafe fn quads<S: Simd, T: Stored>(
        &self,
        lines: &[*const T],
        norm: Option<&NormedRows>,
        scales: &[Scale],
        height: usize,
        to: *mut u8,
    ) {
        for k in (0..self.k).step_by(GROUP) {
            let quads = (self.k - k).min(GROUP).div_ceil(4);
            // SAFETY: passed on; the tile holds the group, zeros where there is no line.
            unsafe {
                let to = to.add(Left::Quads.bytes(k) * height).cast::<i32>();
                to.write_bytes(0, (2 + quads) * height);
                for (r, (line, scale)) in lines.iter().zip(scales).enumerate() {
                    let mut values = [0.0; GROUP];
                    for at in (0..GROUP).step_by(LANES) {
                        let vectors = norm.map(|norm| norm.vectors::<S>(k + at, self.values(k + at)));
                        S::store(values.as_mut_ptr().add(at), self.load::<S, T>(*line, k + at, *scale, vectors));
                    }
                    let Quantized { scale, values } = Quantized::of::<S>(&values);
                    to.add(r).cast::<f32>().write(scale);
                    // What every weight is too large by, times the values, is taken off before.
                    to.add(height + r).write(values.iter().map(|&value| -i32::from(OFFSET) * i32::from(value)).sum());
                    for (quad, four) in values.chunks_exact(4).enumerate().take(quads) {
                        let four = [four[0], four[1], four[2], four[3]].map(|value| value as u8);
                        to.add((2 + quad) * height + r).write(i32::from_le_bytes(four));
                    }
                }
            }
        }
    }

    /// Values `k..k + 16` of a row, normed where there are the norm's vectors; zeros behind its end.
    #[inline(always)]
    unsafe fn load<S: Simd, T: Stored>(
        &self,
        line: *const T,
        k: usize,
        scale: Scale,
        vectors: Option<Vectors<'_, S>>,
    ) -> S::F {
        let n = self.values(k);
        // SAFETY: passed on.
        unsafe {
            let x = load_line::<S, T>(line.wrapping_add(k * self.rows.k_stride), self.rows.k_stride, n);
            match vectors {
                Some(vectors) => vectors.apply(x, n, scale, self.round),
                None => x,
            }
        }
    }

    /// How many of the values `k..k + 16` a row has.
    #[inline(always)]
    fn values(&self, k: usize) -> usize {
        self.k.saturating_sub(k).min(LANES)
    }
}
