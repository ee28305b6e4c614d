//! Tensors: a buffer, a dtype and a layout.

use std::sync::Arc;

use sinew_memory::{Buffer, Device, Location};

use crate::error::{Result, shape_error};
use crate::{DType, Element, Layout, View, ViewMut};

/// A tensor: a shared buffer, a dtype, and a layout that says which element each index names.
///
/// Cloning and every view share the buffer and copy nothing. A tensor can be written only while nothing else shares
/// its buffer ([`Tensor::view_mut`]).
///
/// `Tensor` is `Send` and `Sync`.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) buffer: Buffer,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Tensor {
    /// A tensor over elements that are in a buffer already.
    ///
    /// # Errors
    /// A layout that reaches past the end of the buffer.
    pub fn new(buffer: Buffer, dtype: DType, layout: Layout) -> Result<Self> {
        check_fits("tensor", &buffer, dtype, &layout)?;
        Ok(Self { buffer, dtype, layout })
    }

    /// A contiguous tensor of zeros on a device, outside any pool.
    ///
    /// # Errors
    /// Out of memory, or a shape that is too large.
    pub fn zeros(device: &Arc<dyn Device>, dtype: DType, shape: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        let bytes = layout.elements() * dtype.size();
        let mut buffer = Buffer::uninitialised(device, bytes)?;
        if buffer.host_ptr().is_some() {
            buffer.as_mut_slice::<u8>()?.fill(0);
        } else {
            fill(&mut buffer, &vec![0; bytes])?;
        }
        Self::new(buffer, dtype, layout)
    }

    /// A contiguous tensor with a copy of host `values`, on any device.
    ///
    /// # Errors
    /// Another number of values than the shape has, or out of memory.
    pub fn from_slice<T: Element>(device: &Arc<dyn Device>, values: &[T], shape: &[usize]) -> Result<Self> {
        check_count(values.len(), shape)?;
        Self::from_bytes(device, bytemuck::cast_slice(values), T::DTYPE, shape)
    }

    /// A contiguous tensor with a copy of host bytes, on any device.
    ///
    /// # Errors
    /// Another number of bytes than the shape has, or out of memory.
    pub fn from_bytes(device: &Arc<dyn Device>, bytes: &[u8], dtype: DType, shape: &[usize]) -> Result<Self> {
        let layout = Layout::contiguous(shape)?;
        let expected = layout.elements() * dtype.size();
        if bytes.len() != expected {
            let found = bytes.len();
            let reason = format!("{dtype} of shape {shape:?} has {expected} bytes; bytes given: {found}");
            return Err(shape_error("tensor", reason));
        }
        let mut buffer = Buffer::uninitialised(device, bytes.len())?;
        fill(&mut buffer, bytes)?;
        Self::new(buffer, dtype, layout)
    }

    /// A contiguous tensor of host `values`, without a copy on devices that work on host memory.
    ///
    /// # Errors
    /// Another number of values than the shape has, or out of memory.
    pub fn from_vec<T: Element>(device: &Arc<dyn Device>, values: Vec<T>, shape: &[usize]) -> Result<Self> {
        if device.location() != Location::Host {
            return Self::from_slice(device, &values, shape);
        }
        let layout = check_count(values.len(), shape)?;
        Self::new(Buffer::from_vec(device, values)?, T::DTYPE, layout)
    }

    /// A contiguous tensor with a copy of truth values, on any device.
    ///
    /// # Errors
    /// Those of [`Tensor::from_slice`].
    pub fn from_bools(device: &Arc<dyn Device>, values: &[bool], shape: &[usize]) -> Result<Self> {
        check_count(values.len(), shape)?;
        Self::from_bytes(device, bytemuck::cast_slice(values), DType::Bool, shape)
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

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The buffer, to be copied to.
    ///
    /// # Errors
    /// One that other tensors share, or a read-only one.
    pub fn buffer_mut(&mut self) -> Result<&mut Buffer> {
        self.buffer.check_writable()?;
        Ok(&mut self.buffer)
    }

    /// The device that holds it.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.buffer.device()
    }

    /// The same buffer under another layout.
    ///
    /// # Errors
    /// A layout that reaches past the end of the buffer.
    pub fn with_layout(&self, layout: Layout) -> Result<Self> {
        Self::new(self.buffer.clone(), self.dtype, layout)
    }

    /// A borrowed view for kernels to read.
    pub fn view(&self) -> View<'_> {
        View::new(&self.buffer, self.dtype, self.layout)
    }

    /// A borrowed view for kernels to write.
    ///
    /// # Errors
    /// A buffer that other tensors share, a read-only one, or a layout in which indices share elements.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        self.buffer.check_writable()?;
        if self.layout.overlaps() {
            return Err(shape_error("write", format!("indices of {:?} share elements", self.layout)));
        }
        Ok(ViewMut::new(View::new(&self.buffer, self.dtype, self.layout)))
    }
}

/// The layout of a shape that has exactly so many elements.
fn check_count(values: usize, shape: &[usize]) -> Result<Layout> {
    let layout = Layout::contiguous(shape)?;
    match layout.elements() {
        elements if elements == values => Ok(layout),
        elements => {
            Err(shape_error("tensor", format!("shape {shape:?} has {elements} elements; values given: {values}")))
        }
    }
}

/// Copies bytes into a buffer through a stream of its own, and waits: other streams may use the buffer at once.
fn fill(buffer: &mut Buffer, bytes: &[u8]) -> Result<()> {
    let stream = buffer.device().clone().stream()?;
    stream.upload(bytes, buffer, 0)?;
    Ok(stream.synchronize()?)
}

/// Whether a layout stays inside a buffer; the offset of an empty one too, since it is what copies start from.
pub(crate) fn check_fits(operation: &'static str, buffer: &Buffer, dtype: DType, layout: &Layout) -> Result<()> {
    match layout.end().checked_mul(dtype.size()) {
        Some(bytes) if bytes <= buffer.len() => Ok(()),
        _ => Err(shape_error(operation, format!("{layout:?} of {dtype} in a buffer of {} bytes", buffer.len()))),
    }
}
