//! Little-endian floats, as files have them.

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use sinew_tensor::DType;

use crate::safetensors::tensor_dtype;

/// The dtype of floats of a file that are wide enough to be computed with as they are.
pub(crate) fn float(dtype: safetensors::Dtype) -> Option<DType> {
    tensor_dtype(dtype).filter(|dtype| *dtype == DType::F64 || DType::COMPUTE.contains(dtype))
}

/// The dtype in which they are packed: f64 as f32.
pub(crate) fn packed_as(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F32 } else { dtype }
}

/// Values in a dtype that can be packed: as [`packed_as`] has it.
pub(crate) fn packable(bytes: Cow<'_, [u8]>, dtype: DType) -> (Cow<'_, [u8]>, DType) {
    if dtype != DType::F64 {
        return (bytes, dtype);
    }
    (Cow::Owned(widened(&bytes, dtype).iter().flat_map(|value| value.to_le_bytes()).collect()), DType::F32)
}

/// Whether none of them is infinite or no number.
pub(crate) fn are_finite(bytes: &[u8], dtype: DType) -> bool {
    are_within(bytes, dtype, f32::MAX)
}

/// Whether all of them are numbers, and none has a larger magnitude than `most`, which is at least f16's largest. That
/// costs little beside what is done with them next: they are in the cache then.
pub(crate) fn are_within(bytes: &[u8], dtype: DType, most: f32) -> bool {
    /// Whether any is: compared as integers, infinities are above all numbers, and what is no number above those.
    fn any_above<const SIZE: usize>(bytes: &[u8], is_above: impl Fn([u8; SIZE]) -> bool) -> bool {
        bytes.as_chunks().0.iter().fold(false, |any, &value| any | is_above(value))
    }
    let most = most.to_bits();
    // The bits of bf16 are the upper ones of f32.
    let most_of_bf16 = (most >> 16) as u16;
    !match dtype {
        DType::F16 => any_above(bytes, |value| u16::from_le_bytes(value) & 0x7fff > f16::MAX.to_bits()),
        DType::BF16 => any_above(bytes, |value| u16::from_le_bytes(value) & 0x7fff > most_of_bf16),
        _ => any_above(bytes, |value| u32::from_le_bytes(value) & 0x7fff_ffff > most),
    }
}

/// Whether all of them are zero, of either sign.
pub(crate) fn are_zeros(bytes: &[u8], dtype: DType) -> bool {
    // The sign is the highest bit of the last byte.
    bytes.chunks_exact(dtype.size()).all(|value| {
        value.split_last().is_some_and(|(last, rest)| last & 0x7f == 0 && rest.iter().all(|&byte| byte == 0))
    })
}

/// Their values in f32.
pub(crate) fn widened(bytes: &[u8], dtype: DType) -> Vec<f32> {
    fn each<const SIZE: usize>(bytes: &[u8], value: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|&bytes| value(bytes)).collect()
    }
    match dtype {
        DType::F64 => each(bytes, |value| f64::from_le_bytes(value) as f32),
        DType::F16 => each(bytes, |value| f16::from_le_bytes(value).to_f32()),
        DType::BF16 => each(bytes, |value| bf16::from_le_bytes(value).to_f32()),
        _ => each(bytes, f32::from_le_bytes),
    }
}

/// Rounds floats of f32 to a dtype, a line at a time.
pub(crate) struct Rounding {
    dtype: DType,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
}

impl Rounding {
    pub fn new(dtype: DType, line: usize) -> Self {
        let room = |of: DType| if dtype == of { line } else { 0 };
        Self { dtype, f16: vec![f16::ZERO; room(DType::F16)], bf16: vec![bf16::ZERO; room(DType::BF16)] }
    }

    /// The line's values, little-endian.
    pub fn round(&mut self, line: &[f32], bytes: &mut [u8]) {
        match self.dtype {
            DType::F16 => {
                self.f16.convert_from_f32_slice(line);
                bytes.as_chunks_mut().0.iter_mut().zip(&self.f16).for_each(|(to, value)| *to = value.to_le_bytes());
            }
            DType::BF16 => {
                self.bf16.convert_from_f32_slice(line);
                bytes.as_chunks_mut().0.iter_mut().zip(&self.bf16).for_each(|(to, value)| *to = value.to_le_bytes());
            }
            _ => bytes.as_chunks_mut().0.iter_mut().zip(line).for_each(|(to, value)| *to = value.to_le_bytes()),
        }
    }
}
