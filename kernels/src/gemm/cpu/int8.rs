//! Rows of int8 activations and weights of 4 or 8 bits: products of whole groups of K are exact, and one chain of
//! multiply-adds takes them with their scales.

use sinew_memory::{Hardware, SimdLevel};

use super::groups::{self, multiply};
#[cfg(target_arch = "x86_64")]
use super::quads::{EvenAndOdd, Vnni};
use super::quads::{Plain, Quads};
use super::tile::{Left, Reads, Tiles, tiles};
use super::way::{Listed, Way, names};
use crate::cpu::leveled::needs;
use crate::gemm::GemmStatic;
use crate::packed::PanelKind;
use crate::packed::blocks;
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
                            1 => multiply::<_, { $r }, $parts, H, { $v }>(Quads::<$dots, 1, 1>::of(format), format, reads, a, b, steps, sums, carry),
                            _ => multiply::<_, { $r }, $parts, H, { $v }>(Quads::<$dots, 2, 1>::of(format), format, reads, a, b, steps, sums, carry),
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
pub(crate) const VNNI: Tiles =
    Tiles::new(SimdLevel::Avx512, Left::Quads, tiles!(groups_vnni: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>))
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
pub(crate) const AVX2: Tiles = Tiles::new(SimdLevel::Avx2, Left::Quads, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>));

#[cfg(target_arch = "x86_64")]
groups_by!(groups_vnni, Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
groups_by!(groups_avx2, EvenAndOdd, "avx2,fma,f16c");
