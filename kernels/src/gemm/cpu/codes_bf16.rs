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
    /// Zero points of sixteen outputs, in the form that [`load`](Self::load) subtracts; `()` if the format has none.
    type Zeros: Copy;
    /// Builds the lookup for a kind of values.
    unsafe fn new(values: BlockValues) -> Self;
    /// Loads the zero points at `p`. A format without zero points does not read it.
    unsafe fn zeros(p: *const i8) -> Self::Zeros;
    /// Loads sixteen words at `p` as pairs of codes minus zero points, the first of each pair before the second.
    unsafe fn load<const N: usize>(&self, p: *const u8, zeros: Self::Zeros) -> [__m512bh; N];
}

/// [`Pairs::zeros`] where there are none.
macro_rules! no_zeros {
    () => {
        type Zeros = ();

        #[inline(always)]
        unsafe fn zeros(_: *const i8) {}
    };
}

/// Four bits choose among sixteen words; the table is there twice, so that a fifth is of no account.
#[derive(Clone, Copy)]
pub(super) struct Nibbles(__m512i);

impl Pairs for Nibbles {
    const COUNT: usize = 4;
    const TABLES: usize = 1;
    no_zeros!();

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        let both: [u16; 32] = std::array::from_fn(|i| u16::from_le_bytes([low[i % 16], high[i % 16]]));
        // SAFETY: the caller has AVX-512, and the array is a register.
        unsafe { Self(_mm512_loadu_si512(both.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, (): ()) -> [__m512bh; N] {
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

/// Integers of four bits minus zero points. Differences are -16 to 15: their five bits index a table of 32 words.
#[derive(Clone, Copy)]
pub(super) struct NibblesLessZeros(__m512i);

impl Pairs for NibblesLessZeros {
    const COUNT: usize = 4;
    const TABLES: usize = 2;
    /// Each output's zero point plus the offset of packed codes, repeated in the four bytes of its word.
    type Zeros = __m512i;

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        let differences: [u16; 32] = std::array::from_fn(|i| {
            let difference = if i < 16 { i as f32 } else { i as f32 - 32.0 };
            bf16::from_f32(difference).to_bits()
        });
        // SAFETY: the caller has AVX-512, and the array is a register.
        unsafe { Self(_mm512_loadu_si512(differences.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn zeros(p: *const i8) -> __m512i {
        // SAFETY: the caller has AVX-512 and names sixteen zero points.
        unsafe {
            let words = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
            let first = _mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
            let offset = _mm512_set1_epi8(blocks::offset(BlockValues::Int4) as i8);
            _mm512_add_epi8(_mm512_shuffle_epi8(words, first), offset)
        }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, zeros: __m512i) -> [__m512bh; N] {
        debug_assert_eq!(N, Self::COUNT);
        // SAFETY: the caller has AVX-512 and names sixteen words.
        unsafe {
            let words = _mm512_loadu_si512(p.cast());
            let mask = _mm512_set1_epi8(0xf);
            let even = _mm512_sub_epi8(_mm512_and_si512(words, mask), zeros);
            let odd = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi32::<4>(words), mask), zeros);
            let steps = [even, odd, _mm512_srli_epi32::<8>(even), _mm512_srli_epi32::<8>(odd)];
            std::mem::transmute_copy(&steps.map(|codes| _mm512_permutexvar_epi16(codes, self.0)))
        }
    }
}

/// The low and the high bytes of bf16, each in four registers. They are looked up by AVX512-VBMI.
#[derive(Clone, Copy)]
pub(super) struct Bytes([[__m512i; 4]; 2]);

impl Pairs for Bytes {
    const COUNT: usize = 2;
    const TABLES: usize = 8;
    no_zeros!();

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        // SAFETY: the caller has AVX-512, and a table is four registers.
        unsafe { Self(std::mem::transmute_copy(&[*low, *high])) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, (): ()) -> [__m512bh; N] {
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

impl Integers {
    /// 2^23 and 2^15: the lowest byte of the one's bits counts ones, as does the second of the other's.
    const POWERS: [f32; 2] = [8_388_608.0, 32_768.0];

    /// Subtracted from each byte's float if there are no zero points: its power of two and the offset of packed codes.
    const OFFSETS: [f32; 2] = [
        Self::POWERS[0] + blocks::offset(BlockValues::Int8) as f32,
        Self::POWERS[1] + blocks::offset(BlockValues::Int8) as f32,
    ];

    /// Loads the pairs of sixteen words, with `taken` subtracted from the two bytes of each half.
    #[inline(always)]
    unsafe fn pairs<const N: usize>(&self, p: *const u8, taken: [__m512; 2]) -> [__m512bh; N] {
        debug_assert_eq!(N, Self::COUNT);
        // SAFETY: the caller has AVX-512 and names sixteen words.
        unsafe {
            let even = _mm512_loadu_si512(p.cast());
            let steps = [even, _mm512_srli_epi32::<16>(even)];
            let mut pairs = [even; N];
            for (byte, pair) in pairs.iter_mut().enumerate() {
                let power = Self::POWERS[byte].to_bits() as i32;
                let (mask, bits) = (_mm512_set1_epi32(0xff << (8 * byte)), _mm512_set1_epi32(power));
                let mut floats = steps;
                for float in &mut floats {
                    let sum = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(*float, mask, bits));
                    *float = _mm512_castps_si512(_mm512_sub_ps(sum, taken[byte]));
                }
                *pair = _mm512_permutex2var_epi16(floats[0], self.0, floats[1]);
            }
            std::mem::transmute_copy(&pairs)
        }
    }
}

impl Pairs for Integers {
    const COUNT: usize = 2;
    const TABLES: usize = 4;
    no_zeros!();

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        // The upper halves of two registers' words, in turns.
        let halves: [u16; 32] = std::array::from_fn(|i| (32 * (i % 2) + (i | 1)) as u16);
        // SAFETY: the caller has AVX-512, and the array is a register. What the compiler knows it makes a shift and an `or`.
        unsafe { Self(_mm512_loadu_si512(std::hint::black_box(&halves).as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, (): ()) -> [__m512bh; N] {
        // SAFETY: passed on.
        unsafe { self.pairs(p, Self::OFFSETS.map(|offset| _mm512_set1_ps(offset))) }
    }
}

/// Integers of a byte minus zero points. Differences are -255 to 255, which bf16 holds exactly.
#[derive(Clone, Copy)]
pub(super) struct IntegersLessZeros(Integers);

impl Pairs for IntegersLessZeros {
    const COUNT: usize = Integers::COUNT;
    const TABLES: usize = Integers::TABLES;
    type Zeros = [__m512; 2];

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        // SAFETY: passed on.
        unsafe { Self(Integers::new(values)) }
    }

    #[inline(always)]
    unsafe fn zeros(p: *const i8) -> [__m512; 2] {
        // SAFETY: the caller has AVX-512 and names sixteen zero points.
        unsafe {
            let zeros = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
            Integers::OFFSETS.map(|offset| _mm512_add_ps(zeros, _mm512_set1_ps(offset)))
        }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, zeros: [__m512; 2]) -> [__m512bh; N] {
        // SAFETY: passed on.
        unsafe { self.0.pairs(p, zeros) }
    }
}

/// Pairs in their place.
#[derive(Clone, Copy)]
pub(super) struct Expanded;

impl Pairs for Expanded {
    const COUNT: usize = 1;
    const TABLES: usize = 0;
    no_zeros!();

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8, (): ()) -> [__m512bh; N] {
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
