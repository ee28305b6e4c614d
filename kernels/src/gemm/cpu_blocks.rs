//! Rows of block-quantized weights whose activations stay floats: codes are looked up in registers, each group of K is
//! one chain of multiply-adds of what they stand for, and one more chain takes the groups with their scales.

use std::sync::LazyLock;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{BlockFormat, BlockValues};

use super::cpu::cost;
use super::cpu_int8::load_scales;
use super::driver::run;
use super::plan::workspace;
use super::tile::{Expansion, Left, Tiles, prefetch_page_ahead, tiled_row, tiles};
use super::{Compute, Gemm, GemmStatic};
use crate::cpu_row::needs;
use crate::packed::blocks::{self, held_code};
use crate::packed::{PANEL, PanelKind};
use crate::rates::predicted;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{LANES, Portable, Simd};
use crate::{Arithmetic, Refusal, Row};

pub(crate) const MUL_ADD: Arithmetic = Arithmetic::named("gemm.mul-add-groups");
#[cfg(target_arch = "x86_64")]
pub(crate) const FUSED: Arithmetic = Arithmetic::named("gemm.fma-groups");

/// The row of a level.
macro_rules! row {
    ($name:literal, $arithmetic:expr, $level:expr, $tiles:expr) => {
        tiled_row!(
            $name,
            $arithmetic,
            |fixed, hardware| admit(fixed, hardware, $level).map(drop),
            |hardware| rate(hardware, $level),
            $tiles
        )
    };
}

/// Best first.
pub(super) fn rows() -> Vec<Row<Gemm>> {
    vec![
        #[cfg(target_arch = "x86_64")]
        row!("gemm.cpu.avx512.blocks", FUSED, SimdLevel::Avx512, &AVX512),
        #[cfg(target_arch = "x86_64")]
        row!("gemm.cpu.avx2.blocks", FUSED, SimdLevel::Avx2, &AVX2),
        row!("gemm.cpu.portable.blocks", MUL_ADD, SimdLevel::Portable, &PORTABLE),
    ]
}

/// Refuses machines below a level, and all but block-quantized weights. Says which are multiplied.
pub(crate) fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<BlockFormat, Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind() {
        Some(PanelKind::Blocks(_)) if fixed.compute == Compute::Int8 => Err("does not compute in int8".into()),
        Some(PanelKind::Blocks(format)) => Ok(format),
        _ => Err("multiplies block-quantized weights only".into()),
    }
}

/// f32 operations per second and thread of a level's tiles, which reach a share of its peak.
pub(crate) fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let share = match level {
        SimdLevel::Portable => 0.3,
        SimdLevel::Avx2 => 0.4,
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 0.7,
    };
    predicted::f32_rate(hardware, level) * share
}

/// Bytes of a step of an expanded panel.
const STEP: usize = PANEL * size_of::<f32>();

pub(crate) static PORTABLE: Tiles =
    Tiles::new(SimdLevel::Portable, Left::Singles, tiles!(groups_portable: <1, 1>, <2, 1>, <4, 1>)).expanding(
        Expansion {
            step_bytes: STEP,
            expand: expand_portable,
            tiles: tiles!(expanded_portable: <1, 1>, <2, 1>, <4, 1>),
        },
    );

/// 4 rows of half a panel take 8 of 16 registers, and 6 take 12.
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, Left::Singles, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>, <6, 1>)).expanding(
        Expansion {
            step_bytes: STEP,
            expand: expand_avx2,
            tiles: tiles!(expanded_avx2: <1, 1>, <2, 1>, <4, 1>, <6, 1>),
        },
    );

#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Tiles = Tiles::new(
    SimdLevel::Avx512,
    Left::Singles,
    tiles!(groups_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>),
)
.expanding(Expansion {
    step_bytes: STEP,
    expand: expand_avx512,
    tiles: tiles!(expanded_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>),
});

/// [`groups`] and [`expand`] at a level, for every kind of codes.
macro_rules! groups_at {
    ($groups:ident, $expanded:ident, $expand:ident, $simd:ty $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $groups<const R: usize, const H: usize>(
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
            let a = a.cast();
            // SAFETY: passed on; the codes are the format's.
            unsafe {
                match (format.values(), format.zero_points()) {
                    (BlockValues::Int4 | BlockValues::F4E2M1, false) => {
                        groups::<$simd, Nibbles, false, R, H>(format, a, b, steps, sums, carry);
                    }
                    (BlockValues::Int4 | BlockValues::F4E2M1, true) => {
                        groups::<$simd, Nibbles, true, R, H>(format, a, b, steps, sums, carry);
                    }
                    (BlockValues::Int8, false) => {
                        groups::<$simd, Bytes, false, R, H>(format, a, b, steps, sums, carry);
                    }
                    (BlockValues::Int8, true) => {
                        groups::<$simd, Bytes, true, R, H>(format, a, b, steps, sums, carry);
                    }
                    (BlockValues::F8E4M3 | BlockValues::F8E5M2, _) => {
                        groups::<$simd, FloatBytes, false, R, H>(format, a, b, steps, sums, carry);
                    }
                }
            }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn $expanded<const R: usize, const H: usize>(
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
            let a = a.cast();
            // SAFETY: passed on.
            unsafe {
                if format.zero_points() {
                    groups::<$simd, Expanded, true, R, H>(format, a, b, steps, sums, carry);
                } else {
                    groups::<$simd, Expanded, false, R, H>(format, a, b, steps, sums, carry);
                }
            }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn $expand(panels: PanelKind, b: *const u8, steps: usize, to: *mut u8) {
            let PanelKind::Blocks(format) = panels else {
                return debug_assert!(false, "the rows admit blocks only");
            };
            // SAFETY: passed on; the codes are the format's.
            unsafe {
                match format.values() {
                    BlockValues::Int4 | BlockValues::F4E2M1 => expand::<$simd, Nibbles>(format, b, steps, to),
                    BlockValues::Int8 => expand::<$simd, Bytes>(format, b, steps, to),
                    BlockValues::F8E4M3 | BlockValues::F8E5M2 => expand::<$simd, FloatBytes>(format, b, steps, to),
                }
            }
        }
    };
}

groups_at!(groups_portable, expanded_portable, expand_portable, Portable);
#[cfg(target_arch = "x86_64")]
groups_at!(groups_avx2, expanded_avx2, expand_avx2, Avx2, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
groups_at!(groups_avx512, expanded_avx512, expand_avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

/// What the codes of a format stand for, by the code as panels hold it.
pub(super) fn table(values: BlockValues) -> &'static [f32; 256] {
    static TABLES: LazyLock<[[f32; 256]; 5]> = LazyLock::new(|| {
        BlockValues::ALL.map(|values| std::array::from_fn(|held| values.value(held_code(values, held as u8))))
    });
    &TABLES[values as usize]
}

/// How codes become floats.
trait Codes {
    /// Those of a word.
    const PER_WORD: usize;
    /// The codes of sixteen words from bit `shift` on.
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F;
}

/// Codes of four bits.
struct Nibbles;
/// Integers of a byte.
struct Bytes;
/// Floats of a byte.
struct FloatBytes;

impl Codes for Nibbles {
    const PER_WORD: usize = 8;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F {
        // SAFETY: passed on; sixteen of the table's values are there.
        unsafe { S::lookup_nibbles(p, shift, &*table.as_ptr().cast()) }
    }
}

impl Codes for Bytes {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::sub(S::load_bytes(p, shift), S::splat(f32::from(blocks::offset(BlockValues::Int8)))) }
    }
}

impl Codes for FloatBytes {
    const PER_WORD: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, shift: usize, table: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::lookup_bytes(p, shift, table) }
    }
}

/// What codes stand for, in their place.
struct Expanded;

impl Codes for Expanded {
    const PER_WORD: usize = 1;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _: usize, _: &[f32; 256]) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}

/// Writes a block of a panel with what its codes stand for in their place.
///
/// # Safety
/// That of [`Expand`](super::tile::Expand).
#[inline(always)]
unsafe fn expand<S: Simd, C: Codes>(format: BlockFormat, b: *const u8, steps: usize, to: *mut u8) {
    let values = format.values();
    let (table, header) = (table(values), blocks::header_bytes(format));
    let (mut b, mut to) = (b, to);
    // SAFETY: passed on.
    unsafe {
        for done in (0..steps).step_by(format.group()) {
            let here = (steps - done).min(format.group());
            to.copy_from_nonoverlapping(b, header);
            (b, to) = (b.add(header), to.add(header));
            for _ in 0..here / C::PER_WORD {
                for half in 0..2 {
                    prefetch_page_ahead(b.wrapping_add(half * STEP / 2));
                    for k in 0..C::PER_WORD {
                        let w = C::load::<S>(b.add(half * STEP / 2), blocks::shift(values, k), table);
                        S::store(to.add(k * STEP + half * STEP / 2).cast(), w);
                    }
                }
                (b, to) = (b.add(STEP), to.add(C::PER_WORD * STEP));
            }
        }
    }
}

/// `R` rows of `H` vectors of sums: for each group of K `s = fma(Σ a·q - zero · Σ a, scale, s)`.
///
/// # Safety
/// That of a [`Loop`](super::tile::Loop): `a` is groups of `[R]` sums where the format has zero points and of
/// `[steps][R]` values, `b` groups of the format, `sums` is `[R][32]`.
#[inline(always)]
unsafe fn groups<S: Simd, C: Codes, const ZEROS: bool, const R: usize, const H: usize>(
    format: BlockFormat,
    a: *const f32,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    /// Bytes of a line of words, and of a step.
    const LINE: usize = STEP;
    let values = format.values();
    let (table, header) = (table(values), blocks::header_bytes(format));
    // SAFETY: passed on; what is read and written is inside what the contract names.
    unsafe {
        if !carry {
            (0..R * PANEL).for_each(|i| *sums.add(i) = 0.0);
        }
        for first in (0..2).step_by(H) {
            let (mut a, mut b) = (a, b);
            for done in (0..steps).step_by(format.group()) {
                let here = (steps - done).min(format.group());
                let mut s = [[S::splat(0.0); H]; R];
                let mut x = a.add(if ZEROS { R } else { 0 });
                let mut words = b.add(header + first * LINE / 2);
                for _ in 0..here / C::PER_WORD {
                    for h in 0..H {
                        prefetch_page_ahead(words.wrapping_add(h * LINE / 2));
                    }
                    for k in 0..C::PER_WORD {
                        let mut w = [S::splat(0.0); H];
                        for (h, w) in w.iter_mut().enumerate() {
                            *w = C::load::<S>(words.add(h * LINE / 2), blocks::shift(values, k), table);
                        }
                        for (r, s) in s.iter_mut().enumerate() {
                            let x = S::splat(*x.add(k * R + r));
                            for (s, w) in s.iter_mut().zip(w) {
                                *s = S::fma(x, w, *s);
                            }
                        }
                    }
                    x = x.add(C::PER_WORD * R);
                    words = words.add(LINE);
                }
                add_group::<S, ZEROS, R, H>(format, a, b, first, &s, sums);
                a = x;
                b = b.add(header + here / C::PER_WORD * LINE);
            }
        }
    }
}

/// Adds the sums of a group, less their zero points and scaled, to those of all.
///
/// # Safety
/// Those of [`Simd`]; `row_sums` has `R` values where the format has zero points, `b` is the group's panel, `sums` is
/// `[R][32]`.
#[inline(always)]
pub(super) unsafe fn add_group<S: Simd, const ZEROS: bool, const R: usize, const H: usize>(
    format: BlockFormat,
    row_sums: *const f32,
    b: *const u8,
    first: usize,
    group: &[[S::F; H]; R],
    sums: *mut f32,
) {
    // SAFETY: passed on.
    unsafe {
        prefetch_page_ahead(b);
        let (mut scales, mut zeros) = ([S::splat(0.0); H], [S::splat(0.0); H]);
        for (h, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
            let lane = (first + h) * LANES;
            *scale = load_scales::<S>(format.scale_dtype(), b.add(lane * format.scale_dtype().size()));
            if ZEROS {
                *zero = S::sub(S::splat(0.0), S::load_i8(b.add(blocks::scales_bytes(format) + lane).cast()));
            }
        }
        // Else sums are kept in registers from group to group, and those of a group, which need them, are not.
        let sums = std::hint::black_box(sums);
        for (r, s) in group.iter().enumerate() {
            for (h, &s) in s.iter().enumerate() {
                let x = if ZEROS { S::fma(zeros[h], S::splat(*row_sums.add(r)), s) } else { s };
                let to = sums.add(r * PANEL + (first + h) * LANES);
                S::store(to, S::fma(x, scales[h], S::load(to)));
            }
        }
    }
}
