//! How the codes of block-quantized weights become floats.

use std::sync::LazyLock;

use sinew_tensor::BlockValues;

use crate::packed::blocks::{self, held_code};
use crate::simd::Simd;

/// What the codes of a format stand for, by the code as panels hold it.
pub(super) fn table(values: BlockValues) -> &'static [f32; 256] {
    static TABLES: LazyLock<[[f32; 256]; BlockValues::ALL.len()]> = LazyLock::new(|| {
        BlockValues::ALL.map(|values| std::array::from_fn(|held| values.value(held_code(values, held as u8))))
    });
    &TABLES[values as usize]
}

/// How codes become floats.
pub(super) trait Codes: Copy {
    /// Those of a word.
    const PER_WORD: usize;
    /// The codes of sixteen words from bit `shift` on. A NaN may be there from bit 0 on instead: what is multiplied with a
    /// word's codes is summed.
    ///
    /// # Safety
    /// Those of [`Simd`]; the words can be read.
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F;
}

/// Codes of four bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;
/// Integers of a byte.
#[derive(Clone, Copy)]
pub(super) struct Bytes;
/// Floats of a byte, of which the mantissa has so many bits: E4M3, which has a NaN and no infinity, or E5M2.
#[derive(Clone, Copy)]
pub(super) struct FloatBytes<const MANTISSA: usize>;

impl Codes for Nibbles {
    const PER_WORD: usize = 8;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F {
        // SAFETY: passed on; sixteen of the table's values are there.
        unsafe { S::lookup_nibbles(p, shift, &*table.as_ptr().cast()) }
    }
}

impl Codes for Bytes {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::sub(S::load_bytes(p, shift), S::splat(f32::from(blocks::offset(BlockValues::Int8)))) }
    }
}

impl<const MANTISSA: usize> Codes for FloatBytes<MANTISSA> {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, _: &[f32; 256]) -> S::F {
        const { assert!(MANTISSA == 2 || MANTISSA == 3) };
        // SAFETY: passed on.
        unsafe {
            let value = S::load_f8(p, shift, MANTISSA);
            if MANTISSA == 3 {
                return if shift == 0 { S::nan_of_f8e4m3(p, value) } else { value };
            }
            // The largest exponent's least is infinity.
            let (magnitude, infinity) = (S::abs(value), S::mul(value, S::splat(f32::INFINITY)));
            let beyond = S::select_lt(S::splat(65536.0), magnitude, S::splat(f32::NAN), infinity);
            S::select_lt(S::splat(57344.0), magnitude, beyond, value)
        }
    }
}

/// What codes stand for, in their place.
#[derive(Clone, Copy)]
pub(super) struct Expanded;

impl Codes for Expanded {
    const PER_WORD: usize = 1;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use sinew_memory::{SimdLevel, Team};

    use super::*;
    use crate::simd::{self, Kernel, LANES};

    /// All codes of a kind, at each place of a word.
    struct All {
        values: BlockValues,
    }

    impl All {
        #[inline(always)]
        unsafe fn check<S: Simd, C: Codes>(&self) {
            let bits = self.values.bits();
            for k in 0..C::PER_WORD {
                let shift = blocks::shift(self.values, k);
                for first in (0..1 << bits).step_by(LANES) {
                    // The other bits of a word are of no account, but for NaN.
                    let words: [u32; LANES] = std::array::from_fn(|i| {
                        let others = 0x9e37_79b9u32.wrapping_mul(i as u32 + 3) & 0xbfbf_bfbf;
                        others & !(blocks::mask(self.values) << shift) | ((first + i) as u32) << shift
                    });
                    let load = |shift| {
                        let mut loaded = [0.0; LANES];
                        // SAFETY: the level is the machine's, and the words are sixteen.
                        unsafe {
                            let codes = C::load::<S>(words.as_ptr().cast(), shift, table(self.values));
                            S::store(loaded.as_mut_ptr(), codes);
                        }
                        loaded
                    };
                    let (loaded, lowest) = (load(shift), load(0));
                    for i in 0..LANES {
                        let (code, expected) = (first + i, table(self.values)[first + i]);
                        let same = match expected.is_nan() {
                            true => loaded[i].is_nan() || lowest[i].is_nan(),
                            false => loaded[i].to_bits() == expected.to_bits(),
                        };
                        assert!(same, "{:?}: {} for {code} from {shift} on by {:?}", self.values, loaded[i], S::LEVEL);
                    }
                }
            }
        }
    }

    impl Kernel for All {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            // SAFETY: passed on.
            unsafe {
                match self.values {
                    BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => self.check::<S, Nibbles>(),
                    BlockValues::Int8 => self.check::<S, Bytes>(),
                    BlockValues::F8E4M3 => self.check::<S, FloatBytes<3>>(),
                    BlockValues::F8E5M2 => self.check::<S, FloatBytes<2>>(),
                }
            }
        }
    }

    #[test]
    fn codes_are_loaded_as_what_they_stand_for() {
        let here = Team::new(1).unwrap();
        let levels = [SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512];
        for level in levels.into_iter().filter(|&level| level <= SimdLevel::detected()) {
            for values in BlockValues::ALL {
                // SAFETY: the machine has the level.
                unsafe { simd::launch(level, &here, 1, &All { values }) };
            }
        }
    }
}
