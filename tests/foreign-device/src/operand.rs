//! Operands as work on the device sees them.

use std::sync::Arc;

use sinew_kernels::harness::case::{decode, encode};
use sinew_memory::Storage;
use sinew_tensor::{DType, Layout, View};

use crate::device::LaggingStorage;
use crate::stream::LaggingStream;

/// A view that outlives its borrow: work may run when the caller's tensor is long gone.
pub(crate) struct Operand {
    storage: Arc<dyn Storage>,
    /// First byte of the buffer in the storage: a pool cuts several buffers from one.
    start: usize,
    dtype: DType,
    layout: Layout,
}

impl Operand {
    /// Takes hold of a view's storage, and notes that the stream uses its buffer.
    pub(crate) fn of(view: &View<'_>, stream: &LaggingStream) -> Self {
        stream.uses(view.buffer());
        let span = view.buffer().span();
        Self { storage: span.storage.clone(), start: span.offset, dtype: view.dtype(), layout: *view.layout() }
    }

    /// The type of the elements.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements in row-major order.
    pub(crate) fn read(&self) -> Result<Vec<f64>, String> {
        if self.layout.elements() == 0 {
            return Ok(Vec::new());
        }
        let size = self.dtype.size();
        let bytes = self.storage()?.lock();
        let span = &bytes[self.start + self.layout.offset() * size..self.start + self.layout.end() * size];
        let values = decode(self.dtype, span);
        Ok(self.layout.indices().map(|at| values[at - self.layout.offset()]).collect())
    }

    /// Writes the elements in row-major order, rounded to the operand's type.
    pub(crate) fn write(&self, values: &[f64]) -> Result<(), String> {
        debug_assert_eq!(values.len(), self.layout.elements());
        let size = self.dtype.size();
        let encoded = encode(self.dtype, values);
        let mut bytes = self.storage()?.lock();
        for (at, value) in self.layout.indices().zip(encoded.chunks_exact(size)) {
            bytes[self.start + at * size..][..size].copy_from_slice(value);
        }
        Ok(())
    }

    fn storage(&self) -> Result<&LaggingStorage, String> {
        LaggingStorage::of(&self.storage).ok_or_else(|| format!("{:?} is another device's", self.storage))
    }
}
