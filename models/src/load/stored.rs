//! How a checkpoint stores the matrices that a weight is made of.

use std::borrow::Cow;
use std::ops::Range;

use sinew_memory::DeviceKind;
use sinew_ops::layers::{Encoding, Piece, WeightPacker};
use sinew_tensor::DType;

use super::precision::float_dtype;
use super::{Part, Precision, widen};
use crate::checkpoint::Checkpoint;
use crate::quantized::{BlockRows, Rows, StoredModule, Strip as ModuleStrip};
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

    /// The order of its columns in blocks, where it is not that in which they are stored.
    pub(super) fn order(&self) -> Option<&[u32]> {
        match self {
            Self::Tensor(_) => None,
            Self::Module(module) => module.order(),
        }
    }

    /// Whether it lies input after input, all outputs of one side by side: rows of it are in all of its pages, and
    /// columns in some.
    pub(super) fn lies_by_columns(&self, part: &Part) -> bool {
        match self {
            Self::Tensor(_) => part.transposed,
            Self::Module(module) => module.lies_by_columns(),
        }
    }

    /// Columns at whose multiples it can be cut into strips; the largest number where it can not.
    pub(super) fn strip_granule(&self, part: &Part) -> usize {
        match self {
            Self::Tensor(_) if part.transposed => 1,
            Self::Tensor(_) => usize::MAX,
            Self::Module(module) => module.strip_granule(),
        }
    }

    /// Some columns of all its rows: all `k`, or such as begin and end between strips.
    pub(super) fn strip<'a>(
        &'a self,
        checkpoint: &'a Checkpoint,
        part: &'a Part,
        columns: Range<usize>,
        k: usize,
    ) -> Result<Strip<'a>> {
        Ok(match self {
            Self::Module(module) => Strip::Module(module.strip(checkpoint, columns)?),
            Self::Tensor(dtype) if part.transposed => {
                let line = part.of * dtype.size();
                let range = columns.start * line..columns.end * line;
                let (bytes, dtype) = packable(checkpoint.tensor_slice(&part.weight(), range.clone())?.bytes, *dtype);
                Strip::Columns { bytes, dtype, range }
            }
            Self::Tensor(dtype) => Strip::Rows { dtype: *dtype, k },
        })
    }

    /// Lets go of the pages of rows that were packed, where they have pages of their own.
    pub(super) fn release_rows(&self, checkpoint: &Checkpoint, part: &Part, rows: Range<usize>, k: usize) {
        match self {
            Self::Tensor(_) if part.transposed => {}
            Self::Tensor(dtype) => {
                let row_bytes = k * dtype.size();
                checkpoint.release_slice(&part.weight(), rows.start * row_bytes..rows.end * row_bytes);
            }
            Self::Module(module) => module.release_rows(checkpoint, rows),
        }
    }

    /// Lets go of the pages of a part that was packed.
    pub(super) fn release(&self, checkpoint: &Checkpoint, part: &Part, k: usize) {
        match self {
            Self::Tensor(_) if part.transposed => checkpoint.release_slice(&part.weight(), 0..usize::MAX),
            Self::Tensor(_) => self.release_rows(checkpoint, part, part.rows.clone(), k),
            Self::Module(module) => {
                module.tensors().for_each(|name| checkpoint.release_slice(name, 0..usize::MAX));
            }
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

/// Some columns of a part.
pub(super) enum Strip<'a> {
    /// All of a tensor that lies row after row.
    Rows { dtype: DType, k: usize },
    /// Those of a tensor `[k, n]`: the lines of its bytes `range`.
    Columns { bytes: Cow<'a, [u8]>, dtype: DType, range: Range<usize> },
    /// Those of a module.
    Module(ModuleStrip<'a>),
}

/// Rows of a [`Strip`].
pub(super) enum StripRows<'a> {
    Floats(Cow<'a, [u8]>, DType),
    Columns(&'a [u8], DType, usize),
    Blocks(BlockRows),
}

impl Strip<'_> {
    /// Rows, counted in the tensor: codes where they stay `in_blocks`, and else floats, as they are stored or as the
    /// format's own code dequantizes them; those of f64 as f32.
    pub(super) fn rows<'s>(
        &'s self,
        checkpoint: &'s Checkpoint,
        part: &Part,
        rows: Range<usize>,
        in_blocks: bool,
    ) -> Result<StripRows<'s>> {
        match self {
            Self::Rows { dtype, k } => {
                let row_bytes = k * dtype.size();
                let range = rows.start * row_bytes..rows.end * row_bytes;
                let (bytes, dtype) = packable(checkpoint.tensor_slice(&part.weight(), range)?.bytes, *dtype);
                Ok(StripRows::Floats(bytes, dtype))
            }
            Self::Columns { bytes, dtype, .. } => {
                Ok(StripRows::Columns(bytes.get(rows.start * dtype.size()..).unwrap_or_default(), *dtype, part.of))
            }
            Self::Module(module) if in_blocks => match module.rows(rows)? {
                Rows::Blocks(blocks) => Ok(StripRows::Blocks(blocks)),
                Rows::Values(bytes, dtype) => Ok(StripRows::Floats(bytes.into(), dtype)),
            },
            Self::Module(module) => Ok(StripRows::Floats(module.dequantized(rows)?.into(), module.dtype())),
        }
    }

    /// Lets go of the pages of what was read of it.
    pub(super) fn release(&self, checkpoint: &Checkpoint, part: &Part) {
        match self {
            Self::Rows { .. } => {}
            Self::Columns { range, .. } => checkpoint.release_slice(&part.weight(), range.clone()),
            Self::Module(module) => module.release(),
        }
    }
}

impl StripRows<'_> {
    /// Them, as a packer takes them.
    pub(super) fn piece(&self) -> Piece<'_> {
        match self {
            Self::Floats(bytes, dtype) => Piece::Rows(bytes, *dtype),
            Self::Columns(bytes, dtype, columns) => Piece::Columns(bytes, *dtype, *columns),
            Self::Blocks(blocks) => Piece::Codes(blocks.codes()),
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

/// What a weight of parts that are stored so becomes on a kind of device, if it may be in an order of columns or not:
/// blocks stay as they are where all parts are in the same ones, in one order, and the device has a format for them.
/// There are `each` parts to a group of a weight that has several.
pub(super) fn encoding(
    precision: &Precision,
    device: DeviceKind,
    parts: &[Part],
    (stored, each): (&[Stored], usize),
    may_be_ordered: bool,
) -> Encoding {
    let kept = precision.kept.and_then(|_| common_blocks(stored, each, may_be_ordered));
    kept.filter(|&blocks| WeightPacker::has_format(device, blocks)).unwrap_or_else(|| precision.encoding(parts))
}

/// Bytes of what is read whole before any of it is packed: parts that lie column after column and cannot be cut into
/// strips, as [`fill`](super::fill) reads them.
pub(super) fn read_whole(checkpoint: &Checkpoint, parts: &[Part], stored: &[Stored], k: usize) -> usize {
    let all = || parts.iter().zip(stored);
    let is_whole = |(part, stored): (&Part, &Stored)| stored.lies_by_columns(part) && stored.strip_granule(part) >= k;
    if !all().any(is_whole) {
        return 0;
    }
    all().fold(0, |bytes, (part, stored)| bytes.saturating_add(part.of.saturating_mul(stored.row_bytes(checkpoint, k))))
}

/// The blocks that all parts are in, those of each group in one order.
pub(super) fn common_blocks(stored: &[Stored], each: usize, may_be_ordered: bool) -> Option<Encoding> {
    let mut encodings = stored.iter().map(|stored| match stored {
        Stored::Module(module) => Some(module.encoding()),
        Stored::Tensor(_) => None,
    });
    let first = encodings.next()??;
    let alike = |group: &[Stored]| group.iter().all(|stored| stored.order() == group[0].order());
    let is_one = matches!(first, Encoding::Blocks(_))
        && encodings.all(|encoding| encoding == Some(first))
        && stored.chunks(each.max(1)).all(alike)
        && (may_be_ordered || stored.iter().all(|stored| stored.order().is_none()));
    is_one.then_some(first)
}

/// The order of columns of each group in blocks, where one has any.
pub(super) fn order_of_groups(stored: &[Stored], each: usize, k: usize) -> Option<Vec<u32>> {
    if stored.iter().all(|stored| stored.order().is_none()) {
        return None;
    }
    let as_it_is: Vec<u32> = (0..).take(k).collect();
    let of_group = |group: &[Stored]| group[0].order().unwrap_or(&as_it_is).to_vec();
    Some(stored.chunks(each.max(1)).flat_map(of_group).collect())
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
