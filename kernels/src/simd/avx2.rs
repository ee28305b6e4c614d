//! Sixteen lanes in two AVX2 registers.

use std::arch::x86_64::*;

use sinew_memory::SimdLevel;

use super::stored::f8_in_f32;
use super::{LANES, Part, Simd};

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub struct Pair(pub __m256, pub __m256);

/// The mask of the first `n` of eight lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// Stores the first `n` of eight lanes: in pieces, which take 0.3 to 3 ns on Zen 3, where a masked store takes 13 to 19.
#[inline(always)]
unsafe fn store_first(p: *mut f32, v: __m256, n: usize) {
    debug_assert!(n <= 8);
    // SAFETY: the caller has AVX2 and names as many values.
    unsafe {
        if n == 8 {
            return _mm256_storeu_ps(p, v);
        }
        let (mut p, mut rest) = (p, _mm256_castps256_ps128(v));
        if n & 4 != 0 {
            _mm_storeu_ps(p, rest);
            (p, rest) = (p.add(4), _mm256_extractf128_ps::<1>(v));
        }
        if n & 2 != 0 {
            _mm_storel_epi64(p.cast(), _mm_castps_si128(rest));
            (p, rest) = (p.add(2), _mm_movehl_ps(rest, rest));
        }
        if n & 1 != 0 {
            _mm_store_ss(p, rest);
        }
    }
}

// Functions rather than closures, which do not inherit the caller's instructions: one that was not inlined made
// storing bf16 twenty times slower.

/// Eight bf16 values, widened.
#[inline(always)]
unsafe fn widen_bf16(p: *const u16) -> __m256 {
    // SAFETY: the caller has AVX2 and names eight values.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

/// Sixteen fp8 values (e4m3) as f16, 2^8 times too small: f16 has one bit of exponent more.
#[inline(always)]
pub(super) unsafe fn f16_of_f8e4m3(values: __m128i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let wide = _mm256_cvtepu8_epi16(values);
        let magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)));
        // What has all bits but the sign is NaN, and gets f16's exponent of NaNs.
        let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        let nan = _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00));
        _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16::<7>(magnitude), sign), nan)
    }
}

/// Eight words at `p`, shifted right.
#[inline(always)]
unsafe fn shifted(p: *const u8, shift: usize) -> __m256i {
    // SAFETY: the caller has AVX2 and names eight words.
    unsafe { _mm256_srl_epi32(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(shift as i32)) }
}

/// The lowest bytes of eight words.
#[inline(always)]
unsafe fn low_bytes(words: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_and_si256(words, _mm256_set1_epi32(0xff)) }
}

/// [`Simd::load_float_bytes`] of eight words.
#[inline(always)]
unsafe fn f8_of(p: *const u8, shift: usize, mantissa_bits: usize) -> __m256 {
    let (bias, least) = f8_in_f32(mantissa_bits);
    // SAFETY: the caller has AVX2 with FMA and names eight words.
    unsafe {
        let highest = _mm256_sll_epi32(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(24 - shift as i32));
        let bits = _mm256_and_si256(
            _mm256_srl_epi32(highest, _mm_cvtsi32_si128(1 + mantissa_bits as i32)),
            _mm256_set1_epi32(0x7f << (23 - mantissa_bits)),
        );
        let float = _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(bias as i32)));
        let subnormal = _mm256_fmsub_ps(float, _mm256_set1_ps(2.0), _mm256_set1_ps(least));
        let sign = _mm256_and_si256(highest, _mm256_set1_epi32(i32::MIN));
        _mm256_or_ps(_mm256_min_ps(float, subnormal), _mm256_castsi256_ps(sign))
    }
}

/// [`Simd::with_nan_of_f8e4m3`] of eight words.
#[inline(always)]
unsafe fn nan_of(p: *const u8, v: __m256) -> __m256 {
    // SAFETY: the caller has AVX2 and names eight words.
    unsafe {
        let magnitudes = _mm256_and_si256(_mm256_loadu_si256(p.cast()), _mm256_set1_epi8(0x7f));
        let next = _mm256_add_epi8(magnitudes, _mm256_set1_epi8(1));
        let highest = _mm256_and_si256(next, _mm256_set1_epi8(i8::MIN));
        let numbers = _mm256_cmpeq_epi32(highest, _mm256_setzero_si256());
        _mm256_blendv_ps(_mm256_set1_ps(f32::NAN), v, _mm256_castsi256_ps(numbers))
    }
}

/// What a table has for the lowest four bits of eight words.
#[inline(always)]
unsafe fn lookup8(words: __m256i, table: &[f32; 16]) -> __m256 {
    // SAFETY: the caller has AVX2; both halves of the table are read, and the fourth bit says which is meant.
    unsafe {
        let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), words);
        let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), words);
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(words)))
    }
}

/// Eight bf16 pairs, widened: the first values, and the second.
#[inline(always)]
unsafe fn split_bf16(pairs: __m256) -> (__m256, __m256) {
    // SAFETY: the caller has AVX2.
    unsafe {
        let both = _mm256_castps_si256(pairs);
        let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
    }
}

/// `2^n` for eight integral `n`.
#[inline(always)]
unsafe fn pow2_of(n: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// The bits of eight lanes from bit `shift` on.
#[inline(always)]
unsafe fn bits_from(a: __m256, shift: usize) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cvtepi32_ps(_mm256_srl_epi32(_mm256_castps_si256(a), _mm_cvtsi32_si128(shift as i32))) }
}

/// Both rounded to bf16, the even one's bits in the lower half of each lane.
#[inline(always)]
unsafe fn bf16_pairs(even: __m256, odd: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let odd = _mm256_slli_epi32::<16>(round_bf16(odd));
        _mm256_castsi256_ps(_mm256_or_si256(round_bf16(even), odd))
    }
}

/// Eight lanes rounded to bf16, each in the lower half of 32 bits.
#[inline(always)]
unsafe fn round_bf16(v: __m256) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(v, v);
        let chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
        _mm256_srli_epi32::<16>(_mm256_castps_si256(chosen))
    }
}

/// The middle quarters of each register exchanged.
#[inline(always)]
unsafe fn in_order(v: Pair) -> Pair {
    // SAFETY: the caller has AVX2.
    unsafe {
        Pair(
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(v.0))),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(v.1))),
        )
    }
}

macro_rules! both {
    ($f:ident, $($arg:ident),+) => {
        // SAFETY: the trait's caller has AVX2 with FMA.
        unsafe { Pair($f($($arg.0),+), $f($($arg.1),+)) }
    };
}

// SAFETY: the trait's contract is passed on to each intrinsic: the caller has AVX2, FMA and F16C and names the lanes.
unsafe impl Simd for Avx2 {
    type F = Pair;
    const LEVEL: SimdLevel = SimdLevel::Avx2;
    const FUSED: bool = true;
    const VECTORS: usize = 8;

    #[inline(always)]
    unsafe fn part<P: Part>(part: P) -> P::Out {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn run<P: Part>(part: P) -> P::Out {
            // SAFETY: passed on.
            unsafe { part.run::<Avx2>() }
        }
        // SAFETY: passed on.
        unsafe { run(part) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: see the impl.
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F {
        // SAFETY: see the impl; masked lanes are not read, and the second address is formed without a claim on it.
        unsafe {
            Pair(_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p.wrapping_add(8), first(n.saturating_sub(8))))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        // SAFETY: see the impl; lanes from `n` on are not written.
        unsafe {
            store_first(p, v.0, n.min(8));
            store_first(p.wrapping_add(8), v.1, n.saturating_sub(8));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(widen_bf16(p), widen_bf16(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn widen_bf16_pairs(pairs: Self::F) -> (Self::F, Self::F) {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = (split_bf16(pairs.0), split_bf16(pairs.1));
            (Pair(low.0, high.0), Pair(low.1, high.1))
        }
    }
    #[inline(always)]
    unsafe fn load_f8e4m3(p: *const u8) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let halves = f16_of_f8e4m3(_mm_loadu_si128(p.cast()));
            let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            let scale = _mm256_set1_ps(256.0);
            Pair(_mm256_mul_ps(_mm256_cvtph_ps(low), scale), _mm256_mul_ps(_mm256_cvtph_ps(high), scale))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = (_mm_loadu_si64(p.cast()), _mm_loadu_si64(p.add(8).cast()));
            Pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8, shift: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = (low_bytes(shifted(p, shift)), low_bytes(shifted(p.add(32), shift)));
            Pair(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_float_bytes(p: *const u8, shift: usize, mantissa_bits: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(f8_of(p, shift, mantissa_bits), f8_of(p.add(32), shift, mantissa_bits)) }
    }
    #[inline(always)]
    unsafe fn with_nan_of_f8e4m3(p: *const u8, v: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(nan_of(p, v.0), nan_of(p.add(32), v.1)) }
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(p: *const u8, shift: usize, table: &[f32; 16]) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(lookup8(shifted(p, shift), table), lookup8(shifted(p.add(32), shift), table)) }
    }
    #[inline(always)]
    unsafe fn pack_words(integers: &[Self::F], shift: impl Fn(usize) -> usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let mut words = [_mm256_setzero_si256(); 2];
            for (i, integer) in integers.iter().enumerate() {
                let count = _mm_cvtsi32_si128(shift(i) as i32);
                words[0] = _mm256_or_si256(words[0], _mm256_sll_epi32(_mm256_cvtps_epi32(integer.0), count));
                words[1] = _mm256_or_si256(words[1], _mm256_sll_epi32(_mm256_cvtps_epi32(integer.1), count));
            }
            Pair(_mm256_castsi256_ps(words[0]), _mm256_castsi256_ps(words[1]))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            // Words, of which each quarter of a register packs its own.
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1));
            let bytes = _mm256_packs_epi16(words, words);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(bytes));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            // The pack works within 128-bit halves; the permutation puts the quarters in order.
            let packed = _mm256_packus_epi32(round_bf16(v.0), round_bf16(v.1));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn round_bf16_pairs(even: Self::F, odd: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(bf16_pairs(even.0, odd.0), bf16_pairs(even.1, odd.1)) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        // SAFETY: see the impl.
        let sign = unsafe { _mm256_set1_ps(-0.0) };
        let sign = Pair(sign, sign);
        both!(_mm256_andnot_ps, sign, a)
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::F) -> Self::F {
        both!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { Pair(_mm256_round_ps::<MODE>(a.0), _mm256_round_ps::<MODE>(a.1)) }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            Pair(
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn select_nan(a: Self::F, x: Self::F, y: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            Pair(
                _mm256_blendv_ps(y.0, x.0, _mm256_cmp_ps::<_CMP_UNORD_Q>(a.0, a.0)),
                _mm256_blendv_ps(y.1, x.1, _mm256_cmp_ps::<_CMP_UNORD_Q>(a.1, a.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(pow2_of(n.0), pow2_of(n.1)) }
    }
    #[inline(always)]
    unsafe fn bits_from(a: Self::F, shift: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe { Pair(bits_from(a.0, shift), bits_from(a.1, shift)) }
    }
    #[inline(always)]
    unsafe fn unzip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        // Shuffles work within halves of a register, so that two lanes of one alternate with two of the other; the
        // exchange of the middle quarters puts them in order.
        // SAFETY: see the impl.
        unsafe {
            let even = Pair(_mm256_shuffle_ps::<0b10_00_10_00>(a.0, a.1), _mm256_shuffle_ps::<0b10_00_10_00>(b.0, b.1));
            let odd = Pair(_mm256_shuffle_ps::<0b11_01_11_01>(a.0, a.1), _mm256_shuffle_ps::<0b11_01_11_01>(b.0, b.1));
            (in_order(even), in_order(odd))
        }
    }
    #[inline(always)]
    unsafe fn zip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        // SAFETY: see the impl. Unpacking works within halves of a register, which are then put in order.
        unsafe {
            let (l, h) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            let first = Pair(_mm256_permute2f128_ps::<0x20>(l, h), _mm256_permute2f128_ps::<0x31>(l, h));
            let (l, h) = (_mm256_unpacklo_ps(a.1, b.1), _mm256_unpackhi_ps(a.1, b.1));
            (first, Pair(_mm256_permute2f128_ps::<0x20>(l, h), _mm256_permute2f128_ps::<0x31>(l, h)))
        }
    }
    // The trees of the trait's own reductions, in registers.
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe { reduce_add8(_mm256_add_ps(v.0, v.1)) }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(v.0, v.1)) != 0 {
                return f32::NAN;
            }
            reduce_max8(_mm256_max_ps(v.0, v.1))
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES] {
        let mut columns = rows;
        // Four blocks of eight by eight.
        for i in 0..2 {
            for half in 0..2 {
                let mut block = [rows[0].0; 8];
                for (j, row) in block.iter_mut().enumerate() {
                    *row = if half == 0 { rows[8 * i + j].0 } else { rows[8 * i + j].1 };
                }
                // SAFETY: see the impl.
                let block = unsafe { eight_by_eight(block) };
                for (j, column) in block.into_iter().enumerate() {
                    let to = &mut columns[8 * half + j];
                    if i == 0 { to.0 = column } else { to.1 = column }
                }
            }
        }
        columns
    }
}

/// The sum of eight lanes: lane `i` with `i+4`, then 2, 1.
///
/// # Safety
/// The caller has AVX2.
#[inline(always)]
pub(super) unsafe fn reduce_add8(v: __m256) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// The largest of eight lanes, none of which is NaN.
///
/// # Safety
/// The caller has AVX2.
#[inline(always)]
pub(super) unsafe fn reduce_max8(v: __m256) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}

/// Lane `j` of row `i` for lane `i` of row `j`.
#[inline(always)]
unsafe fn eight_by_eight(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller has AVX2.
    unsafe {
        let mut pairs = rows;
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = rows;
        for i in 0..2 {
            for half in 0..2 {
                let (a, b) = (_mm256_castps_pd(pairs[4 * i + half]), _mm256_castps_pd(pairs[4 * i + 2 + half]));
                fours[4 * i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
                fours[4 * i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
            }
        }
        // fours[4i + c] holds, in half h, column 4h + c of rows 4i to 4i + 3.
        let mut columns = rows;
        for c in 0..4 {
            columns[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]);
            columns[4 + c] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]);
        }
        columns
    }
}
