//! Rows of int8 activations and weights of 4 or 8 bits: products of whole groups of K are exact, and one chain of
//! multiply-adds takes them with their scales.

use std::marker::PhantomData;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::BlockFormat;

use super::groups::{self, LINE, Products, multiply};
use super::tile::{Left, Reads, Tiles, tiles};
use super::way::{Listed, Way, names};
use super::{Compute, GemmStatic};
use crate::cpu::leveled::needs;
use crate::packed::PanelKind;
use crate::packed::blocks;
use crate::rates::predicted;
use crate::simd::{LANES, Portable, Simd};
use crate::{Arithmetic, Refusal};

const MUL_ADD: Arithmetic = Arithmetic::named("gemm.int8-groups.mul-add");
#[cfg(target_arch = "x86_64")]
const FUSED: Arithmetic = Arithmetic::named("gemm.int8-groups");

/// Operations per second and thread of a level's tiles: as many as in the time of one of f32 arithmetic (measured on
/// Zen 5: four products of VNNI are one instruction, while AVX2 multiplies even bytes and odd ones apart in 16 bits).
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let ratio = match level {
        SimdLevel::Portable => 0.3,
        SimdLevel::Avx2 | SimdLevel::Avx512 => 1.0,
        SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 2.8,
    };
    predicted::f32_rate(hardware, level) * ratio
}

/// Refuses machines below a level, and all but integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind().and_then(PanelKind::blocks) {
        Some(format) if fixed.compute == Compute::Int8 && format.values().is_integer() => Ok(()),
        _ => Err("multiplies integers only, in a problem that asks for it".into()),
    }
}

/// Products of int8, one by one.
pub(crate) struct PortableWay;

impl Listed for PortableWay {
    const WAY: Way = Way {
        names: names!("portable.int8"),
        arithmetic: MUL_ADD,
        level: SimdLevel::Portable,
        tiles: &PORTABLE,
        admit,
        rate,
    };
}

pub(crate) const PORTABLE: Tiles =
    Tiles::new(SimdLevel::Portable, Left::Quads, tiles!(groups_portable: <1, 1>, <2, 1>, <4, 1>));

/// [`multiply`] by some products, with their instructions.
macro_rules! groups_by {
    ($name:ident, $dots:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<const R: usize, const H: usize>(
            panels: PanelKind,
            reads: Reads,
            a: *const u8,
            b: *const u8,
            steps: usize,
            sums: *mut f32,
            carry: bool,
        ) {
            let format = panels.admitted_blocks();
            // Eight rows, four at a time, keep the sums of all groups in registers. Words are unpacked twice for it, which only
            // pays where groups are short and end often; zero points would take the registers.
            let parted = R == 8 && format.group() <= 32 && !format.zero_points();
            // SAFETY: passed on; the number of quads is that of the format.
            unsafe {
                macro_rules! groups {
                    ($r:expr, $parts:literal, $v:expr) => {
                        match blocks::quads(format.values()).len() {
                            1 => multiply::<_, { $r }, $parts, H, { $v }>(Quads::<$dots, 1>::of(format), format, reads, a, b, steps, sums, carry),
                            _ => multiply::<_, { $r }, $parts, H, { $v }>(Quads::<$dots, 2>::of(format), format, reads, a, b, steps, sums, carry),
                        }
                    };
                }
                if parted {
                    groups!(4, 2, H)
                } else if R == 8 && format.zero_points() && groups::halves::<R, H>() {
                    groups!(R, 1, 1)
                } else {
                    groups!(R, 1, H)
                }
            }
        }
    };
}

groups_by!(groups_portable, Plain);

/// Integer sums of sixteen outputs.
pub(super) trait Dots: Copy {
    type S: Simd;
    type Sums: Copy;
    /// Four weights of each output.
    type Weights: Copy;
    /// All sums `x`.
    unsafe fn splat(x: i32) -> Self::Sums;
    /// Four weights of sixteen outputs: the bytes of their words, or the lower and then the upper halves of these.
    unsafe fn load<const QUADS: usize>(p: *const u8) -> [Self::Weights; QUADS];
    /// The sums, and four products to each: of its weights, and of the bytes of `a`.
    unsafe fn dot(sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums;
    /// As f32: they are below 2^24.
    unsafe fn widen(sums: Self::Sums) -> <Self::S as Simd>::F;
}

/// Plain Rust.
#[derive(Clone, Copy)]
struct Plain;

impl Dots for Plain {
    type S = Portable;
    type Sums = [i32; LANES];
    type Weights = [u8; 4 * LANES];

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
    unsafe fn dot(mut sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums {
        let a = a.to_le_bytes().map(|byte| i32::from(byte as i8));
        for (sum, four) in sums.iter_mut().zip(weights.chunks_exact(4)) {
            *sum += four.iter().zip(a).map(|(&weight, a)| i32::from(weight) * a).sum::<i32>();
        }
        sums
    }

    #[inline(always)]
    unsafe fn widen(sums: Self::Sums) -> <Portable as Simd>::F {
        let sums = sums.map(|sum| sum as f32);
        // SAFETY: sixteen values.
        unsafe { Portable::load(sums.as_ptr()) }
    }
}

/// Products of quads.
#[derive(Clone, Copy)]
struct Quads<D, const N: usize> {
    /// The inverse of what weights are too large by, a power of two.
    inverse_offset: f32,
    dots: PhantomData<D>,
}

impl<D, const N: usize> Quads<D, N> {
    fn of(format: BlockFormat) -> Self {
        Self { inverse_offset: 1.0 / f32::from(blocks::offset(format.values())), dots: PhantomData }
    }
}

impl<D: Dots, const N: usize, const R: usize, const H: usize> Products<R, H> for Quads<D, N> {
    type S = D::S;
    type Sums = [[D::Sums; H]; R];
    const LEFT: Left = Left::Quads;
    const STEPS: usize = N;
    const LOADED: usize = N * H + 1;
    const LIGHT: bool = N == 1;

    #[inline(always)]
    unsafe fn start(self, header: *const f32, height: usize) -> Self::Sums {
        // SAFETY: passed on; what sums start from stands behind the rows' scales.
        unsafe {
            let mut sums = [[D::splat(0); H]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = [D::splat(*header.cast::<i32>().add(height + r)); H];
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add_line(self, mut sums: Self::Sums, a: *const f32, height: usize, words: *const u8) -> Self::Sums {
        // SAFETY: passed on.
        unsafe {
            let mut w = [D::load::<N>(words); H];
            for (h, w) in w.iter_mut().enumerate() {
                *w = D::load::<N>(words.add(h * LINE / 2));
            }
            for quad in 0..N {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = *a.cast::<i32>().add(quad * height + r);
                    for (s, w) in sums.iter_mut().zip(w) {
                        *s = D::dot(*s, w[quad], x);
                    }
                }
            }
        }
        sums
    }

    /// What is multiplied with weights' scales: `(Σ a·b - zero · Σ a) · scale of a`, in brackets an integer and exact.
    #[inline(always)]
    unsafe fn finish<const ZEROS: bool>(
        self,
        sums: Self::Sums,
        header: *const f32,
        height: usize,
        zeros: [<D::S as Simd>::F; H],
    ) -> [[<D::S as Simd>::F; H]; R] {
        // SAFETY: passed on.
        unsafe {
            let mut exact = [[D::S::splat(0.0); H]; R];
            for (r, (exact, sums)) in exact.iter_mut().zip(sums).enumerate() {
                // What sums start from is `-offset` times the sum of the row's values.
                let start = D::widen(D::splat(*header.cast::<i32>().add(height + r)));
                let sum = D::S::mul(start, D::S::splat(self.inverse_offset));
                // The row's scale first: the two scales' product may be too large where the sum is not.
                let scale = D::S::splat(*header.add(r));
                for (h, (x, s)) in exact.iter_mut().zip(sums).enumerate() {
                    let s = if ZEROS { D::S::fma(zeros[h], sum, D::widen(s)) } else { D::widen(s) };
                    *x = D::S::mul(s, scale);
                }
            }
            exact
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::{Avx2, Avx512};

    /// Four products in an instruction.
    pub(crate) struct VnniWay;

    impl Listed for VnniWay {
        const WAY: Way = Way {
            names: names!("avx512vnni.int8"),
            arithmetic: FUSED,
            level: SimdLevel::Avx512Vnni,
            tiles: &VNNI,
            admit,
            rate,
        };
    }

    /// 6 rows keep the sums of all groups in registers, beside those of the group: a third faster than 12 rows of groups of 32
    /// on Zen 5. For seven or eight rows a panel is read once only.
    pub const VNNI: Tiles =
        Tiles::new(SimdLevel::Avx512, Left::Quads, tiles!(groups_vnni: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>))
            .cutting_many_into(6);

    /// Products in 16 bits, of even bytes and of odd ones.
    pub(crate) struct Avx2Way;

    impl Listed for Avx2Way {
        const WAY: Way =
            Way { names: names!("avx2.int8"), arithmetic: FUSED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
    }

    /// 4 rows of half a panel take 8 of 16 registers, its weights four.
    pub const AVX2: Tiles = Tiles::new(SimdLevel::Avx2, Left::Quads, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>));

    groups_by!(groups_vnni, Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
    groups_by!(groups_avx2, EvenAndOdd, "avx2,fma,f16c");

    /// `vpdpbusd`.
    #[derive(Clone, Copy)]
    pub struct Vnni;

    impl Dots for Vnni {
        type S = Avx512;
        type Sums = __m512i;
        type Weights = __m512i;

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
        unsafe fn dot(sums: __m512i, weights: __m512i, a: i32) -> __m512i {
            // SAFETY: passed on.
            unsafe { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(a)) }
        }

        #[inline(always)]
        unsafe fn widen(sums: __m512i) -> __m512 {
            // SAFETY: passed on.
            unsafe { _mm512_cvtepi32_ps(sums) }
        }
    }

    /// Even bytes, and odd ones.
    #[inline(always)]
    unsafe fn even_and_odd(bytes: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller has AVX2.
        unsafe { [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)] }
    }

    /// Products of 16 bits, since AVX2's own of bytes saturate: those of the even bytes, and those of the odd ones.
    #[derive(Clone, Copy)]
    struct EvenAndOdd;

    impl Dots for EvenAndOdd {
        type S = Avx2;
        type Sums = [__m256i; 2];
        type Weights = [[__m256i; 2]; 2];

        #[inline(always)]
        unsafe fn splat(x: i32) -> Self::Sums {
            // SAFETY: passed on.
            unsafe { [_mm256_set1_epi32(x); 2] }
        }

        #[inline(always)]
        unsafe fn load<const QUADS: usize>(p: *const u8) -> [Self::Weights; QUADS] {
            // SAFETY: passed on.
            unsafe {
                let words = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
                let mut quads = [[even_and_odd(words[0]), even_and_odd(words[1])]; QUADS];
                if QUADS == 2 {
                    let mask = _mm256_set1_epi8(0xf);
                    for (half, words) in words.into_iter().enumerate() {
                        quads[0][half] = even_and_odd(_mm256_and_si256(words, mask));
                        quads[1][half] = even_and_odd(_mm256_and_si256(_mm256_srli_epi32::<4>(words), mask));
                    }
                }
                quads
            }
        }

        #[inline(always)]
        unsafe fn dot(sums: Self::Sums, weights: Self::Weights, a: i32) -> Self::Sums {
            // SAFETY: passed on.
            unsafe {
                let a = _mm256_set1_epi32(a);
                let (even, odd) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)), _mm256_srai_epi16::<8>(a));
                let mut sums = sums;
                for (sum, [low, high]) in sums.iter_mut().zip(weights) {
                    let both = _mm256_add_epi32(_mm256_madd_epi16(low, even), _mm256_madd_epi16(high, odd));
                    *sum = _mm256_add_epi32(*sum, both);
                }
                sums
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
    }
}

#[cfg(test)]
mod tests {
    use sinew_tensor::{BlockValues, DType};

    use super::*;
    use crate::gemm::groups::tests::{numbers, panel};
    use crate::packed::PANEL;

    /// Sums of eight rows and of two and a half groups of a panel with zero points, `V` vectors at a time.
    fn sums<const N: usize, const V: usize>(format: BlockFormat) -> Vec<u32> {
        const ROWS: usize = 8;
        let k = format.group() * 5 / 2;
        let mut next = numbers();
        let panel = panel(format, k, &mut next);
        // Of each group the rows' scales and what their sums start from, and quads.
        let mut a: Vec<u32> = Vec::new();
        for first in (0..k).step_by(format.group()) {
            a.extend((0..ROWS).map(|_| (next() as f32 / 1e4 + 0.1).to_bits()));
            a.extend((0..ROWS).map(|_| next() & 0xfff));
            a.extend((0..(k - first).min(format.group()) / 4 * ROWS).map(|_| next() << 16 | next()));
        }
        let mut sums: Vec<f32> = (0..ROWS * PANEL).map(|_| next() as f32).collect();
        let (to, a) = (sums.as_mut_ptr(), a.as_ptr().cast());
        let quads = Quads::<Plain, N>::of(format);
        // SAFETY: rows and panel hold the steps.
        unsafe { multiply::<_, ROWS, 1, 2, V>(quads, format, Reads::Again, a, panel.as_ptr(), k / 4, to, true) };
        sums.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn half_a_panel_at_a_time_gives_the_bits_of_a_whole_one() {
        let of = |values, group| BlockFormat::new(values, group, DType::F32, true).expect("a format");
        for group in [32, 128] {
            let (int4, int8) = (of(BlockValues::Int4, group), of(BlockValues::Int8, group));
            assert_eq!(sums::<2, 1>(int4), sums::<2, 2>(int4), "int4, {group}");
            assert_eq!(sums::<1, 1>(int8), sums::<1, 2>(int8), "int8, {group}");
        }
    }
}
