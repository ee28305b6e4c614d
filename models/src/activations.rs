//! Tensors that steps write and read again: made once for the largest step, viewed for as many rows as a step has.

use sinew_ops::Context;
use sinew_tensor::{DType, Element, Layout, Tensor, View, ViewMut};

use crate::Result;

/// What the memory of steps is called in reports.
pub(crate) const ACTIVATIONS: &str = "activations";

/// Bytes of a tensor of this shape; the largest number where they are more.
pub(crate) fn bytes(dtype: DType, shape: &[usize]) -> usize {
    shape.iter().fold(dtype.size(), |bytes, &n| bytes.saturating_mul(n))
}

/// The sum of bytes; the largest number where it is more.
pub(crate) fn sum(bytes: impl IntoIterator<Item = usize>) -> usize {
    bytes.into_iter().fold(0, usize::saturating_add)
}

/// Activations `[max_rows, width]`, of which a step of `n` rows uses the first `n`.
#[derive(Debug)]
pub(crate) struct Rows {
    tensor: Tensor,
    width: usize,
}

/// Heads that lie side by side in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Heads before them in the row.
    pub first: usize,
    /// How many there are.
    pub count: usize,
    /// Elements of each.
    pub head_dim: usize,
}

/// Numbers that the host gives to a step: ids, positions, lengths, tables.
#[derive(Debug)]
pub(crate) struct HostInput {
    tensor: Tensor,
    len: usize,
}

impl Rows {
    /// Rows in a tensor `[max_rows, width]`.
    pub(crate) fn of(tensor: Tensor) -> Self {
        let width = tensor.shape()[1];
        Self { tensor, width }
    }

    /// The first `n` rows, `[n, width]`.
    pub(crate) fn read(&self, n: usize) -> Result<View<'_>> {
        Ok(self.tensor.view().with_layout(self.rows(n)?)?)
    }

    /// The first `n` rows, `[n, width]`, to be written.
    pub(crate) fn write(&mut self, n: usize) -> Result<ViewMut<'_>> {
        let layout = self.rows(n)?;
        Ok(self.tensor.view_mut()?.with_layout(layout)?)
    }

    /// Heads of the first `n` rows, `[n, heads, head_dim]`.
    pub(crate) fn read_heads(&self, n: usize, heads: Heads) -> Result<View<'_>> {
        Ok(self.tensor.view().with_layout(self.heads(n, heads)?)?)
    }

    /// Heads of the first `n` rows, `[n, heads, head_dim]`, to be written.
    pub(crate) fn write_heads(&mut self, n: usize, heads: Heads) -> Result<ViewMut<'_>> {
        let layout = self.heads(n, heads)?;
        Ok(self.tensor.view_mut()?.with_layout(layout)?)
    }

    /// The first `n` rows as values on the host.
    pub(crate) fn to_vec<T: Element>(&self, ctx: &Context, n: usize) -> Result<Vec<T>> {
        Ok(self.tensor.with_layout(self.rows(n)?)?.to_vec_on(&**ctx.stream())?)
    }

    fn rows(&self, n: usize) -> Result<Layout> {
        debug_assert!(n <= self.tensor.shape()[0], "{n} rows of {:?}", self.tensor);
        Ok(Layout::contiguous(&[n, self.width])?)
    }

    fn heads(&self, n: usize, heads: Heads) -> Result<Layout> {
        let Heads { first, count, head_dim } = heads;
        debug_assert!(n <= self.tensor.shape()[0], "{n} rows of {:?}", self.tensor);
        debug_assert!((first + count) * head_dim <= self.width, "{heads:?} of {:?}", self.tensor);
        Ok(Layout::strided(&[n, count, head_dim], &[self.width, head_dim, 1], first * head_dim)?)
    }
}

impl Heads {
    /// Heads of queries, keys and values in a row of their joint product.
    pub(crate) fn qkv(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> [Self; 3] {
        let heads = |first, count| Self { first, count, head_dim };
        [heads(0, num_heads), heads(num_heads, num_kv_heads), heads(num_heads + num_kv_heads, num_kv_heads)]
    }

    /// The same values as one head. What comes before must be as many of those.
    pub(crate) fn joined(self) -> Self {
        let Self { first, count, head_dim } = self;
        debug_assert!(first.is_multiple_of(count), "{self:?}");
        Self { first: first / count, count: 1, head_dim: count * head_dim }
    }
}

impl HostInput {
    /// None yet, in a tensor of one dimension.
    pub(crate) fn of(tensor: Tensor) -> Self {
        Self { tensor, len: 0 }
    }

    /// Takes the numbers of the coming step.
    pub(crate) fn upload<T: Element>(&mut self, ctx: &Context, values: &[T]) -> Result<()> {
        ctx.upload(values, &mut self.tensor)?;
        self.len = values.len();
        Ok(())
    }

    /// The numbers that were uploaded, `[len]`.
    pub(crate) fn read(&self) -> Result<View<'_>> {
        Ok(self.tensor.view().with_layout(Layout::contiguous(&[self.len])?)?)
    }

    /// The numbers that were uploaded as rows, `[len / width, width]`.
    pub(crate) fn read_rows(&self, width: usize) -> Result<View<'_>> {
        debug_assert!(self.len.is_multiple_of(width), "{} numbers in rows of {width}", self.len);
        Ok(self.tensor.view().with_layout(Layout::contiguous(&[self.len / width, width])?)?)
    }
}
