//! Rows of a table by number.

use std::sync::Arc;

use sinew_kernels::embedding::{Embedding as Operator, EmbeddingDynamic, EmbeddingStatic, TableKind};
use sinew_tensor::{DType, Tensor, View, ViewMut};

use super::{PackedShape, PackedWeight, bytes, names, size};
use crate::error::{operand, refuse};
use crate::{Context, Planned, Result};

/// An embedding whose rows come from a table, or from a packed weight that is also the head.
#[derive(Debug)]
pub struct Embedding {
    table: Table,
    plan: Planned<Operator>,
}

#[derive(Debug)]
enum Table {
    Own(Tensor),
    Shared(Arc<PackedWeight>),
}

impl Embedding {
    /// Plans an embedding from `table [vocab, width]`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn table(ctx: &Context, table: Tensor, output: DType) -> Result<Self> {
        let kind = TableKind::Strided(table.dtype());
        let &[vocab, width] = table.shape() else {
            return Err(refuse("embedding", format!("{}; expected [vocab, width]", operand("the table", &table))));
        };
        let plan = plan(ctx, vocab, width, kind, output)?;
        Ok(Self { table: Table::Own(table), plan })
    }

    /// Plans an embedding from the packed weight `[vocab, width]` of a tied head: the table is held once.
    ///
    /// # Errors
    /// A weight that has its inputs in another order, or no kernel for it on the context's device.
    pub fn packed(ctx: &Context, weight: Arc<PackedWeight>, output: DType) -> Result<Self> {
        if weight.order().is_some() {
            return Err(refuse("embedding", "rows of a weight that has its inputs in another order"));
        }
        let &PackedShape { format, n, k, .. } = weight.shape();
        let plan = plan(ctx, n, k, TableKind::Packed(format), output)?;
        Ok(Self { table: Table::Shared(weight), plan })
    }

    /// Enqueues the rows of `ids` (u32 `[tokens]`) to `out [tokens, width]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or an id that is not in the table.
    pub fn run(&self, ctx: &Context, ids: View<'_>, out: ViewMut<'_>) -> Result<()> {
        let table = match &self.table {
            Table::Own(table) => table.view(),
            Table::Shared(weight) => weight.tensor().view(),
        };
        let call = EmbeddingDynamic { tokens: size(&ids, 0) };
        self.plan.run(ctx, &call, &[Some(ids), Some(table)], &[out])
    }

    /// Bytes of a table that nothing else holds.
    pub fn own_bytes(&self) -> usize {
        match &self.table {
            Table::Own(table) => bytes(table),
            Table::Shared(_) => 0,
        }
    }

    /// Kernels chosen.
    pub fn kernels(&self) -> Vec<&'static str> {
        names(&self.plan)
    }
}

/// Rows of a tensor that changes from run to run, by number.
#[derive(Debug)]
pub struct RowGather {
    plan: Planned<Operator>,
    rows: usize,
}

impl RowGather {
    /// Plans the gather of rows from tensors `[rows, width]`.
    ///
    /// # Errors
    /// No kernel for it on the context's device.
    pub fn new(ctx: &Context, dtype: DType, rows: usize, width: usize) -> Result<Self> {
        Ok(Self { plan: plan(ctx, rows, width, TableKind::Strided(dtype), dtype)?, rows })
    }

    /// The number of rows that a table must have.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Enqueues the rows `ids` (u32 `[n]`) of `table [rows, width]` to `out [n, width]`.
    ///
    /// # Errors
    /// Operands of other shapes or dtypes than planned, or a number that is not a row.
    pub fn run(&self, ctx: &Context, table: View<'_>, ids: View<'_>, out: ViewMut<'_>) -> Result<()> {
        let call = EmbeddingDynamic { tokens: size(&ids, 0) };
        self.plan.run(ctx, &call, &[Some(ids), Some(table)], &[out])
    }
}

fn plan(ctx: &Context, vocab: usize, width: usize, table: TableKind, out: DType) -> Result<Planned<Operator>> {
    ctx.plan(EmbeddingStatic { width, vocab, table, out }, &[EmbeddingDynamic { tokens: 1 }])
}
