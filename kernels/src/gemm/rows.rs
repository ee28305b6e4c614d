//! Where the rows of operands lie.

use half::{bf16, f16};
use sinew_tensor::{DType, View};

use crate::Result;
use crate::simd::{LANES, Simd, Stored};

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

/// The first `n` elements, at most 16, `step` apart, widened; zeros behind them.
///
/// # Safety
/// Those of [`Simd`]; `p` points to them.
#[inline(always)]
pub(super) unsafe fn load_line<S: Simd, T: Stored>(p: *const T, step: usize, n: usize) -> S::F {
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
