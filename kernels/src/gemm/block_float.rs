//! Activations in block floating point: what integers of one byte and of two hold of a group of them.

use crate::Arithmetic;

/// Of bf16 activations in block floating point.
pub(super) const INT16: Arithmetic =
    Arithmetic { name: "gemm.int16-groups", foreign: false, flushes_subnormals: false };

/// The same with weights of which twice are integers.
pub(super) const INT16_DOUBLED: Arithmetic = Arithmetic { name: "gemm.int16-groups.doubled", ..INT16 };

/// Whether activations are held as integers of two bytes.
pub(super) fn is_int16(arithmetic: Arithmetic) -> bool {
    arithmetic == INT16 || arithmetic == INT16_DOUBLED
}

/// The largest integer of one byte, and the least with the sign turned.
pub(super) const MOST_OF_INT8: f32 = 127.0;
/// The largest integer of two bytes, both signed: `127 · 256 + 127`.
pub(super) const MOST_OF_INT16: f32 = 32_639.0;
/// Of two bytes a group has outliers where most of its values that are not zero are below this share of the largest, and
/// would lose bits of bf16.
pub(super) const OUTLIERS: f32 = 1.0 / 128.0;
/// Of what is below this share of the largest, two bytes may err by an eighth and more.
pub(super) const TINY: f32 = 1.0 / 4096.0;
/// What is below this is tiny whatever the largest is: eight times the least power of two that is a scale.
pub(super) const LEAST_HELD: f32 = 8.0 * f32::MIN_POSITIVE;
/// What is tiny is held apart where it is more than this share of the group's values that are not zero.
pub(super) const MOST_TINY: f32 = 1.0 / 8.0;
