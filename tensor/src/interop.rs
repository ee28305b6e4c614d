//! `ndarray` views of tensors and tensors of `ndarray` arrays.

use std::sync::Arc;

use ndarray::{ArrayBase, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Dimension, IxDyn, OwnedRepr, ShapeBuilder};
use sinew_memory::{Buffer, Device, Location};

use crate::error::{Result, shape_error};
use crate::layout::MAX_RANK;
use crate::{Element, Layout, Tensor, View};

/// A layout as `ndarray` takes it. Strides of an empty one would have to fit a slice that has no element.
fn shape_of(layout: &Layout) -> ndarray::StrideShape<IxDyn> {
    let shape = IxDyn(layout.shape());
    if layout.elements() == 0 { shape.into() } else { shape.strides(IxDyn(layout.strides())) }
}

impl<'a> View<'a> {
    /// The view as an `ndarray` view of any layout, without a copy.
    ///
    /// # Errors
    /// Those of [`Tensor::as_ndarray`].
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'a, T>> {
        let layout = self.layout();
        let span = self.span::<T>("as_ndarray")?;
        ArrayView::from_shape(shape_of(layout), span).map_err(|e| shape_error("as_ndarray", format!("{layout:?}: {e}")))
    }
}

impl Tensor {
    /// The tensor as an `ndarray` view, without a copy: of any layout, broadcast ones included.
    ///
    /// ```
    /// use sinew_memory::Cpu;
    /// use sinew_tensor::Tensor;
    /// let tensor = Tensor::from_slice(&Cpu::get(), &[1.0f32, 2.0, 3.0], &[3])?;
    /// let rows = tensor.broadcast_to(&[2, 3])?;
    /// assert_eq!(rows.as_ndarray::<f32>()?.sum(), 12.0);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another dtype, device memory, or an address that is not aligned for the dtype.
    pub fn as_ndarray<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.view().as_ndarray()
    }

    /// The tensor as an `ndarray` view to write, without a copy.
    ///
    /// # Errors
    /// Those of [`Tensor::as_ndarray`], a shared or read-only buffer, or indices that share elements.
    pub fn as_ndarray_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        let layout = self.layout;
        if layout.overlaps() {
            return Err(shape_error("as_ndarray_mut", format!("indices of {layout:?} share elements")));
        }
        ArrayViewMutD::from_shape(shape_of(&layout), self.mut_span("as_ndarray_mut")?)
            .map_err(|e| shape_error("as_ndarray_mut", format!("{layout:?}: {e}")))
    }

    /// A copy of the elements as an array in row-major order, from any device on which no stream is still working.
    ///
    /// # Errors
    /// Another dtype, or a failed device.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(self.shape()), self.to_vec()?)
            .map_err(|e| shape_error("to_ndarray", format!("{:?}: {e}", self.layout)))
    }

    /// A tensor of an array's elements, without a copy on devices that work on host memory: the array's vector becomes
    /// the buffer, and its strides the tensor's. An array with negative strides is copied, and for other devices all
    /// are.
    ///
    /// ```
    /// use sinew_memory::Cpu;
    /// use sinew_tensor::Tensor;
    /// let array = ndarray::array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let tensor = Tensor::from_ndarray(&Cpu::get(), array.reversed_axes())?;
    /// assert_eq!(tensor.layout().strides(), &[1, 2]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// More dimensions than [`MAX_RANK`], or out of memory.
    pub fn from_ndarray<T: Element, D: Dimension>(
        device: &Arc<dyn Device>,
        array: ArrayBase<OwnedRepr<T>, D>,
    ) -> Result<Self> {
        let shape = Layout::contiguous(array.shape())?;
        let mut strides = [0; MAX_RANK];
        let mut negative = false;
        for (d, (&size, &stride)) in array.shape().iter().zip(array.strides()).enumerate() {
            // Of a dimension with a single index the stride means nothing and may be anything.
            if size > 1 {
                strides[d] = stride.unsigned_abs();
                negative |= stride < 0;
            }
        }
        if device.location() != Location::Host || negative || array.is_empty() {
            return Self::copy_of_ndarray(device, &array.view());
        }
        let (values, offset) = array.into_raw_vec_and_offset();
        let layout = Layout::strided(shape.shape(), &strides[..shape.rank()], offset.unwrap_or(0))?;
        Self::new(Buffer::from_vec(device, values)?, T::DTYPE, layout)
    }

    /// A contiguous tensor with a copy of a borrowed array's elements, on any device.
    ///
    /// # Errors
    /// More dimensions than [`MAX_RANK`], or out of memory.
    pub fn copy_of_ndarray<T: Element, D: Dimension>(
        device: &Arc<dyn Device>,
        array: &ArrayView<'_, T, D>,
    ) -> Result<Self> {
        match array.as_slice() {
            Some(values) => Self::from_slice(device, values, array.shape()),
            None => Self::from_vec(device, array.iter().copied().collect(), array.shape()),
        }
    }
}
