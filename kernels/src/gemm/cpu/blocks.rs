//! Rows of block-quantized weights whose activations stay floats: codes are looked up in registers, each group of K is
//! one chain of multiply-adds of what they stand for, and one more chain takes the groups with their scales.

use std::marker::PhantomData;

use sinew_memory::{Hardware, SimdLevel};
use sinew_tensor::{BlockFormat, BlockValues};

use super::codes::{Bytes, Codes, Expanded, Nibbles, with_codes};
use super::groups::{Expands, Group, Products, Steps, expand, multiply};
use super::pack;
use super::tile::{Block, Expansion, Packing, Tiles, loops, tiles};
use super::way::{Listed, Way, float_blocks, names};
use crate::gemm::GemmStatic;
use crate::packed::PanelKind;
use crate::packed::blocks::LINE;
use crate::rates::predicted;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{LANES, Part, Portable, Simd};
use crate::{Arithmetic, Refusal};

const MUL_ADD: Arithmetic = Arithmetic::named("gemm.mul-add-groups");
#[cfg(target_arch = "x86_64")]
const FUSED: Arithmetic = Arithmetic::named("gemm.fma-groups");

fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    float_blocks(fixed, hardware, level).map(drop)
}

/// f32 operations per second and thread of a level's tiles, which reach a share of its peak.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let share = match level {
        SimdLevel::Portable => 0.3,
        SimdLevel::Avx2 => 0.4,
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 0.7,
    };
    predicted::f32_rate(hardware, level) * share
}

/// Codes looked up as f32.
pub(crate) struct PortableWay;

impl Listed for PortableWay {
    const WAY: Way = Way {
        names: names!("portable.blocks"),
        arithmetic: MUL_ADD,
        level: SimdLevel::Portable,
        tiles: &PORTABLE,
        admit,
        rate,
    };
}

pub(crate) const PORTABLE: Tiles = Tiles::new(
    SimdLevel::Portable,
    Fma::<Portable, Expanded, false>::PACKING,
    tiles!(groups_portable: <1, 1>, <2, 1>, <4, 1>),
)
.expanding(Expansion { expand: expand_at::<Portable>, tiles: tiles!(expanded_portable: <1, 1>, <2, 1>, <4, 1>) });

/// Codes looked up as f32, on AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2Way;

#[cfg(target_arch = "x86_64")]
impl Listed for Avx2Way {
    const WAY: Way =
        Way { names: names!("avx2.blocks"), arithmetic: FUSED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// 4 rows of half a panel take 8 of 16 registers, beside which codes are looked up, and 6 take 12.
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, Fma::<Avx2, Expanded, false>::PACKING, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>))
        .expanding(Expansion {
            expand: expand_at::<Avx2>,
            tiles: tiles!(expanded_avx2: <1, 1>, <2, 1>, <4, 1>, <6, 1>),
        });

/// Codes looked up as f32, on AVX-512.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512Way;

#[cfg(target_arch = "x86_64")]
impl Listed for Avx512Way {
    const WAY: Way = Way {
        names: names!("avx512.blocks"),
        arithmetic: FUSED,
        level: SimdLevel::Avx512,
        tiles: &AVX512,
        admit,
        rate,
    };
}

#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: Tiles = Tiles::new(
    SimdLevel::Avx512,
    Fma::<Avx512, Expanded, false>::PACKING,
    tiles!(groups_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>),
)
.expanding(Expansion {
    expand: expand_at::<Avx512>,
    tiles: tiles!(expanded_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>),
});

loops! {
    groups_portable<R, H> => groups::<Portable, R, H>;
    expanded_portable<R, H> => expanded::<Portable, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    groups_avx2<R, H> => groups::<Avx2, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    expanded_avx2<R, H> => expanded::<Avx2, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    groups_avx512<R, H> => groups::<Avx512, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    expanded_avx512<R, H> => expanded::<Avx512, R, H>;
}

/// An expression with the products of a format: those of integers with zero points are compiled by themselves.
macro_rules! with_products {
    ($simd:ident, $format:expr, $products:ident => $body:expr) => {
        match ($format.values(), $format.zero_points()) {
            (BlockValues::Int4, true) => {
                let $products = Fma::<$simd, Nibbles, true>::of($format);
                $body
            }
            (BlockValues::Int8, true) => {
                let $products = Fma::<$simd, Bytes, true>::of($format);
                $body
            }
            (values, _) => with_codes!(values, C => {
                let $products = Fma::<$simd, C, false>::of($format);
                $body
            }),
        }
    };
}

/// [`multiply`] with every kind of codes.
#[inline(always)]
unsafe fn groups<S: Simd, const R: usize, const H: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on; the codes are the format's.
    unsafe { with_products!(S, format, products => multiply::<_, R, 1, H, H>(products, format, block)) }
}

/// [`multiply`] with what codes stand for.
#[inline(always)]
unsafe fn expanded<S: Simd, const R: usize, const H: usize>(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe { multiply::<_, R, 1, H, H>(Fma::<S, Expanded, false>::of(format), format, block) };
}

/// Looks up the codes of a block of a panel, at a level.
unsafe fn expand_at<S: Simd>(panels: PanelKind, b: *const u8, steps: usize, to: *mut u8) {
    // SAFETY: passed on.
    unsafe { S::part(Expanding { format: panels.admitted_blocks(), b, steps, to }) }
}

#[derive(Clone, Copy)]
struct Expanding {
    format: BlockFormat,
    b: *const u8,
    steps: usize,
    to: *mut u8,
}

impl Part for Expanding {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { format, b, steps, to } = self;
        // SAFETY: passed on; the codes are the format's.
        unsafe { with_products!(S, format, products => expand(products, format, b, steps, to)) }
    }
}

/// Multiply-adds of f32. If `ZEROS`, codes have their zero points subtracted as they are looked up: that is exact, where
/// `Σ a·q` and the zero point times `Σ a` would cancel.
#[derive(Clone, Copy)]
struct Fma<S, C, const ZEROS: bool> {
    codes: C,
    simd: PhantomData<S>,
}

impl<S, C: Codes, const ZEROS: bool> Fma<S, C, ZEROS> {
    fn of(format: BlockFormat) -> Self {
        Self { codes: C::new(format.values()), simd: PhantomData }
    }
}

impl<S: Simd, C: Codes, const ZEROS: bool> Steps for Fma<S, C, ZEROS> {
    const PACKING: Packing = pack::singles::<S>();
    const STEPS: usize = C::PER_WORD;
}

impl<S: Simd, C: Codes, const ZEROS: bool, const R: usize, const H: usize> Products<R, H> for Fma<S, C, ZEROS> {
    type S = S;
    /// The sums, and the zero points that are subtracted.
    type Sums = ([[S::F; H]; R], [S::F; H]);
    const LOADED: usize = if ZEROS { 2 * H + 2 } else { H + 2 };
    const LIGHT: bool = false;

    #[inline(always)]
    unsafe fn start(self, group: Group) -> Self::Sums {
        // SAFETY: passed on; a format with zero points has one of each output.
        unsafe {
            let mut zeros = [S::splat(0.0); H];
            for h in 0..if ZEROS { H } else { 0 } {
                zeros[h] = S::load_i8(group.zeros.add(h * LANES));
            }
            ([[S::splat(0.0); H]; R], zeros)
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
        // SAFETY: passed on.
        unsafe {
            for k in 0..C::PER_WORD {
                let mut w = [S::splat(0.0); H];
                for h in 0..H {
                    w[h] = self.codes.load::<S>(words.add(h * LINE / 2), k);
                    if ZEROS {
                        w[h] = S::sub(w[h], zeros[h]);
                    }
                }
                for r in 0..R {
                    let x = S::splat(*a.add(k * height + r));
                    for h in 0..H {
                        sums[r][h] = S::fma(x, w[h], sums[r][h]);
                    }
                }
            }
        }
        (sums, zeros)
    }

    #[inline(always)]
    unsafe fn finish(self, (sums, _): Self::Sums, _: Group) -> [[S::F; H]; R] {
        sums
    }
}

impl<S: Simd, C: Codes, const ZEROS: bool> Expands for Fma<S, C, ZEROS> {
    #[inline(always)]
    unsafe fn expand_words(self, zeros: *const i8, words: *const u8, to: *mut u8) {
        for k in 0..C::PER_WORD {
            // SAFETY: passed on.
            unsafe {
                let w = self.codes.load::<S>(words, k);
                S::store(to.add(k * LINE).cast(), if ZEROS { S::sub(w, S::load_i8(zeros)) } else { w });
            }
        }
    }
}
