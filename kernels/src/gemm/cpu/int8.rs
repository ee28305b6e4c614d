//! Rows of int8 activations and weights of 4 or 8 bits: products of whole groups of K are exact, and one chain of
//! multiply-adds takes them with their scales.

use sinew_memory::{Hardware, SimdLevel};

#[cfg(target_arch = "x86_64")]
use super::groups;
use super::groups::Steps;
#[cfg(target_arch = "x86_64")]
use super::quads::{EvenAndOdd, Vnni};
use super::quads::{Plain, Quads, multiply};
#[cfg(target_arch = "x86_64")]
use super::tile::Block;
use super::tile::{Tiles, loops, tiles};
use super::way::{Listed, Way, names};
use crate::cpu::leveled::needs;
use crate::gemm::GemmStatic;
use crate::packed::PanelKind;
use crate::rates::predicted;
use crate::{Arithmetic, Compute, Refusal};

const MUL_ADD: Arithmetic = Arithmetic::named("gemm.int8-groups.mul-add");
#[cfg(target_arch = "x86_64")]
const FUSED: Arithmetic = Arithmetic::named("gemm.int8-groups");

/// Operations per second and thread of a level's tiles: as many as in the time of one of f32 arithmetic (measured on
/// Zen 5: four products of VNNI are one instruction, while AVX2 multiplies even bytes and odd ones apart in 16 bits).
pub(super) fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
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
    Tiles::new(SimdLevel::Portable, Quads::<Plain, 1, 1>::PACKING, tiles!(groups_portable: <1, 1>, <2, 1>, <4, 1>));

/// Four products in an instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) struct VnniWay;

#[cfg(target_arch = "x86_64")]
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
#[cfg(target_arch = "x86_64")]
pub(crate) const VNNI: Tiles = Tiles::new(
    SimdLevel::Avx512,
    Quads::<Vnni, 1, 1>::PACKING,
    tiles!(groups_vnni: <1, 2>, <2, 2>, <4, 2>, <6, 2>; eight_vnni of 8),
)
.cutting_many_into(6);

/// Products in 16 bits, of even bytes and of odd ones.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx2Way;

#[cfg(target_arch = "x86_64")]
impl Listed for Avx2Way {
    const WAY: Way =
        Way { names: names!("avx2.int8"), arithmetic: FUSED, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// 4 rows of half a panel take 8 of 16 registers, the weights of each quad four.
#[cfg(target_arch = "x86_64")]
pub(crate) const AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, Quads::<EvenAndOdd, 1, 1>::PACKING, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>));

loops! {
    groups_portable<R, H> => multiply::<Plain, 1, R, 1, H, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    groups_avx2<R, H> => multiply::<EvenAndOdd, 1, R, 1, H, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    groups_vnni<R, H> => multiply::<Vnni, 1, R, 1, H, H>;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    eight_vnni => eight;
}

/// Eight rows. Four at a time keep the sums of all groups in registers: words are unpacked twice for it, which only pays where
/// groups are short and end often; zero points would take the registers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight(block: Block) {
    let format = block.panels.admitted_blocks();
    // SAFETY: passed on.
    unsafe {
        if format.zero_points() && groups::halves() {
            multiply::<Vnni, 1, 8, 1, 2, 1>(block);
        } else if format.group() <= 32 && !format.zero_points() {
            multiply::<Vnni, 1, 4, 2, 2, 2>(block);
        } else {
            multiply::<Vnni, 1, 8, 1, 2, 2>(block);
        }
    }
}
