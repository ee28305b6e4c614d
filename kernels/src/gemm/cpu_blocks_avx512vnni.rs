//! The row of block-quantized integers on AVX512-VNNI whose activations are bf16, in block floating point: of each group
//! they are held as integers of 16 bits with one power of two, and their two bytes are multiplied apart.
//!
//! 64 products take two instructions so, and none to look anything up, where cores without quick dot products of bf16 take
//! four, and more to widen weights to f32. But what is far below the largest of its group loses bits that bf16 has: with an
//! activation of 1e4 beside others of 1, whose weights are zero, logits err ten times as much as in bf16. So the row is
//! chosen only where it is preferred by name.

use std::arch::x86_64::*;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::BlockFormat;

use super::cpu_blocks;
use super::cpu_int8::{Dots, x86::Vnni};
use super::groups::{LINE, Products, multiply};
use super::tile::{Left, Reads, Tiles, tiles};
use super::way::{Listed, Way, names};
use super::{Compute, GemmStatic};
use crate::Refusal;
use crate::packed::{PanelKind, blocks};
use crate::rates::predicted;
use crate::simd::{Avx512, Simd};

/// `vpdpbusd`, of each quad twice.
pub(crate) struct WideWay;

impl Listed for WideWay {
    const WAY: Way = Way {
        names: names!("avx512vnni.blocks"),
        arithmetic: cpu_blocks::INT16,
        level: SimdLevel::Avx512Vnni,
        tiles: &WIDE,
        admit,
        rate,
    };
}

/// Refuses what is not multiplied in bf16, and all but integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = cpu_blocks::format(fixed, hardware, level)?;
    if fixed.compute != Compute::Bf16 {
        return Err("holds activations in 16 bits, the problem asks for f32".into());
    }
    if !format.values().is_integer() {
        return Err("multiplies integers only".into());
    }
    Ok(())
}

/// Operations per second and thread, fewer than any other row has: it reaches 1.4 times as many as f32, but is not to be
/// chosen for it.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    predicted::f32_rate(hardware, level) * 0.01
}

/// Six rows take 24 registers for the sums of a group, and leave the sums of all groups in memory.
pub(crate) const WIDE: Tiles =
    Tiles::new(SimdLevel::Avx512, Left::WideQuads, tiles!(groups: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>))
        .cutting_many_into(6);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn groups<const R: usize, const H: usize>(
    panels: PanelKind,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    let format = panels.admitted_blocks();
    // SAFETY: passed on; the number of quads is that of the format.
    unsafe {
        macro_rules! groups {
            ($r:expr, $parts:literal) => {
                match blocks::quads(format.values()).len() {
                    1 => multiply::<_, { $r }, $parts, H, H>(
                        Wide::<1>::of(format),
                        format,
                        reads,
                        a,
                        b,
                        steps,
                        sums,
                        carry,
                    ),
                    _ => multiply::<_, { $r }, $parts, H, H>(
                        Wide::<2>::of(format),
                        format,
                        reads,
                        a,
                        b,
                        steps,
                        sums,
                        carry,
                    ),
                }
            };
        }
        // The sums of eight rows have no registers.
        if R == 8 { groups!(4, 2) } else { groups!(R, 1) }
    }
}

/// Products of the two bytes of int16 with `N` quads of a word.
#[derive(Clone, Copy)]
struct Wide<const N: usize> {
    /// The inverse of what weights are too large by, a power of two.
    inverse_offset: f32,
}

impl<const N: usize> Wide<N> {
    fn of(format: BlockFormat) -> Self {
        Self { inverse_offset: 1.0 / f32::from(blocks::offset(format.values())) }
    }
}

/// The sums of 16 bits, of those of their upper and of their lower bytes. They fit 32 bits: 128 times 255 times 32,639.
#[inline(always)]
unsafe fn joined([upper, lower]: [__m512i; 2]) -> __m512 {
    // SAFETY: passed on.
    unsafe { _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(upper), lower)) }
}

impl<const N: usize, const R: usize, const H: usize> Products<R, H> for Wide<N> {
    type S = Avx512;
    /// Those of upper bytes, and of lower ones.
    type Sums = [[[__m512i; 2]; H]; R];
    const LEFT: Left = Left::WideQuads;
    const STEPS: usize = N;
    const LOADED: usize = N * H + 1;
    const SUMS: usize = 2;
    const LIGHT: bool = false;

    #[inline(always)]
    unsafe fn start(self, header: *const f32, height: usize) -> Self::Sums {
        // SAFETY: passed on; what sums start from stands behind the rows' scales.
        unsafe {
            let mut sums = [[[Vnni::splat(0); 2]; H]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = [starts(header, height, r); H];
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add_line(self, mut sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums {
        let a = a.cast::<i32>();
        // SAFETY: passed on.
        unsafe {
            let mut w = [Vnni::load::<N>(words); H];
            for (h, w) in w.iter_mut().enumerate().skip(1) {
                *w = Vnni::load::<N>(words.add(h * LINE / 2));
            }
            for quad in 0..N {
                for byte in 0..2 {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = *a.add((2 * quad + byte) * height + r);
                        for (s, w) in sums.iter_mut().zip(w) {
                            s[byte] = Vnni::dot(s[byte], w[quad], x);
                        }
                    }
                }
            }
        }
        sums
    }

    /// What is multiplied with weights' scales: `(Σ a·b - zero · Σ a) · scale of a`.
    #[inline(always)]
    unsafe fn finish<const ZEROS: bool>(
        self,
        sums: Self::Sums,
        header: *const f32,
        height: usize,
        zeros: [__m512; H],
    ) -> [[__m512; H]; R] {
        // SAFETY: passed on.
        unsafe {
            let mut scaled = [[Avx512::splat(0.0); H]; R];
            for (r, (scaled, sums)) in scaled.iter_mut().zip(sums).enumerate() {
                // What sums start from is `-offset` times the sum of the row's values.
                let sum = Avx512::mul(joined(starts(header, height, r)), Avx512::splat(self.inverse_offset));
                let scale = Avx512::splat(*header.add(r));
                for (h, (x, s)) in scaled.iter_mut().zip(sums).enumerate() {
                    let s = if ZEROS { Avx512::fma(zeros[h], sum, joined(s)) } else { joined(s) };
                    *x = Avx512::mul(s, scale);
                }
            }
            scaled
        }
    }
}

/// What a row's sums start from.
#[inline(always)]
unsafe fn starts(header: *const f32, height: usize, row: usize) -> [__m512i; 2] {
    // SAFETY: passed on.
    unsafe {
        let starts = header.cast::<i32>().add(height + row);
        [Vnni::splat(*starts), Vnni::splat(*starts.add(height))]
    }
}
