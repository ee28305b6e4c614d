//! Strided operands on the host: addresses, and rows of them in and out of f32.

use half::{bf16, f16};
use sinew_tensor::{DType, View};

use crate::Result;
use crate::simd::{LANES, Simd, Stored};

/// An operand of up to four dimensions: base address, and strides in bytes.
#[derive(Clone, Copy)]
pub(super) struct Strided {
    base: *const u8,
    pub strides: [usize; 4],
    pub dtype: DType,
}

impl Strided {
    /// The operand of a view of at most four dimensions; missing ones have stride 0.
    ///
    /// # Errors
    /// Memory that the host cannot reach.
    pub fn new(view: &View<'_>) -> Result<Self> {
        debug_assert!(view.shape().len() <= 4);
        let mut strides = [0; 4];
        for (to, from) in strides.iter_mut().zip(view.strides()) {
            *to = from * view.dtype().size();
        }
        Ok(Self { base: view.host_ptr()?, strides, dtype: view.dtype() })
    }

    /// The same operand with a leading dimension of stride 0.
    pub fn broadcast(self) -> Self {
        let [a, b, c, _] = self.strides;
        Self { strides: [0, a, b, c], ..self }
    }

    /// The address of an index.
    ///
    /// # Safety
    /// The index is inside the view's shape.
    #[inline(always)]
    pub unsafe fn at(&self, index: [usize; 4]) -> *const u8 {
        let offset: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
        // SAFETY: a view's indices lie inside its buffer.
        unsafe { self.base.add(offset) }
    }
}

/// A row of elements in memory: `n` of them, `stride` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub ptr: *const u8,
    pub stride: usize,
    pub n: usize,
    pub dtype: DType,
}

impl Line {
    /// Whether elements follow one another.
    #[inline(always)]
    pub fn dense(&self) -> bool {
        self.stride == self.dtype.size() || self.n <= 1
    }

    /// Sixteen elements from `at` on, widened; zeros behind the row's end.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row is readable, and of `T`.
    #[inline(always)]
    pub unsafe fn part<S: Simd, T: Stored>(&self, at: usize) -> S::F {
        debug_assert_eq!(self.dtype, T::DTYPE);
        let n = self.n.saturating_sub(at).min(LANES);
        // SAFETY: elements `at..at + n` are of the row.
        unsafe {
            if n == 0 {
                S::splat(0.0)
            } else if self.dense() && n == LANES {
                T::load::<S>(self.ptr.cast::<T>().add(at))
            } else if self.dense() {
                T::load_n::<S>(self.ptr.cast::<T>().add(at), n)
            } else {
                let mut lanes = [0.0f32; LANES];
                for (i, lane) in lanes.iter_mut().enumerate().take(n) {
                    *lane = self.ptr.add((at + i) * self.stride).cast::<T>().read().widen();
                }
                S::load(lanes.as_ptr())
            }
        }
    }

    /// Widens the row to `dst` and fills up to `padded` (a multiple of sixteen) with zeros.
    ///
    /// # Safety
    /// Those of [`Simd`]; the row is readable and `dst` writable for `padded` values.
    #[inline(always)]
    pub unsafe fn widen<S: Simd>(&self, dst: *mut f32, padded: usize) {
        debug_assert!(self.n <= padded && padded.is_multiple_of(LANES));
        for at in (0..padded).step_by(LANES) {
            // SAFETY: passed on.
            unsafe {
                let part = match self.dtype {
                    DType::F16 => self.part::<S, f16>(at),
                    DType::BF16 => self.part::<S, bf16>(at),
                    _ => self.part::<S, f32>(at),
                };
                S::store(dst.add(at), part);
            }
        }
    }

    /// Rounds values from `src` (readable up to the next multiple of sixteen) into the row, which is writable.
    ///
    /// # Safety
    /// Those of [`Simd`], and what is said above.
    #[inline(always)]
    pub unsafe fn put<S: Simd>(&self, src: *const f32) {
        // SAFETY: passed on.
        unsafe {
            match self.dtype {
                DType::F16 => self.put_as::<S, f16>(src),
                DType::BF16 => self.put_as::<S, bf16>(src),
                _ => self.put_as::<S, f32>(src),
            }
        }
    }

    #[inline(always)]
    unsafe fn put_as<S: Simd, T: Stored>(&self, src: *const f32) {
        let (ptr, dense) = (self.ptr.cast_mut(), self.dense());
        // SAFETY: elements `at..at + n` are of the row; `src` is readable in whole vectors.
        unsafe {
            for at in (0..self.n).step_by(LANES) {
                let n = (self.n - at).min(LANES);
                let v = S::load(src.add(at));
                if dense && n == LANES {
                    T::store::<S>(ptr.cast::<T>().add(at), v);
                } else if dense {
                    T::store_n::<S>(ptr.cast::<T>().add(at), v, n);
                } else {
                    let mut lanes = [T::zeroed(); LANES];
                    T::store::<S>(lanes.as_mut_ptr(), v);
                    for (i, lane) in lanes.into_iter().enumerate().take(n) {
                        ptr.add((at + i) * self.stride).cast::<T>().write(lane);
                    }
                }
            }
        }
    }
}
