//! Floats of no more than 8 bits: the codes next to lanes.

use super::Simd;

/// A format of floats without infinity, or whose infinities are not used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallFloat {
    /// All bits, the sign's among them.
    bits: usize,
    mantissa_bits: usize,
    /// The exponent of the least value that is normal.
    least_exponent: f32,
    /// The largest finite value.
    largest: f32,
}

impl SmallFloat {
    /// 0 to 6 in 4 bits.
    pub const E2M1: Self = Self { bits: 4, mantissa_bits: 1, least_exponent: 0.0, largest: 6.0 };
    /// Up to 448 in 8 bits.
    pub const E4M3: Self = Self { bits: 8, mantissa_bits: 3, least_exponent: -6.0, largest: 448.0 };
    /// Up to 57344 in 8 bits.
    pub const E5M2: Self = Self { bits: 8, mantissa_bits: 2, least_exponent: -14.0, largest: 57344.0 };

    /// The codes of the values next to the lanes, ties to even, as integers; of the largest ones beyond them. No lane is
    /// NaN.
    ///
    /// # Safety
    /// Those of [`Simd`].
    #[inline(always)]
    pub unsafe fn codes<S: Simd>(self, x: S::F) -> S::F {
        // Codes from one power of 2 to the next, and that of the sign.
        let [of_exponent, of_sign] = [self.mantissa_bits, self.bits - 1].map(|bit| (1 << bit) as f32);
        // SAFETY: passed on. No power of 2 is out of range, as magnitudes are no more than the largest one.
        unsafe {
            let magnitude = S::min(S::abs(x), S::splat(self.largest));
            // As f32 has it, 127 too large; values below the least that is normal are as far apart as those above it.
            let least = S::splat(127.0 + self.least_exponent);
            let exponent = S::max(S::bits_from(magnitude, 23), least);
            // How often the distance of two values is in the magnitude, to which powers of 2 make no difference. What is
            // rounded up to the next power of 2 gets that one's first code.
            let per_one = S::mul(S::splat(of_exponent), S::pow2(S::sub(S::splat(127.0), exponent)));
            let times = S::round(S::mul(magnitude, per_one));
            let code = S::fma(S::sub(exponent, least), S::splat(of_exponent), times);
            S::fma(S::bits_from(x, 31), S::splat(of_sign), code)
        }
    }
}

/// Of floats of a byte with so many bits of mantissa, in the bits of f32: what their exponents are too small by, and the least
/// value that is normal.
pub(super) const fn f8_in_f32(mantissa_bits: usize) -> (u32, f32) {
    let bias = (1 << (6 - mantissa_bits)) - 1;
    ((127 - bias) << 23, f32::from_bits((127 + 1 - bias) << 23))
}
