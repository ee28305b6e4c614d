//! One row for tensors and for weights held in rows.

use bytemuck::{Pod, Zeroable};
use sinew_memory::DeviceKind;
use sinew_memory::cuda::CudaModule;

use super::{Embedding, EmbeddingDynamic, EmbeddingStatic, IDS, OUT, TABLE, TableKind};
use crate::cuda::{self, Kernel, THREADS};
use crate::operator::refuse;
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// The kernel's source.
pub static CUDA: CudaModule = cuda::module!("embedding", "cuda.cu");
static EMBEDDING: Kernel = Kernel { module: &CUDA, name: "embedding" };

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    ids: u64,
    table: u64,
    out: u64,
    status: u64,
    id_stride: i64,
    table_strides: [i64; 2],
    out_strides: [i64; 2],
    values: u64,
    vocab: u64,
    width: u32,
    ids_type: u32,
    table_type: u32,
    out_type: u32,
}

pub(super) fn rows() -> Vec<Row<Embedding>> {
    vec![Row {
        name: "embedding.cuda",
        device: DeviceKind::CUDA,
        // Converted exactly or rounded once, as everywhere.
        arithmetic: Arithmetic::named("embedding"),
        admits: |fixed, _| match fixed.table {
            TableKind::Packed(format) if !format.is_row_major() => {
                Err(format!("reads weights in rows, not packed({})", format.name()).into())
            }
            _ => Ok(()),
        },
        cost: |fixed, call, hardware| cuda::cost(Embedding::work(fixed, call), hardware, 0.5, 1.0),
        workspace: |_, _, _| 0,
        run,
    }]
}

/// # Safety
/// That of [`Row::run`].
unsafe fn run(
    launch: &Launch<'_>,
    fixed: &EmbeddingStatic,
    call: &EmbeddingDynamic,
    operands: Operands<'_>,
) -> Result<()> {
    let ids = operands.input(Embedding::NAME, IDS, "ids")?;
    let table = operands.input(Embedding::NAME, TABLE, "table")?;
    let out = operands.output(Embedding::NAME, OUT, "out")?.view();
    let (table_type, table_strides) = match fixed.table {
        TableKind::Strided(dtype) => (dtype, [table.strides()[0], table.strides()[1]]),
        TableKind::Packed(format) => (format.row_dtype()?, [fixed.width, 1]),
    };
    let values = call.tokens * fixed.width;
    let params = Params {
        ids: cuda::pointer(ids)?,
        table: cuda::pointer(table)?,
        out: cuda::pointer(out)?,
        status: cuda::status_pointer(launch, &EMBEDDING, cuda::OUTSIDE)?,
        id_stride: ids.strides()[0] as i64,
        table_strides: table_strides.map(|stride| stride as i64),
        out_strides: [0, 1].map(|d| out.strides()[d] as i64),
        values: values as u64,
        vocab: fixed.vocab as u64,
        width: u32::try_from(fixed.width)
            .map_err(|_| refuse(Embedding::NAME, format!("{fixed}: rows are too wide")))?,
        ids_type: cuda::code(ids.dtype()),
        table_type: cuda::code(table_type),
        out_type: cuda::code(fixed.out),
    };
    let blocks = cuda::blocks(values, THREADS);
    // SAFETY: the operator's check has seen shapes and dtypes, and the kernel leaves out ids that the table does not
    // have; views lie within their buffers, and a thread alone has its values of the output.
    unsafe { cuda::launch(launch, &EMBEDDING, [blocks, 1, 1], THREADS, 0, &params, operands) }
}
