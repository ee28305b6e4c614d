//! A matrix as a checkpoint stores it, and the columns and rows of it that are packed.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;
use sinew_ops::layers::{Encoding, WeightRows};
use sinew_tensor::{BlockFormat, DType};

use super::Part;
use super::becomes::{Becomes, Dequantized, Why};
use crate::checkpoint::Checkpoint;
use crate::precision::{Precision, float_dtype};
use crate::quantized::{ModuleColumns, StoredModule};
use crate::tensors::Tensors;
use crate::tensors::floats::{are_within, packable};
use crate::{Error, Result};

/// A matrix `[n, k]`, whose tensors have the shape that is asked for.
pub(super) struct StoredMatrix {
    /// All its rows.
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

impl StoredMatrix {
    /// That of all rows of a tensor, or of a matrix in it, with rows of `k`.
    pub(super) fn of(checkpoint: &Checkpoint, part: Part, k: usize) -> Result<Self> {
        let Some(module) = checkpoint.module(part.name())? else {
            let stored = Stored::Tensor(check(checkpoint, &part.weight(), &part.shape(k))?);
            // A router stays as it is though the config calls its like quantized.
            if let Some(quantization) = checkpoint.quantization().filter(|_| part.may_be_quantized()) {
                quantization.check_floats(checkpoint, part.name())?;
            }
            return Ok(Self { part, stored, k });
        };
        if let Some(quantization) = checkpoint.quantization().filter(|_| part.is_of_conv1d()) {
            quantization.check_transposed(part.name())?;
        }
        let [found, asked] = [module.matrices(), part.module_shape(k)];
        same_shape(checkpoint, part.name(), less_one_matrix(&found), less_one_matrix(&asked))?;
        module.tensors().for_each(|name| checkpoint.mark_used(name));
        Ok(Self { part, stored: Stored::Module(Box::new(module)), k })
    }

    /// Names it, a table of embeddings alone, where it is quantized: tables are floats.
    pub(super) fn name_table(&self, precision: &Precision, dequantized: &mut Dequantized) {
        if precision.keeps_blocks && self.module().is_some() {
            dequantized.add(Why::Table, self.part.name());
        }
    }

    /// The blocks that it is in.
    pub(super) fn blocks(&self) -> Option<Encoding> {
        match &self.stored {
            Stored::Tensor(_) => None,
            Stored::Module(module) => Some(module.encoding()).filter(|it| matches!(it, Encoding::Blocks(_))),
        }
    }

    /// The module that it is, if it is no tensor of floats.
    pub(super) fn module(&self) -> Option<&StoredModule> {
        match &self.stored {
            Stored::Tensor(_) => None,
            Stored::Module(module) => Some(module),
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
    pub(super) fn columns<'a>(&'a self, tensors: &'a Tensors, columns: Range<usize>) -> Result<Columns<'a>> {
        let part = &self.part;
        let read = match &self.stored {
            Stored::Module(module) => Read::Module(module.columns(tensors, columns.clone())?),
            Stored::Tensor(dtype) if part.transposed => {
                let (line, before) = (part.of * dtype.size(), part.rows_before() * self.k * dtype.size());
                let range = before + columns.start * line..before + columns.end * line;
                let (bytes, dtype) = packable(tensors.tensor_slice(&part.weight(), range.clone())?.bytes, *dtype);
                Read::Lines { bytes, dtype, range }
            }
            Stored::Tensor(dtype) => Read::Nothing(*dtype),
        };
        Ok(Columns { matrix: self, tensors, columns, read })
    }

    /// Lets go of the pages of rows of its tensor that were packed, where they have pages of their own.
    pub(super) fn release_rows(&self, tensors: &Tensors, rows: Range<usize>) {
        match &self.stored {
            Stored::Tensor(_) if self.part.transposed => {}
            Stored::Tensor(dtype) => {
                let row_bytes = self.k * dtype.size();
                tensors.release_slice(&self.part.weight(), rows.start * row_bytes..rows.end * row_bytes);
            }
            Stored::Module(module) => module.release_rows(tensors, rows),
        }
    }

    /// Lets go of all its pages, as it was packed.
    pub(super) fn release(&self, tensors: &Tensors) {
        match &self.stored {
            Stored::Tensor(_) if self.part.transposed => {
                tensors.release_slice(&self.part.weight(), 0..usize::MAX);
            }
            Stored::Tensor(_) => self.release_rows(tensors, self.part.in_tensor(0..self.part.len())),
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
                let bytes = module.tensors().filter_map(|name| tensors.find(name)).map(|info| info.num_bytes);
                bytes.sum::<usize>() / module.shape()[0].max(1)
            }
        }
    }
}

/// Some columns of a matrix.
pub(super) struct Columns<'a> {
    matrix: &'a StoredMatrix,
    tensors: &'a Tensors,
    columns: Range<usize>,
    read: Read<'a>,
}

/// What is read of them before their rows are.
enum Read<'a> {
    /// Nothing: rows of a tensor of floats lie apart.
    Nothing(DType),
    /// Those of a tensor `[k, n]`: the lines of its bytes `range`.
    Lines { bytes: Cow<'a, [u8]>, dtype: DType, range: Range<usize> },
    /// Those of a module.
    Module(ModuleColumns<'a>),
}

impl Columns<'_> {
    /// Rows of the matrix: codes where they are packed as they are stored, and else floats, as they are stored or as the
    /// format's own code dequantizes them; those of f64 as f32. Floats that are to be quantized must have a scale.
    pub(super) fn rows(&self, rows: Range<usize>, becomes: &Becomes) -> Result<WeightRows<'_>> {
        let Self { matrix: StoredMatrix { part, .. }, tensors, columns, read } = self;
        let (weight, k, stored) = (part.weight(), columns.len(), part.in_tensor(rows.clone()));
        let n = rows.len();
        let check = |bytes: &[u8], dtype| match becomes.encoding {
            Encoding::Blocks(format) => check_quantizable(tensors, &weight, bytes, dtype, format),
            Encoding::Float(_) => Ok(()),
        };
        let rows = match read {
            Read::Nothing(dtype) => {
                let row_bytes = k * dtype.size();
                let range = stored.start * row_bytes..stored.end * row_bytes;
                let (bytes, dtype) = packable(tensors.tensor_slice(&weight, range)?.bytes, *dtype);
                check(&bytes, dtype)?;
                WeightRows::from_bytes(bytes, dtype, n, k)
            }
            Read::Lines { bytes, dtype, .. } => {
                let size = dtype.size();
                let bytes = bytes.get(rows.start * size..).unwrap_or_default();
                let lines = bytes.chunks((part.of * size).max(1));
                lines.map(|line| &line[..line.len().min(n * size)]).try_for_each(|line| check(line, *dtype))?;
                WeightRows::from_columns(bytes, *dtype, n, k, part.of)
            }
            Read::Module(module) if becomes.as_stored => return module.rows(stored),
            Read::Module(module) => {
                let floats = module.dequantized(stored)?;
                check(&floats, module.dtype())?;
                WeightRows::from_bytes(floats, module.dtype(), n, k)
            }
        };
        Ok(rows.map_err(sinew_ops::Error::from)?)
    }

    /// Lets go of the pages of what was read of it.
    pub(super) fn release(&self) {
        match &self.read {
            Read::Nothing(_) => {}
            Read::Lines { range, .. } => self.tensors.release_slice(&self.matrix.part.weight(), range.clone()),
            Read::Module(module) => module.release(),
        }
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

/// The dtype of a tensor of floats, which must have this shape, and counts as used.
pub(super) fn check(tensors: &Tensors, name: &str, shape: &[usize]) -> Result<DType> {
    let info = tensors.info(name)?;
    same_shape(tensors, name, info.shape, shape)?;
    tensors.mark_used(name);
    float_dtype(name, info.dtype)
}

/// The shape of so many matrices, as that of a matrix alone where it is one.
fn less_one_matrix(shape: &[usize; 3]) -> &[usize] {
    if shape[0] == 1 { &shape[1..] } else { shape }
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
