//! Embedding on the CPU: one body at three levels. It moves bytes; the levels matter for the conversion only.

use sinew_memory::{Hardware, SimdLevel};

use super::{Embedding, EmbeddingDynamic, EmbeddingStatic, IDS, OUT, TABLE, TableKind};
use crate::cpu::leveled::{self, AtLevel, Leveled};
use crate::cpu::line::Line;
use crate::packed::Format;
use crate::simd::{self, Kernel, Simd};
use crate::strided::{Address, Indices, Scratch, blocks};
use crate::{Arithmetic, Launch, Operands, Operator, Result, Row};

/// Every row converts exactly, or rounds once to nearest: there is one arithmetic.
const ARITHMETIC: Arithmetic = Arithmetic::named("embedding");

struct Gather {
    ids: Indices,
    id_step: usize,
    table: Address,
    table_steps: [usize; 2],
    kind: TableKind,
    vocab: usize,
    width: usize,
    out: Address,
    out_steps: [usize; 2],
    out_dtype: sinew_tensor::DType,
    tokens: usize,
    per_task: usize,
    scratch: *mut f32,
}

// SAFETY: tasks write rows of their own, and scratch of their own worker.
unsafe impl Sync for Gather {}

/// Values that one task moves at least.
const GRAIN: usize = 16 * 1024;

pub(super) fn rows() -> Vec<Row<Embedding>> {
    leveled::rows()
}

impl Leveled for Embedding {
    const PORTABLE: AtLevel =
        AtLevel { name: "embedding.cpu.portable", arithmetic: ARITHMETIC, reads: 0.3, computes: 1.0 };
    const AVX2: AtLevel = AtLevel { name: "embedding.cpu.avx2", arithmetic: ARITHMETIC, reads: 0.6, computes: 1.0 };
    const AVX512: AtLevel = AtLevel { name: "embedding.cpu.avx512", arithmetic: ARITHMETIC, reads: 0.7, computes: 1.0 };

    fn scratch(fixed: &EmbeddingStatic, _: &EmbeddingDynamic, hardware: &Hardware) -> usize {
        match fixed.table {
            TableKind::Strided(_) => 0,
            TableKind::Packed(_) => hardware.threads * fixed.width * size_of::<f32>(),
        }
    }

    unsafe fn run(
        level: SimdLevel,
        launch: &Launch<'_>,
        fixed: &EmbeddingStatic,
        call: &EmbeddingDynamic,
        operands: Operands<'_>,
    ) -> Result<()> {
        let team = launch.team()?;
        let ids = operands.input(Embedding::NAME, IDS, "ids")?;
        let table = operands.input(Embedding::NAME, TABLE, "table")?;
        let out = operands.output(Embedding::NAME, OUT, "out")?;
        if call.tokens == 0 || fixed.width == 0 {
            return Ok(());
        }
        let scratch = match fixed.table {
            TableKind::Strided(_) => 0,
            TableKind::Packed(_) => team.threads() * fixed.width * size_of::<f32>(),
        };
        let table_steps = match fixed.table {
            TableKind::Strided(_) => [table.strides()[0], table.strides()[1]],
            TableKind::Packed(_) => [0, 0],
        };
        let per_task = GRAIN.div_ceil(fixed.width);
        let gather = Gather {
            ids: Indices::checked(Embedding::NAME, ids, fixed.vocab, "rows of the table")?,
            id_step: ids.strides()[0],
            table: Address::read(table.host_ptr()?),
            table_steps,
            kind: fixed.table,
            vocab: fixed.vocab,
            width: fixed.width,
            out: Address(out.host_ptr()?),
            out_steps: [out.strides()[0], out.strides()[1]],
            out_dtype: fixed.out,
            tokens: call.tokens,
            per_task,
            scratch: launch.host_workspace(scratch)?.cast(),
        };
        // SAFETY: shapes were checked by the operator and ids just now; each task has its own rows of the result.
        unsafe { simd::launch(level, team, call.tokens.div_ceil(per_task), &gather) };
        Ok(())
    }
}

impl Gather {
    /// Row `id` of a packed table, widened into the worker's scratch.
    unsafe fn unpack(&self, format: &Format, id: usize, worker: usize) -> *const f32 {
        // SAFETY: the workspace holds a row for each worker, and no two tasks share one.
        let row = unsafe { std::slice::from_raw_parts_mut(self.scratch.add(worker * self.width), self.width) };
        let bytes = format.packed_bytes(self.vocab, self.width, false);
        // SAFETY: the operator checked that the table has as many bytes.
        let packed = unsafe { std::slice::from_raw_parts(self.table.0.cast_const(), bytes) };
        let unpacked = format.unpack_row(packed, self.vocab, self.width, false, id, row);
        debug_assert!(unpacked.is_ok());
        row.as_ptr()
    }
}

impl Kernel for Gather {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, worker: usize) {
        let mut scratch = Scratch::new();
        let first = task * self.per_task;
        for token in first..(first + self.per_task).min(self.tokens) {
            // SAFETY: `token` is below the number of ids; ids are rows of the table; both operands have `width`
            // columns, which are taken a block at a time.
            unsafe {
                let id = self.ids.get(token * self.id_step);
                let packed = match self.kind {
                    TableKind::Packed(format) => Some(self.unpack(format, id, worker)),
                    TableKind::Strided(_) => None,
                };
                for (start, len) in blocks(self.width) {
                    let values = match (self.kind, packed) {
                        (TableKind::Strided(dtype), _) => {
                            let [row, column] = self.table_steps;
                            let table = Line::new(self.table.0, dtype, column);
                            table.moved(id * row).skip(start).block::<S>(len, scratch.ptr())
                        }
                        (_, Some(row)) => row.add(start),
                        (_, None) => continue,
                    };
                    let [row, column] = self.out_steps;
                    let out = Line::new(self.out.0, self.out_dtype, column);
                    out.moved(token * row).skip(start).store_block::<S>(len, values);
                }
            }
        }
    }
}
