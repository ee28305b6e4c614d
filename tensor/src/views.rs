//! Views of tensors: the layouts of [`Layout`]'s methods over the same buffer. Nothing is copied.

use std::ops::Range;

use crate::error::Result;
use crate::{Layout, Tensor, View, ViewMut};

/// The same methods for tensors and both borrowed views: each is that of [`Layout`], kept to the buffer.
macro_rules! views {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => {
        impl Tensor {
            $($(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("Those of [`Layout::", stringify!($name), "`].")]
            pub fn $name(&self, $($arg: $type),*) -> Result<Self> {
                self.with_layout(self.layout().$name($($arg),*)?)
            })*
        }
        impl View<'_> {
            $($(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("Those of [`Layout::", stringify!($name), "`].")]
            pub fn $name(&self, $($arg: $type),*) -> Result<Self> {
                self.with_layout(self.layout().$name($($arg),*)?)
            })*
        }
        impl ViewMut<'_> {
            $($(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("Those of [`Layout::", stringify!($name), "`], and of [`ViewMut::with_layout`].")]
            pub fn $name(self, $($arg: $type),*) -> Result<Self> {
                let layout = self.layout().$name($($arg),*)?;
                self.with_layout(layout)
            })*
        }
    };
}

views! {
    /// The same elements under another shape, where strides allow it without a copy.
    reshape(shape: &[usize]);
    /// Two dimensions exchanged.
    transpose(a: usize, b: usize);
    /// The last two dimensions exchanged: each matrix transposed.
    t();
    /// The dimensions in another order: dimension `d` of the result is dimension `dims[d]` of this one.
    permute(dims: &[usize]);
    /// A new dimension of size 1 before dimension `dim`.
    unsqueeze(dim: usize);
    /// Without dimension `dim`, which has size 1.
    squeeze(dim: usize);
    /// `len` indices of a dimension from `start` on.
    narrow(dim: usize, start: usize, len: usize);
    /// Every `step`-th index of a range of a dimension, from its start on.
    slice(dim: usize, range: Range<usize>, step: usize);
    /// The elements of one index of a dimension, which goes away.
    select(dim: usize, index: usize);
    /// The dimensions of `dims` as one, where strides allow it without a copy.
    flatten(dims: Range<usize>);
    /// The elements repeated to a larger shape by strides of 0, as in NumPy.
    broadcast_to(shape: &[usize]);
    /// Windows of `size` indices along a dimension, each `step` after the one before, in a new last dimension.
    unfold(dim: usize, size: usize, step: usize);
}

macro_rules! parts {
    ($type:ty) => {
        impl $type {
            /// Consecutive parts of a dimension, of these sizes.
            ///
            /// # Errors
            /// Those of [`Layout::split`].
            pub fn split(&self, dim: usize, sizes: &[usize]) -> Result<Vec<Self>> {
                self.with_layouts(self.layout().split(dim, sizes)?)
            }

            /// At most `chunks` consecutive parts of a dimension, of equal sizes but for a smaller last one.
            ///
            /// # Errors
            /// Those of [`Layout::chunk`].
            pub fn chunk(&self, dim: usize, chunks: usize) -> Result<Vec<Self>> {
                self.with_layouts(self.layout().chunk(dim, chunks)?)
            }

            fn with_layouts(&self, layouts: Vec<Layout>) -> Result<Vec<Self>> {
                layouts.into_iter().map(|layout| self.with_layout(layout)).collect()
            }
        }
    };
}
parts!(Tensor);
parts!(View<'_>);
