//! Where the rows of operands lie, and in which order a packed weight has their values.

use sinew_tensor::{DType, View};

use crate::Result;
use crate::cpu::line::Line;
use crate::gemm::{GemmStatic, refuse};

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

/// For each step of a weight's sums the column of the left operand that is multiplied, for one weight after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    ptr: *const u32,
}

impl Order {
    /// That of a problem, if it has one.
    ///
    /// # Errors
    /// A column that is not there, or device memory.
    pub fn new(fixed: &GemmStatic, order: Option<&View<'_>>) -> Result<Option<Self>> {
        let Some(order) = order.filter(|_| fixed.gathered) else { return Ok(None) };
        let ptr: *const u32 = order.host_ptr()?.cast();
        // SAFETY: the operator's check has seen that they are contiguous u32.
        let column = |at: usize| unsafe { ptr.add(at).read_unaligned() } as usize;
        // All are looked at, so that it can be done in vectors: their number is that of one row.
        let columns = order.layout().elements();
        if !(0..columns).fold(true, |there, at| there & (column(at) < fixed.k)) {
            let at = (0..columns).find(|&at| column(at) >= fixed.k).unwrap_or(0);
            return Err(refuse(format!("the order names column {} of {}", column(at), fixed.k)));
        }
        Ok(Some(Self { ptr }))
    }

    /// That of the weight with some number, of which each has `k` inputs.
    #[inline(always)]
    pub fn of(self, right: usize, k: usize) -> *const u32 {
        self.ptr.wrapping_add(right * k)
    }
}
