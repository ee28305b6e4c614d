//! Rows of one multiply-add chain per output, in f32: portable, AVX2, AVX-512.

use half::f16;
use sinew_memory::{Hardware, SimdLevel};

use super::pack;
use super::tile::{Block, Tiles, loops, prefetch_ahead, tiles};
use super::way::{Listed, Way, names};
use crate::cpu::leveled::needs;
use crate::gemm::GemmStatic;
use crate::packed::{PANEL, PanelKind};
use crate::rates::predicted;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{LANES, Portable, Simd, Stored};
use crate::{Arithmetic, Compute, Refusal, Result};

const MUL_ADD: Arithmetic = Arithmetic::named("gemm.mul-add-chain");
#[cfg(target_arch = "x86_64")]
const FUSED: Arithmetic = Arithmetic::named("gemm.fma-chain");

/// Refuses machines below a level, and right operands that no panel holds. Says which panels are multiplied.
pub(super) fn panels(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<PanelKind, Refusal> {
    needs(level, hardware)?;
    match fixed.panel_kind() {
        Some(PanelKind::Blocks(_)) => Err("multiplies no block-quantized weights".into()),
        Some(kind @ (PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16)) => match fixed.compute {
            Compute::Int8 => Err("does not compute in int8".into()),
            Compute::F32 | Compute::Bf16 => Ok(kind),
        },
        None => Err("multiplies panels and right operands of f32, f16 and bf16 only".into()),
    }
}

fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    panels(fixed, hardware, level).map(drop)
}

/// f32 operations per second and thread of a level's tiles, which reach a share of its peak.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let share = match level {
        SimdLevel::Portable => 0.4,
        SimdLevel::Avx2 => 0.8,
        SimdLevel::Avx512 | SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => 0.85,
    };
    predicted::f32_rate(hardware, level) * share
}

/// One multiply-add per product, for every kind of panel.
pub(crate) struct PortableWay;

impl Listed for PortableWay {
    const WAY: Way = Way {
        names: names!("portable"),
        arithmetic: MUL_ADD,
        level: SimdLevel::Portable,
        tiles: &PORTABLE,
        admit,
        rate,
    };
}

pub(crate) const PORTABLE: Tiles =
    Tiles::new(SimdLevel::Portable, pack::singles::<Portable>(), tiles!(chain_portable: <1, 1>, <2, 1>, <4, 1>));

/// One fused multiply-add per product.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2Way;

#[cfg(target_arch = "x86_64")]
impl Listed for Avx2Way {
    const WAY: Way =
        Way { names: names!("avx2"), arithmetic: FUSED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// Of 16 registers 6 rows of half a panel take 12.
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, pack::singles::<Avx2>(), tiles!(chain_avx2: <1, 2>, <2, 2>, <4, 1>, <6, 1>));

/// One fused multiply-add per product.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512Way;

#[cfg(target_arch = "x86_64")]
impl Listed for Avx512Way {
    const WAY: Way =
        Way { names: names!("avx512"), arithmetic: FUSED, level: SimdLevel::Avx512, tiles: &AVX512, admit, rate };
}

/// 12 rows of two registers of sums, two of weights and one broadcast are 27 of AVX-512's 32.
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX512: Tiles = Tiles::new(
    SimdLevel::Avx512,
    pack::singles::<Avx512>(),
    tiles!(chain_avx512: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>, <12, 2>),
);

loops! {
    chain_portable<R, H> => chains::<Portable, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    chain_avx2<R, H> => chains::<Avx2, R, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    chain_avx512<R, H> => chains::<Avx512, R, H>;
}

/// [`chain`] for every kind of panel.
#[inline(always)]
unsafe fn chains<S: Simd, const R: usize, const H: usize>(block: Block) {
    // SAFETY: passed on; the kind is the panels'.
    unsafe {
        match block.panels {
            PanelKind::F32 => chain::<S, Singles, R, H>(block),
            PanelKind::F16 => chain::<S, Halves, R, H>(block),
            PanelKind::Bf16 => chain::<S, Pairs, R, H>(block),
            PanelKind::Blocks(_) => unreachable!("a row of floats admitted block-quantized weights"),
        }
    }
}

/// How a panel's steps are read as f32.
trait Panel {
    /// Steps that are read together.
    const DEPTH: usize;
    /// Bytes of `DEPTH` steps of 32 outputs.
    const BYTES: usize;
    /// Whether they are f32 already: then memory is hardly waited for.
    const LIGHT: bool = false;
    /// Step `depth` of sixteen outputs, `p` being where the `DEPTH` steps of these outputs start.
    unsafe fn load<S: Simd>(p: *const u8, depth: usize) -> S::F;
}

struct Singles;
struct Halves;
struct Pairs;

impl Panel for Singles {
    const DEPTH: usize = 1;
    const BYTES: usize = 4 * PANEL;
    const LIGHT: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _depth: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(p.cast()) }
    }
}

impl Panel for Halves {
    const DEPTH: usize = 1;
    const BYTES: usize = 2 * PANEL;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, _depth: usize) -> S::F {
        // SAFETY: passed on.
        unsafe { <f16 as Stored>::load::<S>(p.cast()) }
    }
}

impl Panel for Pairs {
    const DEPTH: usize = 2;
    const BYTES: usize = 4 * PANEL;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8, depth: usize) -> S::F {
        // SAFETY: passed on.
        let (even, odd) = unsafe { S::load_bf16_pairs(p.cast()) };
        if depth == 0 { even } else { odd }
    }
}

/// `R` rows of `H` vectors of sums, kept in registers over all steps.
#[inline(always)]
unsafe fn chain<S: Simd, P: Panel, const R: usize, const H: usize>(block: Block) {
    let Block { reads, b, steps, sums, carry, .. } = block;
    let a: *const f32 = block.a.cast();
    debug_assert!(steps.is_multiple_of(P::DEPTH));
    // SAFETY: passed on: `a` is [steps][R], `b` is [steps][32], `sums` is [R][32].
    unsafe {
        for first in (0..2).step_by(H) {
            // By iterators: with indices AVX2 keeps both values of a pair of bf16 in registers that it does not have.
            let mut s = [[S::splat(0.0); H]; R];
            if carry {
                for (r, row) in s.iter_mut().enumerate() {
                    for (h, s) in row.iter_mut().enumerate() {
                        *s = S::load(sums.add(r * PANEL + (first + h) * LANES));
                    }
                }
            }
            let (mut a, mut b) = (a, b.add(first * P::BYTES / 2));
            for _ in 0..steps / P::DEPTH {
                prefetch_ahead(b, H * P::BYTES / 2, reads, R == 1 && P::LIGHT);
                for depth in 0..P::DEPTH {
                    let mut w = [S::splat(0.0); H];
                    for (h, w) in w.iter_mut().enumerate() {
                        *w = P::load::<S>(b.add(h * P::BYTES / 2), depth);
                    }
                    for (r, row) in s.iter_mut().enumerate() {
                        let x = S::splat(*a.add(depth * R + r));
                        for (s, w) in row.iter_mut().zip(w) {
                            *s = S::fma(x, w, *s);
                        }
                    }
                }
                a = a.add(P::DEPTH * R);
                b = b.add(P::BYTES);
            }
            for (r, row) in s.iter().enumerate() {
                for (h, s) in row.iter().enumerate() {
                    S::store(sums.add(r * PANEL + (first + h) * LANES), *s);
                }
            }
        }
    }
}
