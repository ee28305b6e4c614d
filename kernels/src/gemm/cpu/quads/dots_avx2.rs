//! Dot products of AVX2.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::groups::Group;
use super::super::integers::QuadLayout;
use super::Quads;
use super::dots::{Dots, finish_apart, in_halves};
use crate::simd::{Avx2, LANES, Simd};

/// Weights of 16 bits of each half of sixteen outputs: at even bytes of their words, and at odd ones.
pub(in crate::gemm::cpu) type EvenOdd = [[__m256i; 2]; 2];

/// Widens bytes of weights to 16 bits.
pub(in crate::gemm::cpu) trait Widened: Copy {
    /// [`Dots::UNIT`].
    const UNIT: f32;
    /// [`Dots::load`].
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [EvenOdd; QUADS];
}

/// Integers, as panels hold them.
#[derive(Clone, Copy)]
pub(in crate::gemm::cpu) struct Unsigned;

impl Widened for Unsigned {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [EvenOdd; QUADS] {
        // SAFETY: passed on.
        unsafe {
            let words = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
            let mask = _mm256_set1_epi16(if QUADS == 2 { 0xf } else { 0xff });
            let mut quads = [[[words[0]; 2]; 2]; QUADS];
            for (half, words) in words.into_iter().enumerate() {
                for (quad, weights) in quads.iter_mut().enumerate() {
                    for (odd, weights) in weights[half].iter_mut().enumerate() {
                        let above = _mm256_srl_epi16(words, _mm_cvtsi32_si128((8 * odd + 4 * quad) as i32));
                        // Of the highest nothing is left to mask.
                        *weights = if odd == 1 && quad == QUADS - 1 { above } else { _mm256_and_si256(above, mask) };
                    }
                }
            }
            quads
        }
    }
}

/// Products of 16 bits, since AVX2's own of bytes saturate: those of the even bytes, and those of the odd ones. Activations of
/// one byte and of two are whole values, and take as many.
#[derive(Clone, Copy)]
pub(in crate::gemm::cpu) struct EvenAndOdd<W = Unsigned>(PhantomData<W>);

impl<W: Widened> Dots for EvenAndOdd<W> {
    type S = Avx2;
    type Sums = [__m256i; 2];
    type Weights = EvenOdd;
    const VECTORS: usize = 2;
    const UNIT: f32 = W::UNIT;
    const LAYOUT: QuadLayout = QuadLayout::Whole;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [EvenOdd; QUADS] {
        // SAFETY: passed on.
        unsafe { W::load(p) }
    }

    #[inline(always)]
    unsafe fn dot<const WORD: usize>(mut sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let a = _mm256_set1_epi32(a);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = add_now(*sum, _mm256_madd_epi16(weights[WORD], a));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::Sums, b: Self::Sums) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn joined<const BYTES: usize>(sums: [Self::Sums; BYTES]) -> Self::Sums {
        sums[0]
    }

    #[inline(always)]
    unsafe fn add_zeros(sums: Self::Sums, zeros: *const i8, x: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let x = _mm256_set1_epi32(in_halves(x));
            let products = [zeros, zeros.add(8)].map(|p| {
                let zeros = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
                _mm256_madd_epi16(_mm256_blend_epi16::<0xaa>(zeros, _mm256_slli_epi32::<24>(zeros)), x)
            });
            [_mm256_add_epi32(sums[0], products[0]), _mm256_add_epi32(sums[1], products[1])]
        }
    }

    #[inline(always)]
    unsafe fn widen(sums: Self::Sums) -> <Avx2 as Simd>::F {
        // SAFETY: sixteen values.
        unsafe {
            let mut values = [0.0f32; LANES];
            for (values, sums) in values.chunks_exact_mut(8).zip(sums) {
                _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtepi32_ps(sums));
            }
            Avx2::load(values.as_ptr())
        }
    }

    finish_apart!(#[target_feature(enable = "avx2,fma,f16c")]);
}

/// Adds `a + b` by an instruction that the compiler cannot reassociate. It would add products of several steps to each other
/// first, and spill the sums.
#[inline]
#[target_feature(enable = "avx2")]
fn add_now(mut a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: registers are all that is touched.
    unsafe {
        asm!(
            "vpaddd {a}, {a}, {b}",
            a = inout(ymm_reg) a,
            b = in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    a
}
