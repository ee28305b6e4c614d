//! A matrix of a checkpoint, and how it is stored.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;
use sinew_ops::layers::{Encoding, Piece};
use sinew_tensor::{BlockFormat, DType};

use super::Part;
use super::precision::float_dtype;
use crate::checkpoint::Checkpoint;
use crate::floats::{are_within, packable};
use crate::quantized::{StoredModule, Strip as ModuleStrip};
use crate::tensors::Tensors;
use crate::{Error, Result};

/// A matrix `[n, k]`, whose tensors have the shape that is asked for.
pub(super) struct Matrix {
    pub part: Part,
    stored: Stored,
    k: usize,
}

/// How it is stored.
enum Stored {
    /// As a tensor of floats.
    Tensor(DType),
    /// Quantized.
    Module(Box<StoredModule>),
}

impl Matrix {
    /// That of a part with rows of `k`.
    pub(super) fn of(checkpoint: &Checkpoint, part: Part, k: usize) -> Result<Self> {
        let Some(module) = checkpoint.module(part.name())? else {
            let stored = Stored::Tensor(check(checkpoint, &part.weight(), &part.shape(k))?);
            // A router stays as it is though the config calls its like quantized.
            if let Some(quantization) = checkpoint.quantization().filter(|_| part.may_be_quantized()) {
                quantization.check_floats(checkpoint, part.name())?;
            }
            return Ok(Self { part, stored, k });
        };
        if !part.has_module() {
            let what = format!("{}, which is stored as [inputs, outputs] and quantized,", part.name());
            return Err(Error::Unsupported { what, supported: "quantized [outputs, inputs]".to_owned() });
        }
        same_shape(checkpoint, part.name(), &module.shape(), &part.module_shape(k))?;
        Ok(Self { part, stored: Stored::Module(Box::new(module)), k })
    }

    /// The blocks that it is in.
    pub(super) fn blocks(&self) -> Option<Encoding> {
        match &self.stored {
            Stored::Tensor(_) => None,
            Stored::Module(module) => Some(module.encoding()).filter(|it| matches!(it, Encoding::Blocks(_))),
        }
    }

    /// The order of its columns in blocks, where it is not that in which they are stored.
    pub(super) fn order(&self) -> Option<&[u32]> {
        match &self.stored {
            Stored::Tensor(_) => None,
            Stored::Module(module) => module.order(),
        }
    }

    /// Whether it lies input after input, all outputs of one side by side: rows of it are in all of its pages, and
    /// columns in some.
    pub(super) fn lies_by_columns(&self) -> bool {
        match &self.stored {
            Stored::Tensor(_) => self.part.transposed,
            Stored::Module(module) => module.lies_by_columns(),
        }
    }

    /// Columns at whose multiples it can be cut into strips; the largest number where it can not.
    pub(super) fn strip_granule(&self) -> usize {
        match &self.stored {
            Stored::Tensor(_) if self.part.transposed => 1,
            Stored::Tensor(_) => usize::MAX,
            Stored::Module(module) => module.strip_granule(),
        }
    }

    /// Some columns of all its rows: all of them, or such as begin and end between strips.
    pub(super) fn strip<'a>(&'a self, tensors: &'a Tensors, columns: Range<usize>) -> Result<Strip<'a>> {
        let Self { part, k, .. } = self;
        let values = match &self.stored {
            Stored::Module(module) => Values::Module(module.strip(tensors, columns)?),
            Stored::Tensor(dtype) if part.transposed => {
                let (line, before) = (part.of * dtype.size(), part.rows_before() * k * dtype.size());
                let range = before + columns.start * line..before + columns.end * line;
                let (bytes, dtype) = packable(tensors.tensor_slice(&part.weight(), range.clone())?.bytes, *dtype);
                let own = part.in_matrix(0..part.len());
                let (bytes, n, first) = match part.step() {
                    1 => (bytes, part.of, own.start),
                    step => (every(&bytes, part.of, own, step, dtype.size()).into(), part.len(), 0),
                };
                Values::Columns { bytes, dtype, range, n, first }
            }
            Stored::Tensor(dtype) => Values::Rows { dtype: *dtype, k: *k },
        };
        Ok(Strip { part, tensors, values })
    }

    /// Lets go of the pages of rows of its part that were packed, where they have pages of their own.
    pub(super) fn release_rows(&self, tensors: &Tensors, rows: Range<usize>) {
        match &self.stored {
            Stored::Tensor(_) if self.part.transposed => {}
            Stored::Tensor(dtype) => {
                let (rows, row_bytes) = (self.part.in_tensor(rows), self.k * dtype.size());
                tensors.release_slice(&self.part.weight(), rows.start * row_bytes..rows.end * row_bytes);
            }
            Stored::Module(module) => module.release_rows(tensors, self.part.in_tensor(rows)),
        }
    }

    /// Lets go of all its pages, as it was packed.
    pub(super) fn release(&self, tensors: &Tensors) {
        match &self.stored {
            Stored::Tensor(_) if self.part.transposed => {
                tensors.release_slice(&self.part.weight(), 0..usize::MAX);
            }
            Stored::Tensor(_) => self.release_rows(tensors, 0..self.part.len()),
            Stored::Module(module) => {
                module.tensors().for_each(|name| tensors.release_slice(name, 0..usize::MAX));
            }
        }
    }

    /// Bytes of the checkpoint that a row takes, about.
    pub(super) fn row_bytes(&self, tensors: &Tensors) -> usize {
        match &self.stored {
            Stored::Tensor(dtype) => self.k * dtype.size(),
            Stored::Module(module) => {
                let bytes = module.tensors().filter_map(|name| tensors.info(name).ok()).map(|info| info.num_bytes);
                bytes.sum::<usize>() / module.shape()[0].max(1)
            }
        }
    }
}

/// Some columns of a matrix.
pub(super) struct Strip<'a> {
    part: &'a Part,
    tensors: &'a Tensors,
    values: Values<'a>,
}

enum Values<'a> {
    /// All of a tensor that lies row after row.
    Rows { dtype: DType, k: usize },
    /// Those of a tensor `[k, n]`: the lines of its bytes `range`, each of `n` rows, of which the part's begin with
    /// `first`.
    Columns { bytes: Cow<'a, [u8]>, dtype: DType, range: Range<usize>, n: usize, first: usize },
    /// Those of a module.
    Module(ModuleStrip<'a>),
}

impl Strip<'_> {
    /// Rows of the part: codes where they stay `in_blocks`, and else floats, as they are stored or as the format's own
    /// code dequantizes them; those of f64 as f32.
    pub(super) fn rows(&self, rows: Range<usize>, in_blocks: bool) -> Result<Piece<'_>> {
        let Self { part, tensors, .. } = self;
        let stored = part.in_tensor(rows.clone());
        let piece = match &self.values {
            Values::Rows { dtype, k } => {
                let row_bytes = k * dtype.size();
                let range = stored.start * row_bytes..stored.end * row_bytes;
                let (bytes, dtype) = packable(tensors.tensor_slice(&part.weight(), range)?.bytes, *dtype);
                Piece::Rows(bytes, dtype)
            }
            Values::Columns { bytes, dtype, n, first, .. } => {
                let start = (first + rows.start) * dtype.size();
                return Ok(Piece::Columns(bytes.get(start..).unwrap_or_default(), *dtype, *n));
            }
            Values::Module(module) if in_blocks => module.rows(stored.clone())?,
            Values::Module(module) => Piece::Rows(module.dequantized(stored.clone())?.into(), module.dtype()),
        };
        Ok(match part.step() {
            1 => piece,
            step => every_row(piece, stored.len(), step),
        })
    }

    /// Lets go of the pages of what was read of it.
    pub(super) fn release(&self) {
        match &self.values {
            Values::Rows { .. } => {}
            Values::Columns { range, .. } => self.tensors.release_slice(&self.part.weight(), range.clone()),
            Values::Module(module) => module.release(),
        }
    }
}

/// Every so many of `n` rows.
fn every_row(piece: Piece<'_>, n: usize, step: usize) -> Piece<'_> {
    let of = |bytes: &[u8]| every(bytes, n, 0..n, step, bytes.len() / n.max(1));
    match piece {
        Piece::Rows(bytes, dtype) => Piece::Rows(of(&bytes).into(), dtype),
        Piece::Codes { format, codes, scales, zeros } => {
            let zeros: Vec<i8> =
                zeros.chunks((zeros.len() / n.max(1)).max(1)).step_by(step).flatten().copied().collect();
            Piece::Codes { format, codes: of(&codes).into(), scales: of(&scales).into(), zeros: zeros.into() }
        }
        columns @ Piece::Columns(..) => columns,
    }
}

/// Of lines of `n` elements of so many bytes each, every so many of some of the elements.
fn every(bytes: &[u8], n: usize, some: Range<usize>, step: usize, size: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.len() / step);
    for line in bytes.chunks_exact((n * size).max(1)) {
        let some = &line[some.start * size..some.end * size];
        some.chunks(size.max(1)).step_by(step).for_each(|element| all.extend_from_slice(element));
    }
    all
}

/// Refuses those of so many rows of a tensor that cannot be quantized.
pub(super) fn check_piece(
    tensors: &Tensors,
    tensor: &str,
    piece: &Piece<'_>,
    rows: usize,
    format: BlockFormat,
) -> Result<()> {
    match piece {
        Piece::Rows(bytes, dtype) => check_quantizable(tensors, tensor, bytes, *dtype, format),
        Piece::Columns(bytes, dtype, columns) => {
            let (line, of_rows) = (columns * dtype.size(), rows * dtype.size());
            let mut lines = bytes.chunks(line.max(1)).map(|line| &line[..line.len().min(of_rows)]);
            lines.try_for_each(|line| check_quantizable(tensors, tensor, line, *dtype, format))
        }
        Piece::Codes { .. } => Ok(()),
    }
}

/// Refuses values of which a format has no scale that is a number, or whose codes times their scale may be none.
pub(crate) fn check_quantizable(
    tensors: &Tensors,
    tensor: &str,
    bytes: &[u8],
    dtype: DType,
    format: BlockFormat,
) -> Result<()> {
    let most = match format.scale_dtype() {
        DType::F16 => f16::MAX.to_f32(),
        // What a group with zero points spans is up to twice as much.
        _ => f32::MAX / 2.0,
    };
    if are_within(bytes, dtype, most) {
        return Ok(());
    }
    let tensor = tensor.escape_debug();
    let problem =
        format!("tensor `{tensor}` has values that are no numbers or beyond ±{most:.3e}, which cannot be quantized");
    Err(tensors.problem(problem))
}

/// The dtype of a tensor of floats, which must have this shape.
pub(super) fn check(tensors: &Tensors, name: &str, shape: &[usize]) -> Result<DType> {
    let info = tensors.info(name)?;
    same_shape(tensors, name, info.shape, shape)?;
    float_dtype(name, info.dtype)
}

fn same_shape(tensors: &Tensors, name: &str, found: &[usize], shape: &[usize]) -> Result<()> {
    if found == shape {
        return Ok(());
    }
    Err(Error::Config {
        file: tensors.name().to_owned(),
        problem: format!("tensor {name} has shape {found:?}, the config asks for {shape:?}"),
    })
}
