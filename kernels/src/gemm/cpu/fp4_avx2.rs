//! The row of fp4 (e2m1) with bf16 activations on AVX2: twice each weight is an integer of four bits and a sign, which
//! `vpmaddwd` multiplies with activations held in 16 bits, as [`int16`](super::int16) does with integers.

use std::arch::x86_64::*;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::BlockValues;

use super::groups::{Group, multiply};
use super::integers::QuadLayout;
use super::quads::{Dots, EvenAndOdd, Quads, finish_apart};
use super::tile::{Block, Tiles, loops, tiles};
use super::way::{Listed, Way, float_blocks, names};
use super::{int8, pack};
use crate::gemm::GemmStatic;
use crate::gemm::block_float::INT16_DOUBLED;
use crate::simd::{Avx2, Simd};
use crate::{Compute, Refusal};

/// `vpmaddwd`.
pub(crate) struct DoubledWay;

impl Listed for DoubledWay {
    const WAY: Way =
        Way { names: names!("avx2.fp4"), arithmetic: INT16_DOUBLED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// Refuses what is not multiplied in bf16, and all but fp4: NF4's values are no integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = float_blocks(fixed, hardware, level)?;
    if fixed.compute != Compute::Bf16 {
        return Err("holds activations in 16 bits, the problem asks for f32".into());
    }
    if format.values() != BlockValues::F4E2M1 {
        return Err("multiplies fp4 (e2m1) only".into());
    }
    Ok(())
}

/// Operations per second and thread.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    int8::rate(hardware, level)
}

/// As of integers: 4 rows of half a panel take 8 of 16 registers.
pub(crate) const AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, pack::int16_whole::<Avx2>(), tiles!(groups: <1, 1>, <2, 1>, <4, 1>));

loops! {
    #[target_feature(enable = "avx2,fma,f16c")]
    groups<R, H> => multiply_doubled::<R, H>;
}

/// [`multiply`] by twice the weights.
#[inline(always)]
unsafe fn multiply_doubled<const R: usize, const H: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on; a word of fp4 has two quads.
    unsafe { multiply::<_, R, 1, H, H>(Quads::<Doubled, 2, 2>::of(format), format, block) }
}

/// Dot products of twice the weights of fp4, which `load` looks up; the rest is [`EvenAndOdd`].
#[derive(Clone, Copy)]
pub(super) struct Doubled;

impl Dots for Doubled {
    type S = Avx2;
    type Sums = [__m256i; 2];
    type Weights = [[__m256i; 2]; 2];
    const VECTORS: usize = 2;
    const UNIT: f32 = 0.5;
    const LAYOUT: QuadLayout = QuadLayout::Whole;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::splat(x) }
    }

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [Self::Weights; QUADS] {
        const { assert!(QUADS == 2, "a word has eight codes of four bits") };
        // SAFETY: passed on.
        unsafe {
            let table = _mm256_setr_epi8(
                0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4,
                -6, -8, -12,
            );
            let mask = _mm256_set1_epi8(0xf);
            let words = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
            let mut quads = [[[words[0]; 2]; 2]; QUADS];
            for half in 0..2 {
                for quad in 0..2 {
                    let codes = if quad == 0 { words[half] } else { _mm256_srli_epi16::<4>(words[half]) };
                    let bytes = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, mask));
                    let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes));
                    quads[quad][half] = [even, _mm256_srai_epi16::<8>(bytes)];
                }
            }
            quads
        }
    }

    #[inline(always)]
    unsafe fn dot<const WORD: usize>(sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::dot::<WORD>(sums, weights, a) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::Sums, b: Self::Sums) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::sub(a, b) }
    }

    #[inline(always)]
    unsafe fn join(upper: Self::Sums, lower: Self::Sums) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::join(upper, lower) }
    }

    #[inline(always)]
    unsafe fn add_zeros(sums: Self::Sums, zeros: *const i8, x: i32) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::add_zeros(sums, zeros, x) }
    }

    #[inline(always)]
    unsafe fn widen(sums: Self::Sums) -> <Avx2 as Simd>::F {
        // SAFETY: passed on.
        unsafe { EvenAndOdd::widen(sums) }
    }

    finish_apart!(#[target_feature(enable = "avx2,fma,f16c")]);
}
