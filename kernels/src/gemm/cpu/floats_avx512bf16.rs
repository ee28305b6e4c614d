//! The row of AVX512-BF16: `vdpbf16ps` takes two products of bf16 to each of sixteen f32 sums.

use std::arch::x86_64::*;

use sinew_memory::{Hardware, SimdLevel};

use super::floats;
use super::pack;
use super::tile::{Block, Tiles, prefetch_ahead, tiles};
use super::way::{Listed, Way, names};
use crate::gemm::GemmStatic;
use crate::packed::{PANEL, PanelKind};
use crate::rates::predicted;
use crate::simd::{Avx512, LANES};
use crate::{Arithmetic, Compute, Refusal};

const DOT: Arithmetic = Arithmetic { name: "gemm.dpbf16-chain", foreign: false, flushes_subnormals: true };

/// `vdpbf16ps`.
pub(crate) struct DotWay;

impl Listed for DotWay {
    const WAY: Way =
        Way { names: names!("avx512bf16"), arithmetic: DOT, level: SimdLevel::Avx512Bf16, tiles: &DOTS, admit, rate };
}

/// Refuses what `vdpbf16ps` does not multiply.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let panels = floats::panels(fixed, hardware, level)?;
    if fixed.compute != Compute::Bf16 {
        return Err("computes in bf16, the problem asks for f32".into());
    }
    if panels != PanelKind::Bf16 {
        return Err(format!("multiplies bf16, the weight is packed as {}", panels.encoding()).into());
    }
    Ok(())
}

/// Operations per second and thread.
fn rate(hardware: &Hardware, _: SimdLevel) -> f64 {
    predicted::bf16_rate(hardware) * 0.85
}

pub(crate) const DOTS: Tiles =
    Tiles::new(SimdLevel::Avx512, pack::pairs::<Avx512>(), tiles!(dot: <1>, <2>, <4>, <6>, <8>, <12>));

/// `R` rows of two registers of sums: 12 rows with two registers of weights and one of broadcasts are 27 of 32.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn dot<const R: usize>(block: Block) {
    let Block { panels, reads, a, b, steps, sums, carry } = block;
    assert!(panels == PanelKind::Bf16, "the row admitted panels of {}", panels.encoding());
    // SAFETY: passed on: `a` is [steps][R] pairs, `b` is [steps][32] pairs, `sums` is [R][32].
    unsafe {
        let mut s = [[_mm512_setzero_ps(); 2]; R];
        if carry {
            for (r, [low, high]) in s.iter_mut().enumerate() {
                *low = _mm512_loadu_ps(sums.add(r * PANEL));
                *high = _mm512_loadu_ps(sums.add(r * PANEL + LANES));
            }
        }
        let (mut a, mut b) = (a.cast::<i32>(), b);
        for _ in 0..steps {
            prefetch_ahead(b, 4 * PANEL, reads, R == 1);
            let low: __m512bh = std::mem::transmute(_mm512_loadu_si512(b.cast()));
            let high: __m512bh = std::mem::transmute(_mm512_loadu_si512(b.add(64).cast()));
            for (r, s) in s.iter_mut().enumerate() {
                let x: __m512bh = std::mem::transmute(_mm512_set1_epi32(*a.add(r)));
                s[0] = _mm512_dpbf16_ps(s[0], x, low);
                s[1] = _mm512_dpbf16_ps(s[1], x, high);
            }
            a = a.add(R);
            b = b.add(4 * PANEL);
        }
        for (r, [low, high]) in s.into_iter().enumerate() {
            _mm512_storeu_ps(sums.add(r * PANEL), low);
            _mm512_storeu_ps(sums.add(r * PANEL + LANES), high);
        }
    }
}
