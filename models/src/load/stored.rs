//! How a checkpoint stores the matrices that a weight is made of.

use std::borrow::Cow;
use std::ops::Range;

use sinew_memory::DeviceKind;
use sinew_ops::layers::{Encoding, WeightPacker};
use sinew_tensor::DType;

use super::precision::float_dtype;
use super::{Part, Precision, widen};
use crate::checkpoint::Checkpoint;
use crate::quantized::{BlockRows, Rows, StoredModule};
use crate::{Error, Result};

/// How a part's matrix is stored, whose shape fits.
pub(super) enum Stored {
    /// As a tensor of floats.
    Tensor(DType),
    /// Quantized.
    Module(Box<StoredModule>),
}

impl Stored {
    /// That of a part with rows of `k`.
    pub(super) fn of(checkpoint: &Checkpoint, part: &Part, k: usize) -> Result<Self> {
        let Some(module) = checkpoint.module(part.name())? else {
            return Ok(Self::Tensor(check(checkpoint, &part.weight(), &part.shape(k))?));
        };
        if part.transposed {
            let what = format!("{}, which is stored as [inputs, outputs] and quantized,", part.name());
            return Err(Error::Unsupported { what, supported: "quantized [outputs, inputs]".to_owned() });
        }
        same_shape(checkpoint, part.name(), &module.shape(), &part.shape(k))?;
        Ok(Self::Module(Box::new(module)))
    }

    /// Those of several parts.
    pub(super) fn all(checkpoint: &Checkpoint, parts: &[Part], k: usize) -> Result<Vec<Self>> {
        parts.iter().map(|part| Self::of(checkpoint, part, k)).collect()
    }

    /// Rows of floats, counted in the tensor: as they are stored, or as the format's own code dequantizes them; those
    /// of f64 as f32.
    pub(super) fn floats<'c>(
        &self,
        checkpoint: &'c Checkpoint,
        part: &Part,
        rows: Range<usize>,
        k: usize,
    ) -> Result<(Cow<'c, [u8]>, DType)> {
        match self {
            Self::Module(module) => Ok((module.dequantized(checkpoint, rows)?.into(), module.dtype())),
            Self::Tensor(dtype) => {
                let row_bytes = k * dtype.size();
                let range = rows.start * row_bytes..rows.end * row_bytes;
                Ok(packable(checkpoint.tensor_slice(&part.weight(), range)?.bytes, *dtype))
            }
        }
    }

    /// Rows in blocks, counted in the tensor.
    pub(super) fn blocks(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Result<BlockRows> {
        let unpacked = match self {
            Self::Module(module) => module.rows(checkpoint, rows)?,
            Self::Tensor(_) => return Err(Error::Input("blocks of a tensor of floats".to_owned())),
        };
        match unpacked {
            Rows::Blocks(blocks) => Ok(blocks),
            Rows::Values(..) => Err(Error::Input("blocks of a module that is not in blocks".to_owned())),
        }
    }

    /// Lets go of the pages of rows that were packed, where they have pages of their own; `None` is all of them.
    pub(super) fn release(&self, checkpoint: &Checkpoint, part: &Part, rows: Option<Range<usize>>, k: usize) {
        match (self, rows) {
            (Self::Tensor(dtype), rows) => {
                let rows = rows.unwrap_or_else(|| part.rows.clone());
                let row_bytes = k * dtype.size();
                checkpoint.release_slice(&part.weight(), rows.start * row_bytes..rows.end * row_bytes);
            }
            (Self::Module(module), None) => {
                module.tensors().for_each(|name| checkpoint.release_slice(name, 0..usize::MAX));
            }
            // Formats pack values along other dimensions than rows.
            (Self::Module(_), Some(_)) => {}
        }
    }

    /// Bytes of the checkpoint that a row takes, about.
    pub(super) fn row_bytes(&self, checkpoint: &Checkpoint, k: usize) -> usize {
        match self {
            Self::Tensor(dtype) => k * dtype.size(),
            Self::Module(module) => {
                let bytes = module.tensors().filter_map(|name| checkpoint.info(name).ok()).map(|info| info.num_bytes);
                bytes.sum::<usize>() / module.shape()[0].max(1)
            }
        }
    }
}

/// Values in a dtype that can be packed: those of f64 as f32.
pub(crate) fn packable(bytes: Cow<'_, [u8]>, dtype: DType) -> (Cow<'_, [u8]>, DType) {
    if dtype != DType::F64 {
        return (bytes, dtype);
    }
    let values = widen::<8>(&bytes, |b| f64::from_le_bytes(b) as f32);
    (Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect()), DType::F32)
}

/// What a weight of parts that are stored so becomes on a kind of device: blocks stay as they are where all parts are
/// in the same ones and the device has a format for them.
pub(super) fn encoding(precision: &Precision, device: DeviceKind, parts: &[Part], stored: &[Stored]) -> Encoding {
    let kept = precision.kept.and_then(|_| common_blocks(stored));
    kept.filter(|&blocks| WeightPacker::has_format(device, blocks)).unwrap_or_else(|| precision.encoding(parts))
}

/// The blocks that all parts are in.
pub(super) fn common_blocks(stored: &[Stored]) -> Option<Encoding> {
    let mut encodings = stored.iter().map(|stored| match stored {
        Stored::Module(module) => Some(module.encoding()),
        Stored::Tensor(_) => None,
    });
    let first = encodings.next()??;
    (matches!(first, Encoding::Blocks(_)) && encodings.all(|encoding| encoding == Some(first))).then_some(first)
}

/// The dtype of a tensor of floats, which must have this shape.
pub(super) fn check(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<DType> {
    let info = checkpoint.info(name)?;
    same_shape(checkpoint, name, info.shape, shape)?;
    float_dtype(name, info.dtype)
}

fn same_shape(checkpoint: &Checkpoint, name: &str, found: &[usize], shape: &[usize]) -> Result<()> {
    if found == shape {
        return Ok(());
    }
    Err(Error::Config {
        file: checkpoint.name().to_owned(),
        problem: format!("tensor {name} has shape {found:?}, the config asks for {shape:?}"),
    })
}
