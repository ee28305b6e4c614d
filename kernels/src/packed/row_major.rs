//! Packing into rows: a copy, with a conversion where the types differ.

use sinew_tensor::DType;

use super::Weights;
use super::rows::WeightRow;
use crate::cpu::line::Line;
use crate::simd::{Kernel, Simd};
use crate::strided::{Scratch, blocks};

/// Values that a task copies at least: less is not worth a thread.
const GRAIN: usize = 64 * 1024;

/// A task copies some rows.
pub(super) struct Copy<'a> {
    pub(super) dtype: DType,
    pub(super) weights: &'a Weights<'a>,
    /// The first of the weights' values in rows of `k`.
    pub(super) start: usize,
    pub(super) k: usize,
    pub(super) packed: *mut u8,
}

// SAFETY: tasks write disjoint rows through the pointer and only read the rest.
unsafe impl Sync for Copy<'_> {}

impl Copy<'_> {
    fn rows_per_task(&self) -> usize {
        GRAIN.div_ceil(self.weights.k().max(1))
    }

    pub(super) fn tasks(&self) -> usize {
        self.weights.n().div_ceil(self.rows_per_task())
    }
}

impl Kernel for Copy<'_> {
    #[inline(always)]
    unsafe fn task<S: Simd>(&self, task: usize, _worker: usize) {
        let (k, outputs, size) = (self.weights.k(), self.weights.outputs(), self.dtype.size());
        let first = task * self.rows_per_task();
        let mut scratch = Scratch::new();
        for row in first..(first + self.rows_per_task()).min(outputs.n) {
            let Some(from) = self.weights.row(row).and_then(WeightRow::line) else { break };
            // SAFETY: `Format::pack` checked that rows are in their pieces and that the row is in the packed bytes; a
            // block has at most as many values as the scratch holds.
            unsafe {
                let to = self.packed.add((outputs.row_major(row) * self.k + self.start) * size);
                if from.dtype == self.dtype && from.step == 1 {
                    std::ptr::copy_nonoverlapping(from.ptr(), to, k * size);
                    continue;
                }
                let to = Line::new(to, self.dtype, 1);
                for (start, len) in blocks(k) {
                    from.skip(start).widen::<S>(len, scratch.ptr());
                    to.skip(start).store_block::<S>(len, scratch.ptr());
                }
            }
        }
    }
}
