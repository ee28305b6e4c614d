//! Element types that kernels load as f32 lanes and store from them.

use half::{bf16, f16};
use sinew_tensor::Element;

use super::{LANES, Simd};

/// A dtype that kernels compute on in f32: f32, f16, bf16. As for [`Simd`], no alignment is asked of pointers.
pub trait Stored: Element {
    /// Sixteen values from `p`, widened.
    ///
    /// # Safety
    /// Those of [`Simd`]; `p` is valid for sixteen elements.
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;

    /// Sixteen lanes to `p`, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// Those of [`Simd`]; `p` is valid for sixteen elements.
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F);

    /// One value, widened.
    fn widen(self) -> f32;

    /// One value, rounded.
    fn narrow(x: f32) -> Self;

    /// The first `n` values from `p`, at most 16; zeros behind them.
    ///
    /// # Safety
    /// Those of [`Simd`]; `p` is valid for `n` elements.
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::F {
        debug_assert!(n <= LANES);
        let mut padded = [Self::zeroed(); LANES];
        // SAFETY: `n` elements are readable, and the array holds sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), padded.as_mut_ptr().cast(), n * size_of::<Self>());
            Self::load::<S>(padded.as_ptr())
        }
    }

    /// The first `n` lanes to `p`, at most 16.
    ///
    /// # Safety
    /// Those of [`Simd`]; `p` is valid for `n` elements.
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut Self, v: S::F, n: usize) {
        debug_assert!(n <= LANES);
        let mut padded = [Self::zeroed(); LANES];
        // SAFETY: the array holds sixteen, and `n` elements of `p` are writable.
        unsafe {
            Self::store::<S>(padded.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(padded.as_ptr().cast::<u8>(), p.cast(), n * size_of::<Self>());
        }
    }

    /// Sixteen lanes as they come back from being stored.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    unsafe fn rounded<S: Simd>(v: S::F) -> S::F {
        let mut values = [Self::zeroed(); LANES];
        // SAFETY: the array holds sixteen.
        unsafe {
            Self::store::<S>(values.as_mut_ptr(), v);
            Self::load::<S>(values.as_ptr())
        }
    }
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: passed on.
        unsafe { S::store(p, v) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load_n(p, n) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut Self, v: S::F, n: usize) {
        // SAFETY: passed on.
        unsafe { S::store_n(p, v, n) }
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: passed on; an f16 is its sixteen bits.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: passed on; an f16 is its sixteen bits.
        unsafe { S::store_f16(p.cast(), v) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: passed on; a bf16 is its sixteen bits.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: passed on; a bf16 is its sixteen bits.
        unsafe { S::store_bf16(p.cast(), v) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}
