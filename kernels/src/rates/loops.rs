//! Loops of arithmetic on registers only, which are timed to learn its rates.

use crate::simd::Simd;

/// Independent sums of a loop, which are to cover the latency of two pipelines: as many as leave registers for the
/// factors, of the 32 of AVX-512, and of the 16 of others, whose vectors take two and more each.
pub(super) const SUMS: usize = 24;
pub(super) const FEW_SUMS: usize = 6;

/// Rounds of multiply-adds to `N` sums of sixteen lanes each.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn multiply_adds<S: Simd, const N: usize>(rounds: usize) {
    // SAFETY: passed on; no memory is touched but the black box's own.
    unsafe {
        let (a, b) = (S::splat(std::hint::black_box(1.0)), S::splat(std::hint::black_box(1e-9)));
        let mut sums = [S::splat(0.0); N];
        // Sums that the compiler must take for different ones.
        for (sum, start) in sums.iter_mut().zip(std::hint::black_box([0.0f32; N])) {
            *sum = S::splat(start);
        }
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fma(a, b, *sum);
            }
        }
        for sum in sums {
            std::hint::black_box(S::reduce_add(sum));
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::SUMS;

    /// int8 dot products: four multiply-adds to each of sixteen lanes.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn int8_dots(rounds: usize) {
        let (a, b) = (std::hint::black_box(1), std::hint::black_box(1));
        let (a, b) = (_mm512_set1_epi8(a), _mm512_set1_epi8(b));
        let mut sums = std::hint::black_box([0; SUMS]).map(|start| _mm512_set1_epi32(start));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        for sum in sums {
            std::hint::black_box(_mm512_reduce_add_epi32(sum));
        }
    }

    /// bf16 dot products: two multiply-adds to each of sixteen lanes.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn bf16_dots(rounds: usize) {
        let pairs = _mm512_set1_epi32(std::hint::black_box(0x3c00_3c00));
        // SAFETY: sixteen pairs of bf16 and sixteen i32 are the same 64 bytes, and every bit pattern is a value.
        let x: __m512bh = unsafe { std::mem::transmute(pairs) };
        let mut sums = std::hint::black_box([0.0f32; SUMS]).map(|start| _mm512_set1_ps(start));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, x);
            }
        }
        for sum in sums {
            std::hint::black_box(_mm512_reduce_add_ps(sum));
        }
    }
}
