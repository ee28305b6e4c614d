//! Rows of int8 activations and weights of 4 or 8 bits: products of whole groups of K are exact, and one chain of
//! multiply-adds takes them with their scales.

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{BlockFormat, DType};

use super::cpu::cost;
use super::driver::run;
use super::plan::workspace;
use super::tile::{Left, Tiles, prefetch_page_ahead, tiled_row, tiles};
use super::{Compute, Gemm, GemmStatic};
use crate::cpu_row::needs;
use crate::packed::blocks;
use crate::packed::{PANEL, PanelKind};
use crate::rates::predicted;
use crate::simd::{LANES, Portable, Simd};
use crate::{Arithmetic, Refusal, Row};

pub(crate) const MUL_ADD: Arithmetic = Arithmetic::named("gemm.int8-groups.mul-add");
#[cfg(target_arch = "x86_64")]
pub(crate) const FUSED: Arithmetic = Arithmetic::named("gemm.int8-groups");

/// The row of a level.
macro_rules! row {
    ($name:literal, $arithmetic:expr, $level:expr, $tiles:expr) => {
        tiled_row!(
            $name,
            $arithmetic,
            |fixed, hardware| admit(fixed, hardware, $level),
            |hardware| rate(hardware, $level),
            $tiles
        )
    };
}

/// Best first.
pub(super) fn rows() -> Vec<Row<Gemm>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        row!("gemm.cpu.avx512vnni.int8", FUSED, SimdLevel::Avx512Vnni, &x86::VNNI),
        #[cfg(target_arch = "x86_64")]
        row!("gemm.cpu.avx2.int8", FUSED, SimdLevel::Avx2, &x86::AVX2),
        row!("gemm.cpu.portable.int8", MUL_ADD, SimdLevel::Portable, &PORTABLE),
    ]
}

/// Operations per second and thread of a level's tiles: as many as in the time of one of f32 arithmetic (measured on
/// Zen 5: four products of VNNI are one instruction, while AVX2 multiplies even bytes and odd ones apart in 16 bits).
pub(crate) fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let ratio = match level {
        SimdLevel::Portable => 0.3,
        SimdLevel::Avx2 | SimdLevel::Avx512 => 1.0,
        SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 2.8,
    };
    predicted::f32_rate(hardware, level) * ratio
}

/// Refuses machines below a level, and all but integers.
pub(crate) fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind().and_then(PanelKind::blocks) {
        Some(format) if fixed.compute == Compute::Int8 && format.values().is_integer() => Ok(()),
        _ => Err("multiplies integers only, in a problem that asks for it".into()),
    }
}

pub(crate) static PORTABLE: Tiles =
    Tiles::new(SimdLevel::Portable, Left::Quads, tiles!(groups_portable: <1, 1>, <2, 1>, <4, 1>));

/// [`groups`] by some products, with their instructions.
macro_rules! groups_by {
    ($name:ident, $dots:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<const R: usize, const H: usize>(
            panels: PanelKind,
            a: *const u8,
            b: *const u8,
            steps: usize,
            sums: *mut f32,
            carry: bool,
        ) {
            let PanelKind::Blocks(format) = panels else {
                return debug_assert!(false, "the rows admit blocks only");
            };
            // SAFETY: passed on; the number of quads is that of the format.
            unsafe {
                match (blocks::quads(format.values()).len(), format.zero_points()) {
                    (1, false) => groups::<$dots, 1, false, R, H>(format, a, b, steps, sums, carry),
                    (1, true) => groups::<$dots, 1, true, R, H>(format, a, b, steps, sums, carry),
                    (_, false) => groups::<$dots, 2, false, R, H>(format, a, b, steps, sums, carry),
                    (_, true) => groups::<$dots, 2, true, R, H>(format, a, b, steps, sums, carry),
                }
            }
        }
    };
}

groups_by!(groups_portable, Plain);

/// Scales of sixteen outputs.
///
/// # Safety
/// Those of [`Simd`]; there are sixteen at `p`.
#[inline(always)]
pub(super) unsafe fn load_scales<S: Simd>(dtype: DType, p: *const u8) -> S::F {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F16 => S::load_f16(p.cast()),
            DType::BF16 => S::load_bf16(p.cast()),
            _ => S::load(p.cast()),
        }
    }
}

/// Integer sums of sixteen outputs.
trait Dots {
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

/// `R` rows of `H` vectors of sums: for each group of K `s = fma((Σ a·b - zero · Σ a) · scale of a, scale of b, s)`,
/// where what is in brackets is an integer and exact.
///
/// # Safety
/// That of a [`Loop`](super::tile::Loop): `a` is groups of `[R]` scales, `[R]` starts and `[steps][R]` quads, `b`
/// groups of the format, whose words have `QUADS` quads, `sums` is `[R][32]`.
#[inline(always)]
unsafe fn groups<D: Dots, const QUADS: usize, const ZEROS: bool, const R: usize, const H: usize>(
    format: BlockFormat,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    /// Bytes of a line of words.
    const LINE: usize = 4 * PANEL;
    let group = format.group() / 4;
    let (scale_bytes, header) = (format.scale_dtype().size(), blocks::header_bytes(format));
    // Offsets are powers of two.
    let inverse_offset = 1.0 / f32::from(blocks::offset(format.values()));
    // SAFETY: passed on; what is read and written is inside what the contract names.
    unsafe {
        if !carry {
            (0..R * PANEL).for_each(|i| *sums.add(i) = 0.0);
        }
        for first in (0..2).step_by(H) {
            let (mut a, mut b) = (a, b);
            for done in (0..steps).step_by(group) {
                let here = (steps - done).min(group);
                let (scales, starts) = (a.cast::<f32>(), a.cast::<i32>().add(R));
                let mut s = [[D::splat(0); H]; R];
                for (r, s) in s.iter_mut().enumerate() {
                    *s = [D::splat(*starts.add(r)); H];
                }
                let (mut quads, mut words) = (starts.add(R), b.add(header + first * LINE / 2));
                for _ in 0..here / QUADS {
                    let mut w = [D::load::<QUADS>(words); H];
                    for (h, w) in w.iter_mut().enumerate() {
                        prefetch_page_ahead(words.wrapping_add(h * LINE / 2));
                        *w = D::load::<QUADS>(words.add(h * LINE / 2));
                    }
                    for quad in 0..QUADS {
                        for (r, s) in s.iter_mut().enumerate() {
                            let x = *quads.add(quad * R + r);
                            for (s, w) in s.iter_mut().zip(w) {
                                *s = D::dot(*s, w[quad], x);
                            }
                        }
                    }
                    quads = quads.add(QUADS * R);
                    words = words.add(LINE);
                }
                prefetch_page_ahead(b);
                let mut columns = [D::S::splat(0.0); H];
                let mut zeros = [D::S::splat(0.0); H];
                for (h, (scale, zero)) in columns.iter_mut().zip(&mut zeros).enumerate() {
                    let lane = (first + h) * LANES;
                    *scale = load_scales::<D::S>(format.scale_dtype(), b.add(lane * scale_bytes));
                    if ZEROS {
                        *zero = D::S::load_i8(b.add(blocks::scales_bytes(format) + lane).cast());
                    }
                }
                // Else sums are kept in registers from group to group, and the integers, which need them, are not.
                let sums = std::hint::black_box(sums);
                let mut exact = [[D::S::splat(0.0); H]; R];
                for (r, (x, s)) in exact.iter_mut().zip(s).enumerate() {
                    // What sums start from is `-offset` times the sum of the row's values.
                    let sum = D::S::mul(D::widen(D::splat(*starts.add(r))), D::S::splat(inverse_offset));
                    for (h, (x, s)) in x.iter_mut().zip(s).enumerate() {
                        *x = if ZEROS { D::S::fma(zeros[h], sum, D::widen(s)) } else { D::widen(s) };
                    }
                }
                for (r, x) in exact.into_iter().enumerate() {
                    for (h, x) in x.into_iter().enumerate() {
                        // The row's scale first: the two scales' product may be too large where the sum is not.
                        let x = D::S::mul(x, D::S::splat(*scales.add(r)));
                        let to = sums.add(r * PANEL + (first + h) * LANES);
                        D::S::store(to, D::S::fma(x, columns[h], D::S::load(to)));
                    }
                }
                a = a.add((2 + here) * R * 4);
                b = b.add(header + here / QUADS * LINE);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::simd::{Avx2, Avx512};

    /// 12 rows of two registers of sums, as for bf16.
    pub static VNNI: Tiles = Tiles::new(
        SimdLevel::Avx512,
        Left::Quads,
        tiles!(groups_vnni: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>),
    );

    /// 4 rows of half a panel take 8 of 16 registers, its weights four.
    pub static AVX2: Tiles = Tiles::new(SimdLevel::Avx2, Left::Quads, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>));

    groups_by!(groups_vnni, Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
    groups_by!(groups_avx2, EvenAndOdd, "avx2,fma,f16c");

    /// `vpdpbusd`.
    struct Vnni;

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
