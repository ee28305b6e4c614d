//! Dot products of AVX512-VNNI.

use std::arch::x86_64::*;

use super::super::groups::Group;
use super::super::integers::QuadLayout;
use super::Quads;
use super::dots::{Dots, finish_apart, in_halves};
use crate::simd::{Avx512, Simd};

/// `vpdpbusd`.
#[derive(Clone, Copy)]
pub struct Vnni;

impl Dots for Vnni {
    type S = Avx512;
    type Sums = __m512i;
    type Weights = __m512i;
    const LAYOUT: QuadLayout = QuadLayout::Bytes;

    #[inline(always)]
    unsafe fn splat(x: i32) -> __m512i {
        // SAFETY: passed on.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [__m512i; QUADS] {
        // SAFETY: passed on.
        unsafe {
            let bytes = _mm512_loadu_si512(p.cast());
            let mut quads = [bytes; QUADS];
            if QUADS == 2 {
                let mask = _mm512_set1_epi8(0xf);
                quads[0] = _mm512_and_si512(bytes, mask);
                quads[1] = _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), mask);
            }
            quads
        }
    }

    #[inline(always)]
    unsafe fn dot<const WORD: usize>(sums: __m512i, weights: __m512i, a: i32) -> __m512i {
        // SAFETY: passed on.
        unsafe { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(a)) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: passed on.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn joined<const BYTES: usize>(sums: [__m512i; BYTES]) -> __m512i {
        // SAFETY: passed on.
        unsafe { if BYTES == 1 { sums[0] } else { _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), sums[BYTES - 1]) } }
    }

    #[inline(always)]
    unsafe fn add_zeros(sums: __m512i, zeros: *const i8, x: i32) -> __m512i {
        // SAFETY: passed on.
        unsafe {
            let zeros = _mm512_cvtepi8_epi32(_mm_loadu_si128(zeros.cast()));
            let zeros = _mm512_mask_blend_epi16(0xaaaa_aaaa, zeros, _mm512_slli_epi32::<24>(zeros));
            _mm512_dpwssd_epi32(sums, zeros, _mm512_set1_epi32(in_halves(x)))
        }
    }

    #[inline(always)]
    unsafe fn widen(sums: __m512i) -> __m512 {
        // SAFETY: passed on.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    finish_apart!(#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]);
}
