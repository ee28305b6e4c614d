//! The row of fp4 (e2m1) with bf16 activations on AVX2: twice each weight is an integer of four bits and a sign, which
//! `vpmaddwd` multiplies with activations held in 16 bits, as [`int16`](super::int16) does with integers.

use std::arch::x86_64::*;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::BlockValues;

use super::groups::{Steps, multiply};
use super::int8;
use super::quads::{EvenAndOdd, EvenOdd, Quads, Widened};
use super::tile::{Block, Tiles, loops, tiles};
use super::way::{Listed, Way, bf16_blocks, names};
use crate::Refusal;
use crate::gemm::GemmStatic;
use crate::gemm::block_float::INT16_DOUBLED;

/// `vpmaddwd`.
pub(crate) struct DoubledWay;

impl Listed for DoubledWay {
    const WAY: Way =
        Way { names: names!("avx2.fp4"), arithmetic: INT16_DOUBLED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// Refuses what is not multiplied in bf16, and all but fp4: NF4's values are no integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = bf16_blocks(fixed, hardware, level)?;
    if format.values() != BlockValues::F4E2M1 {
        return Err("multiplies fp4 (e2m1) only".into());
    }
    Ok(())
}

/// Operations per second and thread.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    int8::rate(hardware, level)
}

/// Two quads of a word with activations of two bytes.
type Products = Quads<EvenAndOdd<Doubled>, 2, 2>;

/// As of integers: 4 rows of half a panel take 8 of 16 registers.
pub(crate) const AVX2: Tiles = Tiles::new(SimdLevel::Avx2, Products::PACKING, tiles!(groups: <1, 1>, <2, 1>, <4, 1>));

loops! {
    #[target_feature(enable = "avx2,fma,f16c")]
    groups<R, H> => multiply_doubled::<R, H>;
}

/// [`multiply`] by twice the weights.
#[inline(always)]
unsafe fn multiply_doubled<const R: usize, const H: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe { multiply::<_, R, 1, H, H>(Products::of(format), format, block) }
}

/// Twice the weights of fp4, looked up.
#[derive(Clone, Copy)]
struct Doubled;

impl Widened for Doubled {
    const UNIT: f32 = 0.5;

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [EvenOdd; QUADS] {
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
}
