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
    /// Those of a kind of values.
    fn new(values: BlockValues) -> Self;
    /// The code `k` of each of sixteen words. A NaN may be the first of its word instead: what is multiplied with a word's
    /// codes is summed.
    ///
    /// # Safety
    /// Those of [`Simd`]; the words can be read.
    unsafe fn load<S: Simd>(self, p: *const u8, k: usize) -> S::F;
}

/// Codes of four bits, by what they stand for.
#[derive(Clone, Copy)]
pub(super) struct Nibbles(&'static [f32; 16]);

impl Codes for Nibbles {
    const PER_WORD: usize = 8;

    fn new(values: BlockValues) -> Self {
        let [first, ..] = table(values).as_chunks::<16>().0 else { unreachable!("a table has 256 values") };
        Self(first)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, p: *const u8, k: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { S::lookup_nibbles(p, blocks::shift_of(Self::PER_WORD, k), self.0) }
    }
}

/// Integers of a byte.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

impl Codes for Bytes {
    const PER_WORD: usize = 4;

    fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, p: *const u8, k: usize) -> S::F {
        // SAFETY: passed on.
        unsafe {
            let bytes = S::load_bytes(p, blocks::shift_of(Self::PER_WORD, k));
            S::sub(bytes, S::splat(f32::from(blocks::offset(BlockValues::Int8))))
        }
    }
}

/// fp8 (e4m3), which has NaN and no infinity.
#[derive(Clone, Copy)]
pub(super) struct E4M3;

impl Codes for E4M3 {
    const PER_WORD: usize = 4;

    fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, p: *const u8, k: usize) -> S::F {
        // SAFETY: passed on.
        unsafe {
            let value = S::load_float_bytes(p, blocks::shift_of(Self::PER_WORD, k), 3);
            if k == 0 { S::with_nan_of_f8e4m3(p, value) } else { value }
        }
    }
}

/// fp8 (e5m2), which has both.
#[derive(Clone, Copy)]
pub(super) struct E5M2;

impl Codes for E5M2 {
    const PER_WORD: usize = 4;

    fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, p: *const u8, k: usize) -> S::F {
        /// The largest number, and what infinity would be as one, behind which there is NaN.
        const LARGEST: f32 = 57_344.0;
        const INFINITY: f32 = 65_536.0;
        // SAFETY: passed on.
        unsafe {
            let value = S::load_float_bytes(p, blocks::shift_of(Self::PER_WORD, k), 2);
            let (magnitude, infinity) = (S::abs(value), S::mul(value, S::splat(f32::INFINITY)));
            let beyond = S::select_lt(S::splat(INFINITY), magnitude, S::splat(f32::NAN), infinity);
            S::select_lt(S::splat(LARGEST), magnitude, beyond, value)
        }
    }
}

/// What codes stand for, in their place.
#[derive(Clone, Copy)]
pub(super) struct Expanded;

impl Codes for Expanded {
    const PER_WORD: usize = 1;

    fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, p: *const u8, _: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}

/// An expression with the [`Codes`] of a kind of values.
macro_rules! with_codes {
    ($values:expr, $codes:ident => $body:expr) => {
        match $values {
            sinew_tensor::BlockValues::Int4 | sinew_tensor::BlockValues::F4E2M1 | sinew_tensor::BlockValues::Nf4 => {
                type $codes = crate::gemm::cpu::codes::Nibbles;
                $body
            }
            sinew_tensor::BlockValues::Int8 => {
                type $codes = crate::gemm::cpu::codes::Bytes;
                $body
            }
            sinew_tensor::BlockValues::F8E4M3 => {
                type $codes = crate::gemm::cpu::codes::E4M3;
                $body
            }
            sinew_tensor::BlockValues::F8E5M2 => {
                type $codes = crate::gemm::cpu::codes::E5M2;
                $body
            }
        }
    };
}
pub(super) use with_codes;

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
                    let load = |k| {
                        let mut loaded = [0.0; LANES];
                        // SAFETY: the level is the machine's, and the words are sixteen.
                        unsafe {
                            S::store(loaded.as_mut_ptr(), C::new(self.values).load::<S>(words.as_ptr().cast(), k));
                        }
                        loaded
                    };
                    let (loaded, first_of_word) = (load(k), load(0));
                    for i in 0..LANES {
                        let (code, expected) = (first + i, table(self.values)[first + i]);
                        let same = match expected.is_nan() {
                            true => loaded[i].is_nan() || first_of_word[i].is_nan(),
                            false => loaded[i].to_bits() == expected.to_bits(),
                        };
                        assert!(same, "{:?}: {} for {code} at {k} by {:?}", self.values, loaded[i], S::LEVEL);
                    }
                }
            }
        }
    }

    impl Kernel for All {
        #[inline(always)]
        unsafe fn task<S: Simd>(&self, _: usize, _: usize) {
            // SAFETY: passed on.
            unsafe { with_codes!(self.values, C => self.check::<S, C>()) }
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
