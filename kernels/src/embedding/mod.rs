//! Embedding: rows of a table by number, `out[t] = table[ids[t]]`.
//!
//! The table is a tensor, or the packed weight of a tied head, so that a tied embedding is held once. Values are
//! widened or rounded to the result's type; widening is exact.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

#[cfg(feature = "cuda")]
pub(crate) use cuda::CUDA;

use std::fmt;

use sinew_tensor::DType;

use crate::operator::{count_of, expect, expect_compute, refuse};
use crate::packed::Format;
use crate::strided::Indices;
use crate::table::joined;
use crate::{Operands, Operator, Result, Row, Work};

/// The operator: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Embedding;

/// Input: ids, u32, i32 or i64 `[tokens]`, each below `vocab`.
pub const IDS: usize = 0;
/// Input: the table `[vocab, width]`, or the packed bytes of a weight `[vocab, width]` that is not gated.
pub const TABLE: usize = 1;
/// Output: `[tokens, width]`.
pub const OUT: usize = 0;

/// What the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// A tensor of f32, f16 or bf16 in any strides.
    Strided(DType),
    /// A packed weight.
    Packed(&'static Format),
}

/// The static part of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingStatic {
    /// Values of a row.
    pub width: usize,
    /// Rows of the table.
    pub vocab: usize,
    /// What the table is.
    pub table: TableKind,
    /// Type of the result: f32, f16 or bf16.
    pub out: DType,
}

impl fmt::Display for EmbeddingStatic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, ", count_of(self.vocab, "row"), self.width)?;
        match self.table {
            TableKind::Strided(dtype) => write!(f, "{dtype}")?,
            TableKind::Packed(format) => write!(f, "packed({})", format.name())?,
        }
        write!(f, "→{}", self.out)
    }
}

/// The dynamic part of the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingDynamic {
    /// Ids.
    pub tokens: usize,
}

impl fmt::Display for EmbeddingDynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&count_of(self.tokens, "token"))
    }
}

/// The rows of [`Embedding`].
pub fn rows() -> Vec<Row<Embedding>> {
    joined(&mut [
        cpu::rows(),
        #[cfg(feature = "cuda")]
        cuda::rows(),
        #[cfg(feature = "wgpu")]
        vec![wgpu::row()],
    ])
}

impl Operator for Embedding {
    const NAME: &'static str = "embedding";
    type Static = EmbeddingStatic;
    type Dynamic = EmbeddingDynamic;

    fn bucket(call: EmbeddingDynamic) -> EmbeddingDynamic {
        EmbeddingDynamic { tokens: call.tokens.min(1) }
    }

    fn anchor(_: &EmbeddingStatic) -> EmbeddingDynamic {
        EmbeddingDynamic { tokens: 1 }
    }

    fn check(fixed: &EmbeddingStatic, call: &EmbeddingDynamic, operands: Operands<'_>) -> Result<()> {
        let ids = operands.input(Self::NAME, IDS, "ids")?;
        Indices::check_dtype(Self::NAME, "ids", ids.dtype())?;
        expect(Self::NAME, "ids", ids, ids.dtype(), &[call.tokens])?;
        let table = operands.input(Self::NAME, TABLE, "table")?;
        let (dtype, shape): (DType, &[usize]) = match fixed.table {
            TableKind::Strided(dtype) => (dtype, &[fixed.vocab, fixed.width]),
            TableKind::Packed(format) => (DType::U8, &[format.packed_bytes(fixed.vocab, fixed.width, false)]),
        };
        let packed = matches!(fixed.table, TableKind::Packed(_));
        expect(Self::NAME, "table", table, dtype, shape)?;
        if packed && !table.layout().is_contiguous() {
            return Err(refuse(Self::NAME, format!("the packed table is {:?}, not contiguous", table.layout())));
        }
        let out = operands.output(Self::NAME, OUT, "out")?;
        expect(Self::NAME, "out", out, fixed.out, &[call.tokens, fixed.width])?;
        expect_compute(Self::NAME, fixed, [fixed.out, if packed { DType::F32 } else { dtype }])
    }

    fn work(fixed: &EmbeddingStatic, call: &EmbeddingDynamic) -> Work {
        let row = match fixed.table {
            TableKind::Strided(dtype) => fixed.width * dtype.size(),
            TableKind::Packed(format) => format.unit_bytes(fixed.width, false) / format.outputs_per_unit(false),
        };
        Work { flops: 0.0, bytes: (call.tokens * (row + fixed.width * fixed.out.size())) as f64 }
    }
}
