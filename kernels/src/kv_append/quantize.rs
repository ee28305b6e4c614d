//! A head rounded to codes and a scale.

use crate::simd::{Code, LANES, Simd};

/// Rounds `n` values to as many codes, and writes their scale: see the [module above](super).
///
/// # Safety
/// Those of [`Simd`]; `x` is readable for `n` values, `codes` writable for as many, and `scale` for an f32 at any address.
#[inline(always)]
pub(super) unsafe fn head<S: Simd, C: Code>(x: *const f32, n: usize, codes: *mut C, scale: *mut u8) {
    // SAFETY: passed on; every part ends with the values.
    unsafe {
        let zeros = S::splat(0.0);
        let (mut largest, mut finite) = (zeros, zeros);
        let mut at = 0;
        while at < n {
            let part = S::load_n(x.add(at), (n - at).min(LANES));
            largest = S::max(S::abs(part), largest);
            // A product with 0 is NaN for NaN and infinities, and 0 for all else.
            finite = S::add(finite, S::mul(part, zeros));
            at += LANES;
        }
        let is_finite = !S::reduce_add(finite).is_nan();
        // No less than f32's least normal number: below it a scale has few bits left, or none.
        let divisor = (S::reduce_max(largest) / C::LARGEST).max(f32::MIN_POSITIVE);
        let mut at = 0;
        while at < n {
            let left = (n - at).min(LANES);
            let part = if is_finite { S::div(S::load_n(x.add(at), left), S::splat(divisor)) } else { zeros };
            C::store_n::<S>(codes.add(at), part, left);
            at += LANES;
        }
        scale.cast::<f32>().write_unaligned(if is_finite { divisor } else { f32::NAN });
    }
}
