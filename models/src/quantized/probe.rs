//! The tensors of one module, as the header of the checkpoint has them, and errors that name them.

use std::fmt::Display;

use safetensors::Dtype;
use sinew_tensor::DType;

use crate::error::{Error, Result};
use crate::tensors::Tensors;
use crate::tensors::floats::float;

/// A module whose tensors are looked for.
#[derive(Clone, Copy)]
pub(super) struct Probe<'a> {
    pub tensors: &'a Tensors,
    pub module: &'a str,
    /// What the config says of it, for messages.
    pub format: &'a str,
}

/// A tensor that is there.
pub(super) struct Found<'a> {
    pub name: String,
    pub dtype: Dtype,
    pub shape: &'a [usize],
}

impl Found<'_> {
    /// Whether it is one value, of whatever dimensions.
    pub fn is_single(&self) -> bool {
        self.shape.iter().all(|&extent| extent == 1)
    }
}

impl<'a> Probe<'a> {
    /// An error that names the module and its format.
    pub fn problem(&self, problem: impl Display) -> Error {
        let (module, format) = (self.module.escape_debug(), self.format);
        self.tensors.problem(format!("module `{module}` ({format}): {problem}"))
    }

    /// Whether it is a module of a layer: these have a number.
    pub fn is_of_layer(&self) -> bool {
        self.module.split('.').any(|part| part.parse::<usize>().is_ok())
    }

    /// A tensor of the module, if it is there.
    pub fn find(&self, tensor: &str) -> Option<Found<'a>> {
        self.find_named(format!("{}.{tensor}", self.module))
    }

    /// A tensor by its whole name.
    pub fn find_named(&self, name: String) -> Option<Found<'a>> {
        let info = self.tensors.find(&name)?;
        Some(Found { name, dtype: info.dtype, shape: info.shape })
    }

    /// Refuses tensors of a quantized weight beside a weight of floats.
    pub fn refuse_beside_floats(&self, parts: &[&str]) -> Result<()> {
        parts.iter().find_map(|part| self.find(part)).map_or(Ok(()), |found| self.refuse_beside(&found))
    }

    /// The same of one that was found.
    pub fn refuse_beside(&self, found: &Found<'_>) -> Result<()> {
        let name = found.name.escape_debug();
        Err(self.problem(format!("its weight is not quantized, and there is `{name}`")))
    }

    /// A tensor of the module, of one of these dtypes.
    pub fn tensor(&self, tensor: &str, dtypes: &[Dtype]) -> Result<Found<'a>> {
        let found = self.find(tensor).ok_or_else(|| {
            let module = self.module.escape_debug();
            self.problem(format!("there is no `{module}.{tensor}`, which holds a part of the weight"))
        })?;
        self.check_dtype(&found, dtypes)?;
        Ok(found)
    }

    pub fn check_dtype(&self, found: &Found<'_>, dtypes: &[Dtype]) -> Result<()> {
        if dtypes.contains(&found.dtype) {
            return Ok(());
        }
        let (name, dtype) = (found.name.escape_debug(), found.dtype);
        let expected: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype:?}")).collect();
        Err(self.problem(format!("`{name}` has dtype {dtype:?}, expected {}", expected.join(" or "))))
    }

    pub fn check_shape(&self, found: &Found<'_>, shape: &[usize]) -> Result<()> {
        if found.shape == shape {
            return Ok(());
        }
        let (name, has) = (found.name.escape_debug(), found.shape);
        Err(self.problem(format!("`{name}` has shape {has:?}, expected {shape:?}")))
    }

    /// Refuses all but tensors of one value.
    pub fn check_single(&self, found: &Found<'_>) -> Result<()> {
        if found.is_single() {
            return Ok(());
        }
        let (name, has) = (found.name.escape_debug(), found.shape);
        Err(self.problem(format!("`{name}` has shape {has:?}, expected one value for the whole weight")))
    }

    /// The extents of a matrix that has elements.
    pub fn matrix(&self, found: &Found<'_>) -> Result<[usize; 2]> {
        match *found.shape {
            [n, k] if n > 0 && k > 0 => Ok([n, k]),
            ref other => {
                let name = found.name.escape_debug();
                Err(self.problem(format!("`{name}` has shape {other:?}, expected a matrix")))
            }
        }
    }

    /// A product of extents that a file gives.
    pub fn times(&self, a: usize, b: usize) -> Result<usize> {
        a.checked_mul(b).ok_or_else(|| self.problem(format!("a weight with a dimension of {a} times {b}")))
    }

    /// The integers of a short tensor of I32 or I64, of `count` elements.
    pub fn integers(&self, found: &Found<'_>, count: usize) -> Result<Vec<i64>> {
        /// No published weight has as many columns.
        const MOST: usize = 1 << 24;
        self.check_shape(found, &[count])?;
        if count > MOST {
            return Err(self.problem(format!("`{}` has {count} integers, more than {MOST}", found.name.escape_debug())));
        }
        let bytes = self.tensors.tensor(&found.name)?.bytes;
        match found.dtype {
            Dtype::I32 => Ok(bytes.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect()),
            Dtype::I64 => Ok(bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect()),
            _ => Err(self.problem(format!("`{}` holds no integers", found.name.escape_debug()))),
        }
    }

    /// The group of each of `k` columns, each of `groups`, as `g_idx` has it; `None` where it is `i / size`.
    pub fn group_index(&self, found: &Found<'_>, k: usize, size: usize, groups: usize) -> Result<Option<Vec<u32>>> {
        let groups_of_columns = self.integers(found, k)?;
        let mut index = Vec::with_capacity(k);
        for group in groups_of_columns {
            match u32::try_from(group) {
                Ok(known) if (known as usize) < groups => index.push(known),
                _ => {
                    let name = found.name.escape_debug();
                    return Err(self.problem(format!("`{name}` names group {group} of {groups}")));
                }
            }
        }
        let in_order = index.chunks(size).enumerate().all(|(at, of)| of.iter().all(|&group| group as usize == at));
        Ok((!in_order).then_some(index))
    }
}

/// The dtypes that scales may have.
pub(super) const SCALES: [Dtype; 3] = [Dtype::F16, Dtype::BF16, Dtype::F32];

/// The dtype in memory of scales in a file. Those of F8_E8M0, powers of 2, become bf16, which has them all.
pub(super) fn scale_dtype(dtype: Dtype) -> DType {
    float(dtype).unwrap_or(DType::BF16)
}
