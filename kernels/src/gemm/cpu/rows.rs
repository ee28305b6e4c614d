//! Where the rows of operands lie.

use sinew_tensor::{DType, View};

use crate::Result;
use crate::cpu::line::Line;

/// A `[batch, M, …]` operand: where each row is.
///
/// Where all products share one right operand, rows of all of them are counted through from the first of the batch on.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperandRows {
    pub dtype: DType,
    /// Elements from value to value of a row.
    pub k_stride: usize,
    ptr: *const u8,
    /// Rows of a batch; without an end where the next batch goes on at the same stride.
    m: usize,
    batch_stride: usize,
    row_stride: usize,
}

impl OperandRows {
    /// The rows of `[batch, m, …]` on the host.
    pub fn new(view: &View<'_>, m: usize) -> Result<Self> {
        let (ptr, strides) = (view.host_ptr()?, view.strides());
        let (batch_stride, row_stride, k_stride) = (strides[0], strides[1], strides[2]);
        let m = if view.shape()[0] == 1 || batch_stride == m * row_stride { usize::MAX } else { m };
        Ok(Self { dtype: view.dtype(), k_stride, ptr, m, batch_stride, row_stride })
    }

    /// The first value of a row.
    #[inline(always)]
    pub fn address(&self, batch: usize, row: usize) -> *const u8 {
        // A division takes as long as a result's own arithmetic.
        let (batch, row) = if row < self.m { (batch, row) } else { (batch + row / self.m, row % self.m) };
        let at = batch * self.batch_stride + row * self.row_stride;
        self.ptr.wrapping_add(at * self.dtype.size())
    }

    /// A row.
    #[inline(always)]
    pub fn line(&self, batch: usize, row: usize) -> Line {
        Line::new(self.address(batch, row), self.dtype, self.k_stride)
    }
}
