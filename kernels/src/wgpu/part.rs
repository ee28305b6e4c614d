//! What a kernel sees of a view.

use sinew_memory::Buffer;
use sinew_tensor::{DType, View};

use super::division::Limits;

/// Whether a view begins, and steps in every dimension but the last, at multiples of so many elements, and its last
/// dimension is contiguous: whether such vectors of elements can be loaded.
pub(crate) fn aligned(view: &View<'_>, elements: usize) -> bool {
    let begins = view.buffer().span().offset + view.layout().offset() * view.dtype().size();
    let strides = view.strides();
    begins.is_multiple_of(elements * view.dtype().size())
        && strides.split_last().is_none_or(|(&last, leading)| {
            (last == 1 || view.shape().last() == Some(&1)) && leading.iter().all(|s| s.is_multiple_of(elements))
        })
}

/// A view as a kernel sees it.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) dtype: DType,
    /// Elements of `dtype`: the view's first, and one past its last.
    pub(super) offset: usize,
    pub(super) end: usize,
    pub(super) written: bool,
    pub(super) quads: bool,
}

impl<'a> Part<'a> {
    /// A view that is read.
    pub(crate) fn read(view: &View<'a>) -> Self {
        let layout = view.layout();
        let (offset, end) = (layout.offset(), layout.end());
        Self { buffer: view.buffer(), dtype: view.dtype(), offset, end, written: false, quads: false }
    }

    /// A view that is written, and may be read.
    pub(crate) fn write(view: &View<'a>) -> Self {
        Self { written: true, ..Self::read(view) }
    }

    /// The same bytes as elements of another dtype: packed weights, caches.
    pub(crate) fn of(self, dtype: DType) -> Self {
        let [offset, end] = [self.offset, self.end].map(|at| at * self.dtype.size() / dtype.size());
        Self { dtype, offset, end, ..self }
    }

    /// Bound as vectors of four words: see [`aligned`].
    pub(crate) fn quads(self) -> Self {
        Self { quads: true, ..self }
    }

    /// Elements from the first to the last.
    pub(super) fn extent(&self) -> usize {
        self.end - self.offset
    }

    /// The bytes that are bound where they fit: of the buffer, if it does, since views that move about in it share a
    /// bind group then.
    pub(super) fn whole(&self, limits: &Limits) -> [usize; 2] {
        if self.buffer.len() <= limits.bytes {
            return [0, self.buffer.len()];
        }
        [self.offset, self.end].map(|at| at * self.dtype.size())
    }
}
