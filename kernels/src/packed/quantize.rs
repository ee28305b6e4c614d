//! Symmetric int8: `q = round(x / scale)` with `scale = max|x| / 127`, ties to even.

use super::panel::GROUP;
use crate::simd::{LANES, Simd};

/// What is added to the values of a weight, so that instructions can take them for unsigned.
pub(crate) const OFFSET: u8 = 128;

/// Groups whose values are all below this are zeros: their scale's inverse would not be an f32.
pub(crate) const LEAST: f32 = 1e-30;

/// A group of values in int8.
pub(crate) struct Quantized {
    /// What the values are multiplied with; NaN where one of them was not finite.
    pub scale: f32,
    /// -127 to 127.
    pub values: [i8; GROUP],
}

impl Quantized {
    /// Rounds a group.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn of<S: Simd>(x: &[f32; GROUP]) -> Self {
        // SAFETY: passed on; vectors are inside the group.
        unsafe {
            let (mut largest, mut finite) = (S::splat(0.0), S::splat(0.0));
            for at in (0..GROUP).step_by(LANES) {
                let x = S::load(x.as_ptr().add(at));
                largest = S::max(S::abs(x), largest);
                finite = S::add(finite, S::mul(x, S::splat(0.0)));
            }
            let (largest, finite) = (S::reduce_max(largest), S::reduce_add(finite));
            let mut quantized = Self { scale: 0.0, values: [0; GROUP] };
            if finite != 0.0 {
                quantized.scale = f32::NAN;
            } else if largest >= LEAST {
                quantized.scale = largest / 127.0;
                let inverse = S::splat(127.0 / largest);
                for at in (0..GROUP).step_by(LANES) {
                    let mut rounded = [0.0f32; LANES];
                    S::store(rounded.as_mut_ptr(), S::round(S::mul(S::load(x.as_ptr().add(at)), inverse)));
                    for (to, x) in quantized.values[at..].iter_mut().zip(rounded) {
                        *to = x.to_int_unchecked::<i32>() as i8;
                    }
                }
            }
            quantized
        }
    }
}
