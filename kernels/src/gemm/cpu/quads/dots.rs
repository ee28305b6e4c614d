//! Products of four weights of a byte with four activations, by the instructions of a level.

use super::super::groups::Group;
use super::super::integers::QuadLayout;
use super::Quads;
use crate::simd::{LANES, Portable, Simd};

/// Integer sums of sixteen outputs.
pub(in crate::gemm::cpu) trait Dots: Copy {
    type S: Simd;
    type Sums: Copy;
    /// Four weights of each output.
    type Weights: Copy;
    /// Vectors of [`Simd`] that they take.
    const VECTORS: usize = 1;
    /// What a weight of 1 stands for: a power of two.
    const UNIT: f32 = 1.0;
    /// How activations come.
    const LAYOUT: QuadLayout;
    /// All sums `x`.
    unsafe fn splat(x: i32) -> Self::Sums;
    /// Four weights of sixteen outputs: the bytes of their words, or the lower and then the upper halves of these.
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [Self::Weights; QUADS];
    /// The sums, and to each the products of its weights with the word `WORD` of a step of activations.
    unsafe fn dot<const WORD: usize>(sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums;
    /// `a - b`.
    unsafe fn sub(a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// The sums of whole values, of those of their bytes: of two, `256 · upper + lower`.
    unsafe fn joined<const BYTES: usize>(sums: [Self::Sums; BYTES]) -> Self::Sums;
    /// Adds `x`, of at most 23 bits and a sign, times each output's zero point to its sum.
    unsafe fn add_zeros(sums: Self::Sums, zeros: *const i8, x: i32) -> Self::Sums;
    /// As f32.
    unsafe fn widen(sums: Self::Sums) -> <Self::S as Simd>::F;
    /// Calls [`Quads::finish_apart`], which is rare, and whose loops leave the sums of what is around it no registers.
    unsafe fn finish_apart<const N: usize, const BYTES: usize>(
        quads: Quads<Self, N, BYTES>,
        group: Group,
        vectors: usize,
        sums: &mut [[Self::Sums; BYTES]],
        to: &mut [<Self::S as Simd>::F],
    );
}

/// `finish_apart` of [`Dots`], at a level.
macro_rules! finish_apart {
    ($(#[$level:meta])?) => {
        #[cold]
        #[inline(never)]
        $(#[$level])?
        unsafe fn finish_apart<const N: usize, const BYTES: usize>(
            quads: Quads<Self, N, BYTES>,
            group: Group,
            vectors: usize,
            sums: &mut [[Self::Sums; BYTES]],
            to: &mut [<Self::S as Simd>::F],
        ) {
            // SAFETY: passed on.
            unsafe { quads.finish_apart(group, vectors, sums, to) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use finish_apart;

/// Splits an integer of at most 23 bits and a sign into two halves of a word, its low byte and the rest: `z` times the first
/// plus `256 · z` times the second is `z` times the integer, by one `vpmaddwd`.
#[cfg(target_arch = "x86_64")]
pub(super) fn in_halves(x: i32) -> i32 {
    (x & 0xff) | (x >> 8) << 16
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub struct Plain;

impl Dots for Plain {
    type S = Portable;
    type Sums = [i32; LANES];
    type Weights = [u8; 4 * LANES];
    const LAYOUT: QuadLayout = QuadLayout::Bytes;

    #[inline(always)]
    unsafe fn splat(x: i32) -> Self::Sums {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [Self::Weights; QUADS] {
        // SAFETY: passed on.
        let bytes = unsafe { p.cast::<Self::Weights>().read() };
        if QUADS == 1 { [bytes; QUADS] } else { std::array::from_fn(|i| bytes.map(|byte| byte >> (4 * i) & 0xf)) }
    }

    #[inline(always)]
    unsafe fn dot<const WORD: usize>(mut sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums {
        let a = a.to_le_bytes().map(|byte| i32::from(byte as i8));
        for (sum, four) in sums.iter_mut().zip(weights.chunks_exact(4)) {
            *sum += four.iter().zip(a).map(|(&weight, a)| i32::from(weight) * a).sum::<i32>();
        }
        sums
    }

    #[inline(always)]
    unsafe fn sub(a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn joined<const BYTES: usize>(sums: [Self::Sums; BYTES]) -> Self::Sums {
        if BYTES == 1 { sums[0] } else { std::array::from_fn(|i| 256 * sums[0][i] + sums[BYTES - 1][i]) }
    }

    #[inline(always)]
    unsafe fn add_zeros(sums: Self::Sums, zeros: *const i8, x: i32) -> Self::Sums {
        // SAFETY: passed on.
        let zeros = unsafe { zeros.cast::<[i8; LANES]>().read() };
        std::array::from_fn(|i| sums[i] + i32::from(zeros[i]) * x)
    }

    #[inline(always)]
    unsafe fn widen(sums: Self::Sums) -> <Portable as Simd>::F {
        let sums = sums.map(|sum| sum as f32);
        // SAFETY: sixteen values.
        unsafe { Portable::load(sums.as_ptr()) }
    }

    finish_apart!();
}
