//! Rounding to block formats: `q = round(x / scale) + zero`, ties to even.
//!
//! The scale of a group is that of its largest value, rounded to the dtype in which scales are kept before values are
//! divided by it. Of int4 without zero points the value of the largest magnitude becomes -8, so that all sixteen codes
//! are used, and the scale has its sign; int8 is symmetric, -127 to 127. With zero points the least and the largest
//! value become the least and the largest code, and 0 one between them.

use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::blocks::MAX_GROUP;
use crate::simd::{LANES, Simd};

/// Groups whose values are all below this are zeros: their scale's inverse would not be an f32.
pub(crate) const LEAST: f32 = 1e-30;

/// Values of a group with zeros behind them, and what is known of them.
struct Group<'a> {
    values: &'a [f32; MAX_GROUP],
    /// How many are looked at: whole vectors.
    len: usize,
    least: f32,
    largest: f32,
    finite: bool,
}

impl<'a> Group<'a> {
    #[inline(always)]
    unsafe fn new<S: Simd>(values: &'a [f32; MAX_GROUP], n: usize) -> Self {
        let len = n.next_multiple_of(LANES).min(MAX_GROUP);
        // SAFETY: passed on; vectors are inside the group.
        unsafe {
            let zero = S::splat(0.0);
            let (mut least, mut largest, mut finite) = (zero, zero, zero);
            for at in (0..len).step_by(LANES) {
                let x = S::load(values.as_ptr().add(at));
                least = S::min(x, least);
                largest = S::max(x, largest);
                finite = S::add(finite, S::mul(x, zero));
            }
            let least = -S::reduce_max(S::sub(zero, least));
            Self { values, len, least, largest: S::reduce_max(largest), finite: S::reduce_add(finite) == 0.0 }
        }
    }

    fn magnitude(&self) -> f32 {
        self.largest.max(-self.least)
    }

    /// `round(x · inverse) + zero` of every value, between two integers that a byte holds.
    #[inline(always)]
    unsafe fn round<S: Simd>(&self, inverse: f32, zero: f32, [least, largest]: [f32; 2]) -> [i8; MAX_GROUP] {
        let mut rounded = [0; MAX_GROUP];
        for at in (0..self.len).step_by(LANES) {
            let mut values = [0.0f32; LANES];
            // SAFETY: passed on; vectors are inside the group, and what is rounded is between two bytes.
            unsafe {
                let x = S::mul(S::load(self.values.as_ptr().add(at)), S::splat(inverse));
                let x = S::add(S::round(x), S::splat(zero));
                let x = S::max(S::splat(least), S::min(S::splat(largest), x));
                S::store(values.as_mut_ptr(), x);
                for (to, x) in rounded[at..].iter_mut().zip(values) {
                    *to = x.to_int_unchecked::<i32>() as i8;
                }
            }
        }
        rounded
    }
}

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
        // SAFETY: passed on.
        unsafe {
            let group = Group::new::<S>(x, n);
            let magnitude = group.magnitude();
            if !group.finite {
                return Self { scale: f32::NAN, values: [0; MAX_GROUP] };
            }
            if magnitude < LEAST {
                return Self { scale: 0.0, values: [0; MAX_GROUP] };
            }
            Self { scale: magnitude / 127.0, values: group.round::<S>(127.0 / magnitude, 0.0, [-127.0, 127.0]) }
        }
    }
}

/// A group of a weight in a block format.
pub(crate) struct Block {
    /// A value that the format's scales can have; NaN where a value was not finite.
    pub scale: f32,
    pub zero: i8,
    pub codes: [u8; MAX_GROUP],
}

impl Block {
    /// One of zeros.
    pub const ZEROS: Self = Self { scale: 0.0, zero: 0, codes: [0; MAX_GROUP] };

    /// Rounds a group of `n` values, behind which are zeros.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of<S: Simd>(x: &[f32; MAX_GROUP], n: usize, format: BlockFormat) -> Self {
        let held = |scale: f32| format.scale_dtype().round(scale.into()) as f32;
        // SAFETY: passed on.
        unsafe {
            let group = Group::new::<S>(x, n);
            let magnitude = group.magnitude();
            if !group.finite {
                return Self { scale: f32::NAN, ..Self::ZEROS };
            }
            if magnitude < LEAST {
                return Self::ZEROS;
            }
            let values = format.values();
            match values {
                BlockValues::Int4 | BlockValues::Int8 if format.zero_points() => {
                    let least = values.extreme();
                    let scale = held((group.largest - group.least) / (-2.0 * least - 1.0));
                    let zero = (least - group.least / scale).round_ties_even().clamp(least, -least - 1.0);
                    Self::integers::<S>(&group, scale, zero, [least, -least - 1.0])
                }
                BlockValues::Int4 => {
                    let extreme = if group.largest > -group.least { group.largest } else { group.least };
                    Self::integers::<S>(&group, held(extreme / -8.0), 0.0, [-8.0, 7.0])
                }
                // As tensors are rounded where they are multiplied in int8.
                BlockValues::Int8 if format.scale_dtype() == DType::F32 => {
                    let Quantized { scale, values } = Quantized::of::<S>(x, n);
                    Self { scale, zero: 0, codes: values.map(|q| q as u8) }
                }
                BlockValues::Int8 => Self::integers::<S>(&group, held(magnitude / 127.0), 0.0, [-127.0, 127.0]),
                BlockValues::F4E2M1 | BlockValues::F8E4M3 | BlockValues::F8E5M2 => {
                    let scale = held(magnitude / values.extreme());
                    Self { scale, zero: 0, codes: x.map(|x| values.code(x / scale)) }
                }
            }
        }
    }

    /// Codes of integers.
    #[inline(always)]
    unsafe fn integers<S: Simd>(group: &Group<'_>, scale: f32, zero: f32, range: [f32; 2]) -> Self {
        // SAFETY: passed on.
        let codes = unsafe { group.round::<S>(1.0 / scale, zero, range) };
        Self { scale, zero: zero as i8, codes: codes.map(|q| q as u8) }
    }
}
