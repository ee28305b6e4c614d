//! Embedding in WGSL: pairs of columns.

use sinew_memory::DeviceKind;
use sinew_tensor::DType;

use super::{Embedding, EmbeddingDynamic, EmbeddingStatic, IDS, OUT, TABLE, TableKind};
use crate::operator::Refusal;
use crate::rates::predicted;
use crate::wgpu::{Call, Part, arithmetic};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// Exact, or rounded once to nearest, but that f16 may lose its subnormals.
const NEAREST: Arithmetic = arithmetic("embedding.wgpu");
/// Threads of a workgroup.
const THREADS: usize = 64;
/// Share of the memory rate.
const READS: f64 = 0.5;

pub(super) fn row() -> Row<Embedding> {
    Row {
        name: "embedding.wgpu",
        device: DeviceKind::WGPU,
        arithmetic: NEAREST,
        admits: |fixed, _| stored(fixed).map(drop),
        cost: |fixed, call, hardware| predicted::by_shares(Embedding::work(fixed, call), hardware, READS, 1.0),
        workspace: |_, _, _| 0,
        run,
    }
}

/// What the table holds.
fn stored(fixed: &EmbeddingStatic) -> Result<DType, Refusal> {
    match fixed.table {
        TableKind::Strided(dtype) => Ok(dtype),
        TableKind::Packed(format) => {
            format.row_dtype().map_err(|_| format!("reads packed rows, not {}", format.name()).into())
        }
    }
}

unsafe fn run(
    launch: &Launch<'_>,
    fixed: &EmbeddingStatic,
    call: &EmbeddingDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let ids = operands.input(Embedding::NAME, IDS, "ids")?;
    let table = operands.input(Embedding::NAME, TABLE, "table")?;
    let out = operands.output(Embedding::NAME, OUT, "out")?.view();
    let (dtype, [row, step]) = match fixed.table {
        TableKind::Strided(dtype) => (dtype, [table.strides()[0], table.strides()[1]]),
        TableKind::Packed(format) => (format.row_dtype()?, [fixed.width, 1]),
    };
    let mut kernel = Call::new(launch, "embedding.wgpu", include_str!("wgpu.wgsl"))?;
    kernel.reports();
    kernel.write("out", out)?;
    kernel.read("ids", ids)?;
    kernel.part("table", Part::read(table).of(dtype))?;
    kernel.dimension(("tokens", call.tokens), None, &[("out", out.strides()[0]), ("ids", ids.strides()[0])])?;
    kernel.dimension(("rows", fixed.vocab), Some("first"), &[("table", row)])?;
    kernel.param("ids_step", ids.strides()[0])?;
    kernel.param("table_row", row)?;
    kernel.param("table_step", step)?;
    kernel.param("out_row", out.strides()[0])?;
    kernel.param("out_step", out.strides()[1])?;
    kernel.param("width", fixed.width)?;
    kernel.param("vocab", fixed.vocab)?;
    kernel.dispatch_in_parts(|p| (p("tokens") * fixed.width.div_ceil(2)).div_ceil(THREADS))
}
