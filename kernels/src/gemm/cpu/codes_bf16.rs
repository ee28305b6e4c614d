//! How the codes of block-quantized weights become bf16, two steps of K at a time, on AVX-512.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use half::bf16;
use sinew_tensor::BlockValues;

use super::codes::table;
use crate::packed::blocks;

/// The bf16 of every code as panels hold it: of codes of four bits again and again.
fn codes(values: BlockValues) -> &'static [[u8; 256]; 2] {
    static TABLES: LazyLock<[[[u8; 256]; 2]; BlockValues::ALL.len()]> = LazyLock::new(|| {
        BlockValues::ALL
            .map(|values| [0, 1].map(|byte| table(values).map(|value| bf16::from_f32(value).to_le_bytes()[byte])))
    });
    &TABLES[values as usize]
}

/// How a line of sixteen words becomes pairs of bf16.
///
/// # Safety
/// The machine has AVX-512, and what a kind of codes asks for besides; functions are inside one that enables it.
#[allow(clippy::missing_safety_doc, reason = "the trait's section on safety holds for every function")]
pub(super) trait Pairs: Copy {
    /// Pairs of a word.
    const COUNT: usize;
    /// Registers of what looks them up.
    const TABLES: usize;
    /// What looks up the codes of a kind of values.
    unsafe fn new(values: BlockValues) -> Self;
    /// The pairs of sixteen words at `p`, the first of each before the second.
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N];
}

/// Four bits choose among sixteen words; the table is there twice, so that a fifth is of no account.
#[derive(Clone, Copy)]
pub(super) struct Nibbles(__m512i);

impl Pairs for Nibbles {
    const COUNT: usize = 4;
    const TABLES: usize = 1;

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        let both: [u16; 32] = std::array::from_fn(|i| u16::from_le_bytes([low[i % 16], high[i % 16]]));
        // SAFETY: the caller has AVX-512, and the array is a register.
        unsafe { Self(_mm512_loadu_si512(both.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
        // SAFETY: the caller has AVX-512 and names sixteen words.
        unsafe {
            let words = _mm512_loadu_si512(p.cast());
            debug_assert_eq!(N, Self::COUNT);
            let mut pairs = [words; N];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(4 * i as i32));
                *pair = _mm512_permutexvar_epi16(shifted, self.0);
            }
            std::mem::transmute_copy(&pairs)
        }
    }
}

/// The low and the high bytes of bf16, each in four registers. They are looked up by AVX512-VBMI.
#[derive(Clone, Copy)]
pub(super) struct Bytes([[__m512i; 4]; 2]);

impl Pairs for Bytes {
    const COUNT: usize = 2;
    const TABLES: usize = 8;

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        // SAFETY: the caller has AVX-512, and a table is four registers.
        unsafe { Self(std::mem::transmute_copy(&[*low, *high])) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
        // SAFETY: the caller has AVX-512 with VBMI and names sixteen words.
        unsafe {
            let bytes = _mm512_loadu_si512(p.cast());
            let upper = _mm512_movepi8_mask(bytes);
            let low = look_up(bytes, upper, &self.0[0]);
            let high = look_up(bytes, upper, &self.0[1]);
            let mask = _mm512_set1_epi16(0xff);
            let even = _mm512_ternarylogic_epi32::<0xf8>(_mm512_slli_epi16::<8>(high), low, mask);
            let odd = _mm512_ternarylogic_epi32::<0xf4>(_mm512_srli_epi16::<8>(low), high, mask);
            debug_assert_eq!(N, Self::COUNT);
            std::mem::transmute_copy(&[even, odd])
        }
    }
}

/// Integers of a byte by arithmetic: a byte below the mantissa's bits of a power of two is added to it, which is taken off
/// again, with the offset. f32 has the integers in its upper half, which is bf16.
#[derive(Clone, Copy)]
pub(super) struct Integers(__m512i);

impl Pairs for Integers {
    const COUNT: usize = 2;
    const TABLES: usize = 4;

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        // The upper halves of two registers' words, in turns.
        let halves: [u16; 32] = std::array::from_fn(|i| (32 * (i % 2) + (i | 1)) as u16);
        // SAFETY: the caller has AVX-512, and the array is a register. What the compiler knows it makes a shift and an `or`.
        unsafe { Self(_mm512_loadu_si512(std::hint::black_box(&halves).as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
        /// 2^23 and 2^15: the lowest byte of the one's bits counts ones, as does the second of the other's.
        const POWERS: [f32; 2] = [8_388_608.0, 32_768.0];
        debug_assert_eq!(N, Self::COUNT);
        // SAFETY: the caller has AVX-512 and names sixteen words.
        unsafe {
            let even = _mm512_loadu_si512(p.cast());
            let steps = [even, _mm512_srli_epi32::<16>(even)];
            let mut pairs = [even; N];
            for (byte, (pair, power)) in pairs.iter_mut().zip(POWERS).enumerate() {
                let (mask, bits) = (_mm512_set1_epi32(0xff << (8 * byte)), _mm512_set1_epi32(power.to_bits() as i32));
                let taken = _mm512_set1_ps(power + f32::from(blocks::offset(BlockValues::Int8)));
                let mut floats = steps;
                for float in &mut floats {
                    let sum = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(*float, mask, bits));
                    *float = _mm512_castps_si512(_mm512_sub_ps(sum, taken));
                }
                *pair = _mm512_permutex2var_epi16(floats[0], self.0, floats[1]);
            }
            std::mem::transmute_copy(&pairs)
        }
    }
}

/// Pairs in their place.
#[derive(Clone, Copy)]
pub(super) struct Expanded;

impl Pairs for Expanded {
    const COUNT: usize = 1;
    const TABLES: usize = 0;

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
        debug_assert_eq!(N, Self::COUNT);
        // SAFETY: the caller has AVX-512 and names sixteen pairs.
        unsafe { std::mem::transmute_copy(&_mm512_loadu_si512(p.cast())) }
    }
}

/// What a table has for every byte, of which those of `upper` are 128 and more.
#[inline(always)]
unsafe fn look_up(bytes: __m512i, upper: __mmask64, table: &[__m512i; 4]) -> __m512i {
    // SAFETY: the caller has AVX-512 with VBMI.
    unsafe {
        let low = _mm512_permutex2var_epi8(table[0], bytes, table[1]);
        let high = _mm512_permutex2var_epi8(table[2], bytes, table[3]);
        _mm512_mask_mov_epi8(low, upper, high)
    }
}
