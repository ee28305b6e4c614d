//! The row of block-quantized integers on AVX512-VNNI whose activations are bf16, in block floating point: of each group
//! they are held as integers of 16 bits with one power of two, and their two bytes are multiplied apart; what they do not
//! hold beside the others of a group is multiplied in f32.
//!
//! 64 products take two instructions so, and none to look anything up, where cores without quick dot products of bf16 take
//! four, and more to widen weights to f32.

use sinew_memory::{Hardware, SimdLevel};

use super::groups::multiply;
use super::int8;
use super::quads::{Quads, Vnni};
use super::tile::{Left, Reads, Tiles, tiles};
use super::way::{Listed, Way, names};
use crate::gemm::GemmStatic;
use crate::gemm::block_float::INT16;
use crate::packed::{PanelKind, blocks};
use crate::{Compute, Refusal};

/// `vpdpbusd`, of each quad twice.
pub(crate) struct Int16Way;

impl Listed for Int16Way {
    const WAY: Way = Way {
        names: names!("avx512vnni.blocks"),
        arithmetic: INT16,
        level: SimdLevel::Avx512Vnni,
        tiles: &TILES,
        admit,
        rate,
    };
}

/// Refuses what is not multiplied in bf16, and all but integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = super::blocks::format(fixed, hardware, level)?;
    if fixed.compute != Compute::Bf16 {
        return Err("holds activations in 16 bits, the problem asks for f32".into());
    }
    if !format.values().is_integer() {
        return Err("multiplies integers only".into());
    }
    Ok(())
}

/// Operations per second and thread: half of those of one byte, 1.4 times those of f32. The row of bf16 dot products has 1.6
/// times where these are known to be quick, and else at most 0.8 times: this row serves wherever they are slow, not there or
/// not known.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    int8::rate(hardware, level) / 2.0
}

/// Six rows take 24 registers for the sums of a group, and leave the sums of all groups in memory.
pub(crate) const TILES: Tiles =
    Tiles::new(SimdLevel::Avx512, Left::Int16Quads, tiles!(groups: <1, 2>, <2, 2>, <4, 2>, <6, 2>, <8, 2>))
        .cutting_many_into(6);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn groups<const R: usize, const H: usize>(
    panels: PanelKind,
    reads: Reads,
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: *mut f32,
    carry: bool,
) {
    let format = panels.admitted_blocks();
    // SAFETY: passed on; the number of quads is that of the format.
    unsafe {
        macro_rules! groups {
            ($quads:literal, $r:expr, $parts:literal) => {
                multiply::<_, { $r }, $parts, H, H>(
                    Quads::<Vnni, $quads, 2>::of(format),
                    format,
                    reads,
                    a,
                    b,
                    steps,
                    sums,
                    carry,
                )
            };
        }
        // The sums of eight rows' groups have no registers.
        match (blocks::quads(format.values()).len(), R) {
            (1, 8) => groups!(1, 4, 2),
            (1, _) => groups!(1, R, 1),
            (_, 8) => groups!(2, 4, 2),
            _ => groups!(2, R, 1),
        }
    }
}
