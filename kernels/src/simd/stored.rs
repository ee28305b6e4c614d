//! Element types that kernels load as f32 lanes and store from them, and the codes of floats of no more than 8 bits.

use float8::F8E4M3;
use half::{bf16, f16};
use sinew_tensor::Element;

use super::{LANES, Simd};

/// A dtype that kernels compute on in f32: f32, f16, bf16, and the codes of what is kept with a scale, i8 and f8_e4m3. As
/// for [`Simd`], no alignment is asked of pointers.
pub trait Stored: Element {
    /// Sixteen values from `p`, widened.
    ///
    /// # Safety
    /// Those of [`Simd`]; `p` is valid for sixteen elements.
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;

    /// Sixteen lanes to `p`, rounded to nearest, ties to even; what codes have no value for becomes the next that they
    /// have. Of codes no lane is NaN.
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

/// The codes of values with a scale, none of which is larger than it is to be.
pub trait Code: Stored {
    /// The magnitude that the largest value of those with one scale becomes.
    const LARGEST: f32;
}

impl Code for i8 {
    const LARGEST: f32 = 127.0;
}

impl Code for F8E4M3 {
    const LARGEST: f32 = 448.0;
}

impl Stored for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load_i8(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: passed on.
        unsafe { S::store_i8(p, S::max(S::min(S::round(v), S::splat(127.0)), S::splat(-128.0))) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x.round_ties_even() as Self
    }
}

impl Stored for F8E4M3 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: passed on; an f8_e4m3 is its byte.
        unsafe { S::load_f8e4m3(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F) {
        // SAFETY: passed on; an f8_e4m3 is its byte, and bytes from 128 on are negative as i8.
        unsafe {
            let code = SmallFloat::E4M3.codes::<S>(v);
            let code = S::select_lt(code, S::splat(128.0), code, S::sub(code, S::splat(256.0)));
            S::store_i8(p.cast(), code);
        }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x.clamp(-Self::LARGEST, Self::LARGEST))
    }
}

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

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{Kernel, launch};

    /// Every code is read as what it stands for; what it stands for, what lies between two and beyond them are stored as
    /// one by one.
    struct Codes<T>([T; 256]);

    impl<T: Code> Kernel for Codes<T> {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, task: usize, _: usize) {
            let codes = &self.0[task * LANES..][..LANES];
            let mut read = [0f32; LANES];
            // SAFETY: every array holds sixteen values, and the machine has the level.
            unsafe { S::store(read.as_mut_ptr(), T::load::<S>(codes.as_ptr())) };
            for (read, code) in read.iter().zip(codes) {
                let same = read.to_bits() == code.widen().to_bits() || (read.is_nan() && code.widen().is_nan());
                assert!(same, "{code:?} is {read} at {}", S::LEVEL);
            }
            let read = read.map(|x| if x.is_nan() { 1e9 } else { x });
            for (factor, beyond) in [(1.0, 0.0), (1.0, 0.5), (1.03, 0.01), (1.0625, 0.0), (1.5, -100.0)] {
                let x: [f32; LANES] = read.map(|x| x * factor + beyond);
                let mut stored = [T::zeroed(); LANES];
                // SAFETY: as above.
                unsafe { T::store::<S>(stored.as_mut_ptr(), S::load(x.as_ptr())) };
                for (x, stored) in x.into_iter().zip(stored) {
                    let same = stored.widen().to_bits() == T::narrow(x).widen().to_bits();
                    assert!(same, "{x} became {stored:?} at {}", S::LEVEL);
                }
            }
        }
    }

    #[test]
    fn codes_are_read_and_stored_as_one_by_one_at_every_level() {
        let team = Team::new(1).expect("a team");
        let bytes: [u8; 256] = std::array::from_fn(|i| i as u8);
        for level in SimdLevel::ALL {
            // SAFETY: the kernels rely on nothing.
            unsafe {
                launch(level, &team, 256 / LANES, &Codes(bytes.map(|x| x as i8)));
                launch(level, &team, 256 / LANES, &Codes(bytes.map(F8E4M3::from_bits)));
            }
        }
    }
}
