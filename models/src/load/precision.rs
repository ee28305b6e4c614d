//! Dtypes: those that a checkpoint has, and those of a model that is loaded from it.

use sinew_memory::Hardware;
use sinew_ops::layers::Compute;
use sinew_tensor::DType;

use crate::checkpoint::{Checkpoint, Load};
use crate::{Error, Result};

/// How weights get from files into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightOptions {
    /// Their dtype in memory; that of the checkpoint where it is `None`.
    pub dtype: Option<DType>,
    /// Mapped, or read.
    pub load: Load,
}

impl WeightOptions {
    /// The precision of a model with these weights on a device.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in, or a checkpoint without floating-point tensors.
    pub fn precision(&self, checkpoint: &Checkpoint, hardware: &Hardware) -> Result<Precision> {
        let stored = main_dtype(checkpoint)?;
        Precision::of(self.dtype.unwrap_or(stored), hardware)
    }
}

/// Dtypes of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Of packed weights and embedding tables.
    pub weights: DType,
    /// Of what products read.
    pub activations: DType,
    /// Of the operands of products; sums are f32 everywhere.
    pub compute: Compute,
    /// Of cached keys and values.
    pub kv: DType,
}

impl Precision {
    /// The usual precision of models stored in `dtype` on a device.
    ///
    /// f16 weights are widened in registers and multiplied in f32, so that activations past f16's range do no harm. So
    /// are bf16 weights where a device has no bf16 to multiply.
    ///
    /// # Errors
    /// A dtype that weights cannot be kept in.
    pub fn of(dtype: DType, hardware: &Hardware) -> Result<Self> {
        let widens = hardware.accelerator.as_ref().is_some_and(|accelerator| !accelerator.bf16_products);
        let (activations, compute, kv) = match dtype {
            DType::BF16 if widens => (DType::F32, Compute::F32, DType::BF16),
            DType::F32 => (DType::F32, Compute::F32, DType::F32),
            DType::F16 => (DType::F32, Compute::F32, DType::F16),
            DType::BF16 => (DType::BF16, Compute::Bf16, DType::BF16),
            other => {
                let supported = "f32, f16, bf16".to_owned();
                return Err(Error::Unsupported { what: format!("weights of dtype {other}"), supported });
            }
        };
        Ok(Self { weights: dtype, activations, compute, kv })
    }
}

/// The dtype of floating-point elements.
fn float(dtype: safetensors::Dtype) -> Option<DType> {
    Some(match dtype {
        safetensors::Dtype::F64 => DType::F64,
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F16 => DType::F16,
        safetensors::Dtype::BF16 => DType::BF16,
        _ => return None,
    })
}

/// The dtype of a tensor that must be floating point.
pub(super) fn float_dtype(name: &str, dtype: safetensors::Dtype) -> Result<DType> {
    float(dtype).ok_or_else(|| {
        let what = format!("tensor {name} of dtype {dtype:?}");
        Error::Unsupported { what, supported: FLOATS.to_owned() }
    })
}

/// What [`float`] takes, for messages.
const FLOATS: &str = "F32, F16, BF16, F64";

/// The dtype that most of a checkpoint's bytes have: that in which it is kept unless another is asked for. f64 is kept
/// as f32.
///
/// # Errors
/// A checkpoint without floating-point tensors.
pub fn main_dtype(checkpoint: &Checkpoint) -> Result<DType> {
    let mut counts = [(DType::BF16, 0), (DType::F16, 0), (DType::F32, 0)];
    for (_, info) in checkpoint.infos() {
        let dtype = match float(info.dtype) {
            Some(DType::F64) => DType::F32,
            Some(dtype) => dtype,
            // Position ids and the like.
            None => continue,
        };
        counts.iter_mut().filter(|(d, _)| *d == dtype).for_each(|(_, n)| *n += info.num_bytes);
    }
    let (dtype, most) = counts.into_iter().max_by_key(|&(_, n)| n).unwrap_or((DType::F32, 0));
    if most == 0 {
        let what = format!("{}, which has no floating-point tensor,", checkpoint.name());
        return Err(Error::Unsupported { what, supported: FLOATS.to_owned() });
    }
    Ok(dtype)
}
