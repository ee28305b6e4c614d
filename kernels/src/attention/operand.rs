//! Strided operands on the host: where an index is, and the line that begins there.

use sinew_tensor::{DType, View};

use crate::Result;
use crate::cpu::line::Line;

/// An operand of up to four dimensions: base address, and strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Strided {
    base: *const u8,
    pub strides: [usize; 4],
    pub dtype: DType,
}

impl Strided {
    /// The operand of a view of at most four dimensions; missing ones have stride 0.
    ///
    /// # Errors
    /// Memory that the host cannot reach.
    pub fn new(view: &View<'_>) -> Result<Self> {
        debug_assert!(view.shape().len() <= 4);
        let mut strides = [0; 4];
        strides.iter_mut().zip(view.strides()).for_each(|(to, from)| *to = *from);
        Ok(Self { base: view.host_ptr()?, strides, dtype: view.dtype() })
    }

    /// The codes of a cache with scales, as `[num_blocks, num_kv_heads, block_size, head_dim]` of `dtype`. The head's
    /// scales, f32, begin where there would be one slot more.
    ///
    /// # Errors
    /// Memory that the host cannot reach.
    pub fn codes(view: &View<'_>, head_dim: usize, dtype: DType) -> Result<Self> {
        let [block, head, ..] = Self::new(view)?.strides;
        Ok(Self { base: view.host_ptr()?, strides: [block, head, head_dim, 1], dtype })
    }

    /// The same operand with a leading dimension of stride 0.
    pub fn broadcast(self) -> Self {
        let [a, b, c, _] = self.strides;
        Self { strides: [0, a, b, c], ..self }
    }

    /// The address of an index.
    ///
    /// # Safety
    /// The index is inside the view's shape.
    #[inline(always)]
    pub unsafe fn at(&self, index: [usize; 4]) -> *const u8 {
        let offset: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
        // SAFETY: a view's indices lie inside its buffer.
        unsafe { self.base.add(offset * self.dtype.size()) }
    }

    /// The elements from an index on along a dimension.
    ///
    /// # Safety
    /// The index is inside the view's shape.
    #[inline(always)]
    pub unsafe fn line(&self, index: [usize; 4], dimension: usize) -> Line {
        // SAFETY: passed on.
        Line::new(unsafe { self.at(index) }, self.dtype, self.strides[dimension])
    }
}
