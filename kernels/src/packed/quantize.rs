//! Rounding to block formats: `q = round(x / scale) + zero`, ties to even.
//!
//! The scale of a group, or of a row, is that of its largest value, rounded to the dtype in which scales are kept before
//! values are divided by it. Of int4 without zero points the value of the largest magnitude becomes -8, so that all sixteen codes
//! are used, and the scale has its sign; int8 is symmetric, -127 to 127. With zero points the least and the largest
//! value become the least and the largest code, and 0 one between them.

use half::{bf16, f16};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::blocks::{self, MAX_GROUP};
use crate::simd::{LANES, Simd, Stored};

/// Groups whose values are all below this are zeros: their scale's inverse would not be an f32.
pub(crate) const LEAST: f32 = 1e-30;

/// A group of activations in int8.
pub(crate) struct Quantized {
    /// What the values are multiplied with; NaN where one of them was not finite.
    pub scale: f32,
    /// -127 to 127.
    pub values: [i8; MAX_GROUP],
}

impl Quantized {
    /// Rounds a group of `n` values, behind which are zeros.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of<S: Simd>(x: &[f32; MAX_GROUP], n: usize) -> Self {
        let mut quantized = Self { scale: 0.0, values: [0; MAX_GROUP] };
        let vectors = n.div_ceil(LANES);
        // SAFETY: passed on; vectors are inside the group.
        unsafe {
            let (mut largest, mut finite) = (S::splat(0.0), S::splat(0.0));
            for at in (0..vectors).map(|i| i * LANES) {
                let x = S::load(x.as_ptr().add(at));
                largest = S::max(S::abs(x), largest);
                finite = S::add(finite, S::mul(x, S::splat(0.0)));
            }
            let (largest, finite) = (S::reduce_max(largest), S::reduce_add(finite));
            if finite != 0.0 {
                quantized.scale = f32::NAN;
            } else if largest >= LEAST {
                quantized.scale = largest / 127.0;
                let inverse = S::splat(127.0 / largest);
                for at in (0..vectors).map(|i| i * LANES) {
                    let rounded = S::round(S::mul(S::load(x.as_ptr().add(at)), inverse));
                    S::store_i8(quantized.values.as_mut_ptr().add(at), rounded);
                }
            }
        }
        quantized
    }
}

/// The least and the largest of the values that share a scale, of sixteen outputs.
#[derive(Clone, Copy)]
pub(super) struct Extent<S: Simd> {
    least: S::F,
    largest: S::F,
    /// 0, or NaN where a value was not finite.
    finite: S::F,
}

impl<S: Simd> Extent<S> {
    /// That of no values.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn none() -> Self {
        // SAFETY: passed on.
        let none = unsafe { S::splat(0.0) };
        Self { least: none, largest: none, finite: none }
    }

    /// The same with `steps`, which are values of sixteen outputs each.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn with(mut self, steps: &[S::F]) -> Self {
        // SAFETY: passed on.
        unsafe {
            let none = S::splat(0.0);
            for &x in steps {
                self.least = S::min(x, self.least);
                self.largest = S::max(x, self.largest);
                self.finite = S::add(self.finite, S::mul(x, none));
            }
        }
        self
    }
}

/// Groups of sixteen outputs: the scale and the zero point of each.
#[derive(Clone, Copy)]
pub(super) struct Integers<S: Simd> {
    /// Values that the format's scales can have; NaN where a value was not finite.
    pub scales: S::F,
    pub zeros: S::F,
    inverse: S::F,
    /// The least and the largest code.
    range: [f32; 2],
    offset: f32,
}

impl<S: Simd> Integers<S> {
    /// The scales of values in an extent.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of(extent: Extent<S>, format: BlockFormat) -> Self {
        let values = format.values();
        let Extent { least, largest, finite } = extent;
        // SAFETY: passed on.
        unsafe {
            let none = S::splat(0.0);
            let depth = S::sub(none, least);
            let magnitude = S::max(largest, depth);
            let held = |scale| hold::<S>(format.scale_dtype(), scale);
            let lowest = values.extreme();
            let (scales, zeros, range) = match values {
                _ if format.zero_points() => {
                    let highest = -lowest - 1.0;
                    let scale = held(S::div(S::sub(largest, least), S::splat(highest - lowest)));
                    let zero = S::round(S::sub(S::splat(lowest), S::div(least, scale)));
                    (scale, S::max(S::splat(lowest), S::min(S::splat(highest), zero)), [lowest, highest])
                }
                BlockValues::Int4 => {
                    let extreme = S::select_lt(depth, largest, largest, least);
                    (held(S::div(extreme, S::splat(lowest))), none, [lowest, -lowest - 1.0])
                }
                _ => (held(S::div(magnitude, S::splat(127.0))), none, [-127.0, 127.0]),
            };
            // int8 with scales in f32 is rounded as tensors are where they are multiplied.
            let inverse = match format.scale_dtype() {
                DType::F32 if range[1] == -range[0] => S::div(S::splat(127.0), magnitude),
                _ => S::div(S::splat(1.0), scales),
            };
            let small = |x| S::select_lt(magnitude, S::splat(LEAST), none, x);
            let scales = S::select_nan(finite, S::splat(f32::NAN), small(scales));
            let zeros = S::select_nan(finite, none, small(zeros));
            Self { scales, zeros, inverse: small(inverse), range, offset: blocks::offset(values).into() }
        }
    }

    /// A step's codes as panels hold them.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn codes(&self, x: S::F) -> S::F {
        let [least, largest] = self.range;
        // SAFETY: passed on.
        unsafe {
            let q = S::add(S::round(S::mul(x, self.inverse)), self.zeros);
            // What is no number becomes one.
            S::add(S::max(S::min(q, S::splat(largest)), S::splat(least)), S::splat(self.offset))
        }
    }
}

/// Values as a dtype of scales holds them.
#[inline(always)]
unsafe fn hold<S: Simd>(dtype: DType, scales: S::F) -> S::F {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F16 => f16::rounded::<S>(scales),
            DType::BF16 => bf16::rounded::<S>(scales),
            _ => scales,
        }
    }
}

/// A group of an output in a format of floats.
pub(super) struct Floats {
    /// A value that the format's scales can have; NaN where a value was not finite.
    pub scale: f32,
    pub codes: [u8; MAX_GROUP],
}

impl Floats {
    /// The largest magnitude of some values and of those before; NaN where one is.
    pub fn magnitude(x: &[f32], before: f32) -> f32 {
        x.iter().fold(before, |most, x| if x.abs() > most || x.is_nan() { x.abs() } else { most })
    }

    /// Rounds a group, behind whose values are zeros, by the largest [magnitude](Self::magnitude) of those that share
    /// its scale.
    pub fn of(x: &[f32; MAX_GROUP], n: usize, magnitude: f32, format: BlockFormat) -> Self {
        let values = format.values();
        let mut rounded = Self { scale: 0.0, codes: [0; MAX_GROUP] };
        if !magnitude.is_finite() {
            rounded.scale = f32::NAN;
        } else if magnitude >= LEAST {
            rounded.scale = format.scale_dtype().round(f64::from(magnitude / values.extreme())) as f32;
            for (code, x) in rounded.codes.iter_mut().zip(&x[..n]) {
                *code = values.code(x / rounded.scale);
            }
        }
        rounded
    }
}
