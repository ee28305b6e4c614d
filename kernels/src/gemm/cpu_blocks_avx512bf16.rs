//! The row of block-quantized weights on AVX512-BF16: codes are looked up as bf16, in which all of them are exact, two
//! steps of K at a time, and multiplied by `vdpbf16ps`.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use half::bf16;
use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{BlockFormat, BlockValues};

use super::cpu_blocks::{self, less_zeros, table};
use super::groups::{LINE, Products, multiply};
use super::tile::{Expansion, Left, Reads, Tiles, prefetch_ahead, tiles};
use super::{Compute, GemmStatic};
use crate::packed::PanelKind;
use crate::packed::blocks;
use crate::rates::predicted;
use crate::simd::Avx512;
use crate::{Arithmetic, Refusal};

pub(crate) const DOT: Arithmetic = Arithmetic { name: "gemm.dpbf16-groups", foreign: false, flushes_subnormals: true };

/// Refuses what is not multiplied in bf16, values that are no bf16, and floats of a byte where no instruction looks bytes
/// up.
pub(crate) fn admit(fixed: &GemmStatic, hardware: &Hardware) -> Result<(), Refusal> {
    let format = cpu_blocks::admit(fixed, hardware, SimdLevel::Avx512Bf16)?;
    if fixed.compute != Compute::Bf16 {
        return Err("computes in bf16, the problem asks for f32".into());
    }
    if format.values() == BlockValues::Nf4 {
        return Err("multiplies bf16, which NF4's values are not".into());
    }
    let is_looked_up = format.values().bits() == 8 && !format.values().is_integer();
    if is_looked_up && !is_x86_feature_detected!("avx512vbmi") {
        return Err("looks bytes up by AVX512-VBMI".into());
    }
    Ok(())
}

/// Operations per second and thread.
pub(crate) fn rate(hardware: &Hardware) -> f64 {
    predicted::bf16_rate(hardware) * 0.8
}

pub(crate) static DOTS: Tiles = Tiles::new(SimdLevel::Avx512, Left::Pairs, tiles!(dot: <1>, <2>, <4>, <6>, <8>, <12>))
    .expanding(Expansion { step_bytes: LINE, expand, tiles: tiles!(dot_expanded: <1>, <2>, <4>, <6>, <8>, <12>) });

/// The bf16 of every code as panels hold it: of codes of four bits again and again.
fn codes(values: BlockValues) -> &'static [[u8; 256]; 2] {
    static TABLES: LazyLock<[[[u8; 256]; 2]; BlockValues::ALL.len()]> = LazyLock::new(|| {
        BlockValues::ALL
            .map(|values| [0, 1].map(|byte| table(values).map(|value| bf16::from_f32(value).to_le_bytes()[byte])))
    });
    &TABLES[values as usize]
}

/// How a line of sixteen words becomes pairs of bf16.
trait Pairs: Copy {
    /// Pairs of a word.
    const COUNT: usize;
    /// Registers of what looks them up.
    const TABLES: usize;
    unsafe fn new(values: BlockValues) -> Self;
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N];
}

/// Four bits choose among sixteen words; the table is there twice, so that a fifth is of no account.
#[derive(Clone, Copy)]
struct Nibbles(__m512i);

impl Pairs for Nibbles {
    const COUNT: usize = 4;
    const TABLES: usize = 1;

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        let both: [u16; 32] = std::array::from_fn(|i| u16::from_le_bytes([low[i % 16], high[i % 16]]));
        // SAFETY: the caller has AVX-512, and the array is a register.
        unsafe { Self(_mm512_loadu_si512(both.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
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

/// The low and the high bytes of bf16, each in four registers.
#[derive(Clone, Copy)]
struct Bytes([[__m512i; 4]; 2]);

impl Pairs for Bytes {
    const COUNT: usize = 2;
    const TABLES: usize = 8;

    #[inline(always)]
    unsafe fn new(values: BlockValues) -> Self {
        let [low, high] = codes(values);
        // SAFETY: the caller has AVX-512, and a table is four registers.
        unsafe { Self(std::mem::transmute_copy(&[*low, *high])) }
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
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
struct Integers;

impl Pairs for Integers {
    const COUNT: usize = 2;
    const TABLES: usize = 4;

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
        /// 2^23 and 2^15: the lowest byte of the one's bits counts ones, as does the second of the other's.
        const POWERS: [f32; 2] = [8_388_608.0, 32_768.0];
        debug_assert_eq!(N, Self::COUNT);
        // SAFETY: the caller has AVX-512 and names sixteen words.
        unsafe {
            let even = _mm512_loadu_si512(p.cast());
            let steps = [even, _mm512_srli_epi32::<16>(even)];
            let mut pairs = [even; N];
            for (byte, (pair, power)) in pairs.iter_mut().zip(POWERS).enumerate() {
                let (mask, bits) = (_mm512_set1_epi32(0xff << (8 * byte)), _mm512_set1_epi32(power.to_bits() as i32));
                let taken = _mm512_set1_ps(power + f32::from(blocks::offset(BlockValues::Int8)));
                let mut floats = steps;
                for float in &mut floats {
                    let sum = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(*float, mask, bits));
                    *float = _mm512_castps_si512(_mm512_sub_ps(sum, taken));
                }
                *pair = _mm512_or_si512(_mm512_srli_epi32::<16>(floats[0]), floats[1]);
            }
            std::mem::transmute_copy(&pairs)
        }
    }
}

/// Pairs in their place.
#[derive(Clone, Copy)]
struct Expanded;

impl Pairs for Expanded {
    const COUNT: usize = 1;
    const TABLES: usize = 0;

    #[inline(always)]
    unsafe fn new(_: BlockValues) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn load<const N: usize>(&self, p: *const u8) -> [__m512bh; N] {
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

/// [`groups`] and [`expand_pairs`] of a kind of codes, with what looks them up.
macro_rules! pairs_by {
    ($name:ident, $pairs:ty, $features:literal) => {
        mod $name {
            use super::*;

            #[target_feature(enable = $features)]
            pub unsafe fn groups<const R: usize>(
                format: BlockFormat,
                reads: Reads,
                a: *const u8,
                b: *const u8,
                steps: usize,
                sums: *mut f32,
                carry: bool,
            ) {
                // SAFETY: passed on.
                unsafe {
                    let dots = Dots::<_, { <$pairs>::COUNT }>(<$pairs>::new(format.values()));
                    multiply::<_, R, 1, 2>(dots, format, reads, a, b, steps, sums, carry);
                }
            }

            #[target_feature(enable = $features)]
            pub unsafe fn expand(format: BlockFormat, b: *const u8, steps: usize, to: *mut u8) {
                // SAFETY: passed on.
                unsafe { expand_pairs::<$pairs, { <$pairs>::COUNT }>(format, b, steps, to) }
            }
        }
    };
}

pairs_by!(nibbles, Nibbles, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c");
pairs_by!(integers, Integers, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c");
pairs_by!(bytes, Bytes, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx2,fma,f16c");

unsafe fn dot<const R: usize>(
    panels: PanelKind,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    let format = panels.admitted_blocks();
    // SAFETY: passed on; the codes are the format's, and floats of a byte were admitted where there is VBMI.
    unsafe {
        match format.values() {
            BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => {
                nibbles::groups::<R>(format, reads, a, b, steps, sums, carry)
            }
            BlockValues::Int8 => integers::groups::<R>(format, reads, a, b, steps, sums, carry),
            BlockValues::F8E4M3 | BlockValues::F8E5M2 => bytes::groups::<R>(format, reads, a, b, steps, sums, carry),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn dot_expanded<const R: usize>(
    panels: PanelKind,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    let format = panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe { multiply::<_, R, 1, 2>(Dots::<_, 1>(Expanded), format, reads, a, b, steps, sums, carry) };
}

unsafe fn expand(panels: PanelKind, b: *const u8, steps: usize, to: *mut u8) {
    let format = panels.admitted_blocks();
    // SAFETY: as for `dot`.
    unsafe {
        match format.values() {
            BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => nibbles::expand(format, b, steps, to),
            BlockValues::Int8 => integers::expand(format, b, steps, to),
            BlockValues::F8E4M3 | BlockValues::F8E5M2 => bytes::expand(format, b, steps, to),
        }
    }
}

/// Writes a block of a panel with pairs of bf16 in place of words.
///
/// # Safety
/// That of [`Expand`](super::tile::Expand).
#[inline(always)]
unsafe fn expand_pairs<P: Pairs, const N: usize>(format: BlockFormat, b: *const u8, steps: usize, to: *mut u8) {
    let (header, group) = (blocks::header_bytes(format), format.group() / 2);
    let (mut b, mut to) = (b, to);
    // SAFETY: passed on.
    unsafe {
        let codes = P::new(format.values());
        for done in (0..steps).step_by(group) {
            let here = (steps - done).min(group);
            to.copy_from_nonoverlapping(b, header);
            (b, to) = (b.add(header), to.add(header));
            for _ in 0..here / N {
                for half in 0..2 {
                    prefetch_ahead(b.wrapping_add(half * LINE / 2), LINE / 2, Reads::Again, false);
                    for (i, pairs) in codes.load::<N>(b.add(half * LINE / 2)).into_iter().enumerate() {
                        let pairs: __m512i = std::mem::transmute(pairs);
                        _mm512_storeu_si512(to.add(i * LINE + half * LINE / 2).cast(), pairs);
                    }
                }
                (b, to) = (b.add(LINE), to.add(N * LINE));
            }
        }
    }
}

/// `vdpbf16ps`.
impl<P: Pairs, const N: usize, const R: usize> Products<R, 2> for Dots<P, N> {
    type S = Avx512;
    type Sums = [[__m512; 2]; R];
    const LEFT: Left = Left::Pairs;
    const STEPS: usize = N;
    const LOADED: usize = 2 * N + P::TABLES;
    const LIGHT: bool = false;

    #[inline(always)]
    unsafe fn start(self, _: *const f32, _: usize) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { [[_mm512_setzero_ps(); 2]; R] }
    }

    #[inline(always)]
    unsafe fn add_line(self, mut sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums {
        let a = a.cast::<i32>();
        // SAFETY: passed on.
        unsafe {
            let (low, high) = (self.0.load::<N>(words), self.0.load::<N>(words.add(LINE / 2)));
            for i in 0..N {
                for (r, s) in sums.iter_mut().enumerate() {
                    let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(*a.add(i * height + r)));
                    s[0] = _mm512_dpbf16_ps(s[0], x, low[i]);
                    s[1] = _mm512_dpbf16_ps(s[1], x, high[i]);
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn finish<const ZEROS: bool>(
        self,
        sums: Self::Sums,
        header: *const f32,
        _: usize,
        zeros: [__m512; 2],
    ) -> Self::Sums {
        // SAFETY: passed on.
        unsafe { less_zeros::<Avx512, ZEROS, R, 2>(sums, header, zeros) }
    }
}

/// Products with the `N` pairs that each word becomes.
#[derive(Clone, Copy)]
struct Dots<P, const N: usize>(P);
