//! The borrowed views of tensors that kernels receive.

use sinew_memory::{Buffer, Error as MemoryError};

use crate::error::{Result, shape_error};
use crate::tensor::check_fits;
use crate::{DType, Layout};

/// A tensor borrowed for reading.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    buffer: &'a Buffer,
    dtype: DType,
    layout: Layout,
}

impl<'a> View<'a> {
    pub(crate) fn new(buffer: &'a Buffer, dtype: DType, layout: Layout) -> Self {
        Self { buffer, dtype, layout }
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// Sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }
    /// Strides in elements.
    pub fn strides(&self) -> &[usize] {
        self.layout.strides()
    }
    /// The buffer.
    pub fn buffer(&self) -> &'a Buffer {
        self.buffer
    }

    /// The same elements under another layout.
    ///
    /// # Errors
    /// A layout that reaches past the end of the buffer.
    pub fn with_layout(&self, layout: Layout) -> Result<Self> {
        check_fits("view", self.buffer, self.dtype, &layout)?;
        Ok(Self { layout, ..*self })
    }

    /// Address of the element of index 0, where the host can reach it.
    ///
    /// # Errors
    /// Device memory, or an address that is not aligned for the dtype.
    pub fn host_ptr(&self) -> Result<*const u8> {
        let device = self.buffer.device().id();
        let location = self.buffer.span().storage.location();
        let base = self.buffer.host_ptr().ok_or(MemoryError::NotHostVisible { location, device })?;
        let ptr = base.as_ptr().wrapping_add(self.layout.offset() * self.dtype.size());
        if !(ptr as usize).is_multiple_of(self.dtype.size()) {
            let (element, size) = (self.dtype.name(), self.dtype.size());
            let len = self.layout.elements() * size;
            return Err(MemoryError::Misaligned { address: ptr as usize, len, element, size, align: size }.into());
        }
        Ok(ptr)
    }
}

/// A tensor borrowed for writing: while it lives nothing else reads or writes the buffer, and no two indices share
/// an element.
#[derive(Debug)]
pub struct ViewMut<'a> {
    view: View<'a>,
}

impl<'a> ViewMut<'a> {
    /// The caller has made sure of what the type promises.
    pub(crate) fn new(view: View<'a>) -> Self {
        Self { view }
    }

    /// Layout, dtype and buffer. Kernels that update in place read through it.
    pub fn view(&self) -> &View<'a> {
        &self.view
    }

    /// The same elements under another layout.
    ///
    /// # Errors
    /// A layout that reaches past the end of the buffer, or in which indices share elements.
    pub fn with_layout(self, layout: Layout) -> Result<Self> {
        if layout.overlaps() {
            return Err(shape_error("write", format!("indices of {layout:?} share elements")));
        }
        Ok(Self { view: self.view.with_layout(layout)? })
    }

    /// Address of the element of index 0, where the host can reach it.
    ///
    /// # Errors
    /// Those of [`View::host_ptr`].
    pub fn host_ptr(&self) -> Result<*mut u8> {
        Ok(self.view.host_ptr()?.cast_mut())
    }
}

impl<'a> std::ops::Deref for ViewMut<'a> {
    type Target = View<'a>;
    fn deref(&self) -> &View<'a> {
        &self.view
    }
}
