//! Rows of block-quantized integers whose activations are bf16, in block floating point: of each group they are held as
//! integers of 16 bits with one power of two; what they do not hold beside the others of a group is multiplied in f32.
//!
//! AVX512-VNNI multiplies the two bytes of each apart. 64 products take two instructions so, and none to look anything up,
//! where cores without quick dot products of bf16 take four, and more to widen weights to f32. AVX2 multiplies even weights
//! and odd ones apart, 16 products in an instruction, twice as many as of f32.

use sinew_memory::{Hardware, SimdLevel};

use super::groups::Steps;
use super::int8;
use super::quads::{EvenAndOdd, Quads, Vnni, multiply};
use super::tile::{Tiles, loops, tiles};
use super::way::{Listed, Way, bf16_blocks, names};
use crate::Refusal;
use crate::gemm::GemmStatic;
use crate::gemm::block_float::INT16;

/// `vpdpbusd`, of each quad twice.
pub(crate) struct VnniWay;

impl Listed for VnniWay {
    const WAY: Way = Way {
        names: names!("avx512vnni.int16"),
        arithmetic: INT16,
        level: SimdLevel::Avx512Vnni,
        tiles: &VNNI,
        admit,
        rate,
    };
}

/// `vpmaddwd`.
pub(crate) struct Avx2Way;

impl Listed for Avx2Way {
    const WAY: Way =
        Way { names: names!("avx2.int16"), arithmetic: INT16, level: SimdLevel::Avx2, tiles: &AVX2, admit, rate };
}

/// Refuses what is not multiplied in bf16, and all but integers.
fn admit(fixed: &GemmStatic, hardware: &Hardware, level: SimdLevel) -> Result<(), Refusal> {
    let format = bf16_blocks(fixed, hardware, level)?;
    if !format.values().is_integer() {
        return Err("multiplies integers only".into());
    }
    Ok(())
}

/// Operations per second and thread: of AVX512-VNNI half of those of one byte, 1.4 times those of f32. The row of bf16 dot
/// products has 1.6 times where these are known to be quick, and else at most 0.8 times: this row serves wherever they are
/// slow, not there or not known. Of AVX2 as many as those of one byte.
fn rate(hardware: &Hardware, level: SimdLevel) -> f64 {
    let of_one_byte = int8::rate(hardware, level);
    if level == SimdLevel::Avx2 { of_one_byte } else { of_one_byte / 2.0 }
}

/// Six rows take 24 registers for the sums of a group, and leave the sums of all groups in memory.
pub(crate) const VNNI: Tiles = Tiles::new(
    SimdLevel::Avx512,
    Quads::<Vnni, 1, 2>::PACKING,
    tiles!(groups_vnni: <1, 2>, <2, 2>, <4, 2>, <6, 2>; eight_vnni of 8),
)
.cutting_many_into(6);

/// 4 rows of half a panel take 8 of 16 registers, the weights of each quad four.
pub(crate) const AVX2: Tiles =
    Tiles::new(SimdLevel::Avx2, Quads::<EvenAndOdd, 1, 2>::PACKING, tiles!(groups_avx2: <1, 1>, <2, 1>, <4, 1>));

loops! {
    #[target_feature(enable = "avx2,fma,f16c")]
    groups_avx2<R, H> => multiply::<EvenAndOdd, 2, R, 1, H, H>;
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    groups_vnni<R, H> => multiply::<Vnni, 2, R, 1, H, H>;
    // The sums of eight rows' groups have no registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    eight_vnni => multiply::<Vnni, 2, 4, 2, 2, 2>;
}
