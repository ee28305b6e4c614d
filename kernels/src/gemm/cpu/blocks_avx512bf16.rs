//! The row of block-quantized weights on AVX512-BF16: codes are looked up as bf16, in which all of them are exact, two
//! steps of K at a time, and multiplied by `vdpbf16ps`.

use std::arch::x86_64::*;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{BlockFormat, BlockValues};

use super::codes_bf16::{Bytes, Expanded, Integers, IntegersLessZeros, Nibbles, NibblesLessZeros, Pairs};
use super::groups::{self, Expands, Group, Products, Steps, halves, multiply, multiply_in_twos, unrolled};
use super::pack;
use super::tile::{Block, Expansion, Loop, Packing, Tiles, loops, tiles};
use super::way::{Listed, Way, bf16_blocks, names};
use crate::gemm::GemmStatic;
use crate::packed::PanelKind;
use crate::packed::blocks::LINE;
use crate::rates::predicted;
use crate::simd::{Avx512, LANES};
use crate::{Arithmetic, Refusal};

const DOT: Arithmetic = Arithmetic { name: "gemm.dpbf16-groups", foreign: false, flushes_subnormals: true };

/// `vdpbf16ps`.
pub(crate) struct DotWay;

impl Listed for DotWay {
    const WAY: Way = Way {
        names: names!("avx512bf16.blocks"),
        arithmetic: DOT,
        level: SimdLevel::Avx512Bf16,
        tiles: &DOTS,
        admit,
        rate,
    };
}

/// Refuses what is not multiplied in bf16, values that are no bf16, and floats of a byte where no instruction looks bytes
/// up.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = bf16_blocks(fixed, hardware, level)?;
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
fn rate(hardware: &Hardware, _: SimdLevel) -> f64 {
    predicted::bf16_rate(hardware) * 0.8
}

pub(crate) const DOTS: Tiles =
    Tiles::new(SimdLevel::Avx512, Dots::<Expanded, 1>::PACKING, tiles!(few: <1>, <2>; dot: <4>, <6>, <8>))
        .expanding(Expansion { expand, tiles: tiles!(few_expanded: <1>, <2>; dot_expanded: <4>, <6>, <8>, <12>) });

loops! {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
    few_nibbles<R> => multiply_nibbles_in_twos::<R>;
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
    nibbles<R, V> => multiply_nibbles::<R, V>;
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
    integers<R, V> => multiply_integers::<R, V>;
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx2,fma,f16c")]
    bytes<R, V> => multiply_pairs::<Bytes, 2, R, V>;
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
    expanded<R, V> => multiply_pairs::<Expanded, 1, R, V>;
    few<R> => dot_few::<R>;
    dot<R> => (if halves() { dot_by::<R, 1> as Loop } else { dot_by::<R, 2> });
    few_expanded<R> => expanded::<R, 2>;
    dot_expanded<R> => (if halves() { expanded::<R, 1> as Loop } else { expanded::<R, 2> });
}

/// [`multiply`] with the `N` pairs of a word.
#[inline(always)]
unsafe fn multiply_pairs<P: Pairs, const N: usize, const R: usize, const V: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe { multiply::<_, R, 1, 2, V>(Dots::<P, N>::of(format), format, block) };
}

/// Multiplies pairs of codes of four bits, with or without zero points.
#[inline(always)]
unsafe fn multiply_nibbles<const R: usize, const V: usize>(block: Block) {
    // SAFETY: passed on.
    unsafe {
        match block.panels.admitted_blocks().zero_points() {
            true => multiply_pairs::<NibblesLessZeros, 4, R, V>(block),
            false => multiply_pairs::<Nibbles, 4, R, V>(block),
        }
    }
}

/// Multiplies pairs of integers of a byte, with or without zero points.
#[inline(always)]
unsafe fn multiply_integers<const R: usize, const V: usize>(block: Block) {
    // SAFETY: passed on.
    unsafe {
        match block.panels.admitted_blocks().zero_points() {
            true => multiply_pairs::<IntegersLessZeros, 2, R, V>(block),
            false => multiply_pairs::<Integers, 2, R, V>(block),
        }
    }
}

/// Multiplies one row or two with codes of four bits, two groups at a time: products that wait for those before them would
/// stall. With more rows there are enough others to fill the time; codes of eight bits became slower.
#[inline(always)]
unsafe fn multiply_nibbles_in_twos<const R: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe {
        match format.zero_points() {
            true => multiply_in_twos::<_, R>(Dots::<NibblesLessZeros, 4>::of(format), format, block),
            false => multiply_in_twos::<_, R>(Dots::<Nibbles, 4>::of(format), format, block),
        }
    }
}

/// One row or two.
unsafe fn dot_few<const R: usize>(block: Block) {
    // SAFETY: passed on; floats of a byte were admitted where there is VBMI.
    unsafe {
        match block.panels.admitted_blocks().values() {
            BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => few_nibbles::<R>(block),
            BlockValues::Int8 => integers::<R, 2>(block),
            BlockValues::F8E4M3 | BlockValues::F8E5M2 => bytes::<R, 2>(block),
        }
    }
}

/// Products with `V` vectors of a panel at a time, whose sums have the same bits for any.
unsafe fn dot_by<const R: usize, const V: usize>(block: Block) {
    // SAFETY: passed on; floats of a byte were admitted where there is VBMI.
    unsafe {
        match block.panels.admitted_blocks().values() {
            BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => nibbles::<R, V>(block),
            BlockValues::Int8 => integers::<R, V>(block),
            BlockValues::F8E4M3 | BlockValues::F8E5M2 => bytes::<R, V>(block),
        }
    }
}

/// [`groups::expand`] of a kind of codes, with what looks them up.
macro_rules! expand_by {
    ($name:ident, $pairs:ty, $less_zeros:ty, $count:literal, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(format: BlockFormat, b: *const u8, steps: usize, to: *mut u8) {
            // SAFETY: passed on.
            unsafe {
                match format.zero_points() {
                    true => groups::expand(Dots::<$less_zeros, $count>::of(format), format, b, steps, to),
                    false => groups::expand(Dots::<$pairs, $count>::of(format), format, b, steps, to),
                }
            }
        }
    };
}

expand_by!(expand_nibbles, Nibbles, NibblesLessZeros, 4, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c");
expand_by!(
    expand_integers,
    Integers,
    IntegersLessZeros,
    2,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c"
);
expand_by!(expand_bytes, Bytes, Bytes, 2, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,avx2,fma,f16c");

unsafe fn expand(panels: PanelKind, b: *const u8, steps: usize, to: *mut u8) {
    let format = panels.admitted_blocks();
    // SAFETY: passed on; floats of a byte were admitted where there is VBMI.
    unsafe {
        match format.values() {
            BlockValues::Int4 | BlockValues::F4E2M1 | BlockValues::Nf4 => expand_nibbles(format, b, steps, to),
            BlockValues::Int8 => expand_integers(format, b, steps, to),
            BlockValues::F8E4M3 | BlockValues::F8E5M2 => expand_bytes(format, b, steps, to),
        }
    }
}

/// Products with the `N` pairs that each word becomes.
#[derive(Clone, Copy)]
struct Dots<P, const N: usize>(P);

impl<P: Pairs, const N: usize> Dots<P, N> {
    #[inline(always)]
    unsafe fn of(format: BlockFormat) -> Self {
        // SAFETY: passed on.
        unsafe { Self(P::new(format.values())) }
    }
}

impl<P: Pairs, const N: usize> Steps for Dots<P, N> {
    const PACKING: Packing = pack::pairs::<Avx512>();
    const STEPS: usize = N;
}

/// `vdpbf16ps`.
impl<P: Pairs, const N: usize, const R: usize, const V: usize> Products<R, V> for Dots<P, N> {
    type S = Avx512;
    /// The sums, and the zero points that are subtracted.
    type Sums = ([[__m512; V]; R], [P::Zeros; V]);
    const LOADED: usize = V * N + P::TABLES + V * size_of::<P::Zeros>() / size_of::<__m512>();
    const LIGHT: bool = false;

    #[inline(always)]
    unsafe fn start(self, group: Group) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let mut zeros = [P::zeros(group.zeros); V];
            for v in 1..V {
                zeros[v] = P::zeros(group.zeros.wrapping_add(v * LANES));
            }
            ([[_mm512_setzero_ps(); V]; R], zeros)
        }
    }

    #[inline(always)]
    unsafe fn add_line(
        self,
        (mut sums, zeros): Self::Sums,
        a: *const f32,
        height: usize,
        words: *const u8,
    ) -> Self::Sums {
        let a = a.cast::<i32>();
        // SAFETY: passed on.
        unsafe {
            let mut w = [self.0.load::<N>(words, zeros[0]); V];
            for v in 1..V {
                w[v] = self.0.load::<N>(words.add(v * LINE / 2), zeros[v]);
            }
            unrolled!(I in 0..N of 4 {
                for r in 0..R {
                    let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(*a.add(I * height + r)));
                    for v in 0..V {
                        // The pair comes last: of one vector, the product reads it from memory by itself.
                        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], w[v][I], x);
                    }
                }
            });
        }
        (sums, zeros)
    }

    #[inline(always)]
    unsafe fn finish(self, (sums, _): Self::Sums, _: Group) -> [[__m512; V]; R] {
        sums
    }
}

impl<P: Pairs, const N: usize> Expands for Dots<P, N> {
    #[inline(always)]
    unsafe fn expand_words(self, zeros: *const i8, words: *const u8, to: *mut u8) {
        // SAFETY: passed on.
        unsafe {
            for (i, pairs) in self.0.load::<N>(words, P::zeros(zeros)).into_iter().enumerate() {
                _mm512_storeu_si512(to.add(i * LINE).cast(), std::mem::transmute::<__m512bh, __m512i>(pairs));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use sinew_tensor::DType;

    use super::*;
    use crate::gemm::cpu::groups::tests::{numbers, panel};
    use crate::gemm::cpu::tile::Reads;
    use crate::packed::PANEL;

    /// A tile's sums of some rows, and of three and a half groups of a panel, as it is and expanded, which are added to sums
    /// before them.
    fn sums<const R: usize, const V: usize>(format: BlockFormat, run: Loop) -> Vec<u32> {
        let k = format.group() * 7 / 2;
        let mut next = numbers();
        let panel = panel(format, k, &mut next);
        let kind = PanelKind::Blocks(format);
        let mut value = || u32::from(bf16::from_f32(next() as f32 / 1000.0 - 30.0).to_bits());
        let a: Vec<u32> = (0..DOTS.packing.bytes(kind, k) / 4 * R).map(|_| value() | value() << 16).collect();
        let mut sums: Vec<f32> = (0..R * PANEL).map(|_| next() as f32).collect();
        let mut of_expanded = sums.clone();
        let mut expanded = vec![0u8; DOTS.expansion.expect("there is one").bytes(kind, &DOTS.packing, k)];
        let block = Block {
            panels: kind,
            reads: Reads::Again,
            a: a.as_ptr().cast(),
            b: panel.as_ptr(),
            steps: k / 2,
            sums: sums.as_mut_ptr(),
            carry: true,
        };
        // SAFETY: the machine has the instructions; rows and panel hold the steps, and the expanded panel has room for them.
        unsafe {
            run(block);
            expand(kind, block.b, block.steps, expanded.as_mut_ptr());
            let of_expanded = Block { b: expanded.as_ptr(), sums: of_expanded.as_mut_ptr(), ..block };
            multiply::<_, R, 1, 2, V>(Dots::<_, 1>(Expanded), format, of_expanded);
        }
        sums.into_iter().chain(of_expanded).map(f32::to_bits).collect()
    }

    #[test]
    fn vectors_and_groups_at_a_time_change_no_bit() {
        if !is_x86_feature_detected!("avx512bf16") || !is_x86_feature_detected!("avx512vbmi") {
            return;
        }
        let formats = [
            BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false),
            BlockFormat::new(BlockValues::Int4, 128, DType::BF16, true),
            BlockFormat::new(BlockValues::Int8, 64, DType::F32, false),
            BlockFormat::new(BlockValues::Int8, 32, DType::BF16, true),
            BlockFormat::new(BlockValues::F4E2M1, 32, DType::BF16, false),
        ];
        for format in formats.map(|format| format.expect("a format")) {
            // Whole panels of one row and two take two groups of codes of four bits at once.
            assert_eq!(sums::<1, 1>(format, dot_by::<1, 1>), sums::<1, 2>(format, few::<1>), "1 row of {format:?}");
            assert_eq!(sums::<2, 1>(format, dot_by::<2, 1>), sums::<2, 2>(format, few::<2>), "2 rows of {format:?}");
            let half = [sums::<4, 1>(format, dot_by::<4, 1>), sums::<8, 1>(format, dot_by::<8, 1>)];
            let whole = [sums::<4, 2>(format, dot_by::<4, 2>), sums::<8, 2>(format, dot_by::<8, 2>)];
            assert_eq!(half, whole, "4 and 8 rows of {format:?}");
            let (half, whole) = (sums::<12, 1>(format, dot_by::<12, 1>), sums::<12, 2>(format, dot_by::<12, 2>));
            assert_eq!(half, whole, "12 rows of {format:?}");
        }
    }
}
