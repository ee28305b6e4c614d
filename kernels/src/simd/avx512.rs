//! Sixteen lanes in one AVX-512 register.

use std::arch::x86_64::*;

use sinew_memory::SimdLevel;

use super::avx2::{f16_of_f8e4m3, reduce_add8, reduce_max8};
use super::stored::f8_in_f32;
use super::{LANES, Part, Simd};

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

/// The mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

/// Sixteen words at `p`, shifted right.
#[inline(always)]
unsafe fn shifted(p: *const u8, shift: usize) -> __m512i {
    // SAFETY: the caller has AVX-512 and names the words.
    unsafe { _mm512_srl_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(shift as i32)) }
}

/// Lanes rounded to bf16, each in the upper half of its 32 bits; what stays below is to be dropped.
#[inline(always)]
unsafe fn round_bf16(v: __m512) -> __m512i {
    // By integer arithmetic: `vcvtneps2bf16` would flush subnormals, and need a further extension.
    // SAFETY: the caller has AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v), quiet)
    }
}

// SAFETY: the trait's contract is passed on to each intrinsic: the caller has AVX-512 and names the lanes.
unsafe impl Simd for Avx512 {
    type F = __m512;
    const LEVEL: SimdLevel = SimdLevel::Avx512;
    const FUSED: bool = true;
    const VECTORS: usize = 32;

    #[inline(always)]
    unsafe fn part<P: Part>(part: P) -> P::Out {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn run<P: Part>(part: P) -> P::Out {
            // SAFETY: passed on.
            unsafe { part.run::<Avx512>() }
        }
        // SAFETY: passed on.
        unsafe { run(part) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F {
        // SAFETY: see the impl; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(first(n), p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Self::F, n: usize) {
        // SAFETY: see the impl; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn widen_bf16_pairs(pairs: Self::F) -> (Self::F, Self::F) {
        // SAFETY: see the impl.
        unsafe {
            let both = _mm512_castps_si512(pairs);
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn load_f8e4m3(p: *const u8) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let halves = f16_of_f8e4m3(_mm_loadu_si128(p.cast()));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8, shift: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_and_si512(shifted(p, shift), _mm512_set1_epi32(0xff))) }
    }
    #[inline(always)]
    unsafe fn load_float_bytes(p: *const u8, shift: usize, mantissa_bits: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let (bias, least) = f8_in_f32(mantissa_bits);
            let highest = _mm512_sll_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(24 - shift as i32));
            let placed = _mm512_srl_epi32(highest, _mm_cvtsi32_si128(1 + mantissa_bits as i32));
            let bits = _mm512_and_si512(placed, _mm512_set1_epi32(0x7f << (23 - mantissa_bits)));
            let float = _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(bias as i32)));
            let subnormal = _mm512_fmsub_ps(float, _mm512_set1_ps(2.0), _mm512_set1_ps(least));
            let magnitude = _mm512_castps_si512(_mm512_min_ps(float, subnormal));
            // The magnitude, or the sign.
            let signed = _mm512_ternarylogic_epi32::<0xf8>(magnitude, highest, _mm512_set1_epi32(i32::MIN));
            _mm512_castsi512_ps(signed)
        }
    }
    #[inline(always)]
    unsafe fn with_nan_of_f8e4m3(p: *const u8, v: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let magnitudes = _mm512_and_si512(_mm512_loadu_si512(p.cast()), _mm512_set1_epi8(0x7f));
            let next = _mm512_add_epi8(magnitudes, _mm512_set1_epi8(1));
            let numbers = _mm512_testn_epi32_mask(next, _mm512_set1_epi8(i8::MIN));
            _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), numbers, v)
        }
    }
    #[inline(always)]
    unsafe fn lookup_nibbles(p: *const u8, shift: usize, table: &[f32; 16]) -> Self::F {
        // SAFETY: see the impl. Bits above the four are of no account to the instruction.
        unsafe { _mm512_permutexvar_ps(shifted(p, shift), _mm512_loadu_ps(table.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn pack_words(integers: &[Self::F], shift: impl Fn(usize) -> usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let mut words = _mm512_setzero_si512();
            for (i, &integer) in integers.iter().enumerate() {
                let bits = _mm512_sll_epi32(_mm512_cvtps_epi32(integer), _mm_cvtsi32_si128(shift(i) as i32));
                words = _mm512_or_si512(words, bits);
            }
            _mm512_castsi512_ps(words)
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::F) {
        // SAFETY: see the impl.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(round_bf16(v)))) }
    }
    #[inline(always)]
    unsafe fn round_bf16_pairs(even: Self::F, odd: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let odd = _mm512_and_si512(round_bf16(odd), _mm512_set1_epi32(0xffff_0000_u32 as i32));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32::<16>(round_bf16(even)), odd))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), x) }
    }
    #[inline(always)]
    unsafe fn select_nan(a: Self::F, x: Self::F, y: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), x) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn bits_from(a: Self::F, shift: usize) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_srl_epi32(_mm512_castps_si512(a), _mm_cvtsi32_si128(shift as i32))) }
    }
    #[inline(always)]
    unsafe fn scale_by_pow2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn unzip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        // SAFETY: see the impl. Indices from 16 on name lanes of `b`.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
    }
    #[inline(always)]
    unsafe fn zip(a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        // SAFETY: see the impl. Indices from 16 on name lanes of `b`.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        }
    }
    // The trees of the trait's own reductions, in registers.
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe { reduce_add8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            if _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v) != 0 {
                return f32::NAN;
            }
            reduce_max8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self::F; LANES]) -> [Self::F; LANES] {
        // SAFETY: see the impl.
        unsafe {
            // Pairs of rows, then fours, within each quarter of a register; then quarters are dealt out twice.
            let mut pairs = rows;
            for i in 0..8 {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            let mut fours = rows;
            for i in 0..4 {
                for half in 0..2 {
                    let (a, b) = (_mm512_castps_pd(pairs[4 * i + half]), _mm512_castps_pd(pairs[4 * i + 2 + half]));
                    fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            // fours[4i + c] holds, in quarter q, column 4q + c of rows 4i to 4i + 3.
            let mut columns = rows;
            for c in 0..4 {
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[c], fours[4 + c]);
                let high = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[8 + c], fours[12 + c]);
                columns[c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
                columns[8 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
                let low = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[c], fours[4 + c]);
                let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[8 + c], fours[12 + c]);
                columns[4 + c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
                columns[12 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
            }
            columns
        }
    }
}
