//! Layouts of views: other shapes, strides and offsets over the same elements.

use std::ops::Range;

use super::{Layout, MAX_RANK, Shape};
use crate::error::{Result, shape_error, short};

impl Layout {
    /// The size and stride of a dimension that must be there.
    fn dimension(&self, operation: &'static str, dim: usize) -> Result<(usize, usize)> {
        match (self.shape().get(dim), self.strides().get(dim)) {
            (Some(&size), Some(&stride)) => Ok((size, stride)),
            _ => Err(shape_error(operation, format!("dimension {dim} of {self:?}"))),
        }
    }

    /// The same layout without a dimension, whatever its size.
    fn without(&self, dim: usize) -> Self {
        let rank = self.rank();
        let mut result = *self;
        result.shape.sizes.copy_within(dim + 1..rank, dim);
        result.strides.copy_within(dim + 1..rank, dim);
        // Unused places hold zeros, so that equal layouts compare and hash equal.
        result.shape.sizes[rank - 1] = 0;
        result.strides[rank - 1] = 0;
        result.shape.rank -= 1;
        result
    }

    /// The layout `steps` further on, but where no index is left: an offset there could be past the end of the buffer.
    fn moved(mut self, steps: usize, stride: usize) -> Self {
        if self.elements() > 0 {
            self.offset += steps * stride;
        }
        self
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.dimension("transpose", a)?;
        self.dimension("transpose", b)?;
        let mut result = *self;
        result.shape.sizes.swap(a, b);
        result.strides.swap(a, b);
        Ok(result)
    }

    /// The last two dimensions exchanged: each matrix transposed.
    ///
    /// # Errors
    /// Fewer than two dimensions.
    pub fn t(&self) -> Result<Self> {
        match self.rank() {
            rank @ 2.. => self.transpose(rank - 2, rank - 1),
            _ => Err(shape_error("t", format!("{self:?} has fewer than two dimensions"))),
        }
    }

    /// The dimensions in another order: dimension `d` of the result is dimension `dims[d]` of this one.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let heads_first = Layout::contiguous(&[7, 2, 64])?.permute(&[1, 0, 2])?;
    /// assert_eq!(heads_first.shape(), &[2, 7, 64]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Anything but each dimension once.
    pub fn permute(&self, dims: &[usize]) -> Result<Self> {
        let mut seen = [false; MAX_RANK];
        let each_once = dims.len() == self.rank()
            && dims.iter().all(|&dim| dim < self.rank() && !std::mem::replace(&mut seen[dim], true));
        if !each_once {
            return Err(shape_error("permute", format!("{} of {self:?}", short(dims))));
        }
        let mut result = *self;
        for (d, &dim) in dims.iter().enumerate() {
            result.shape.sizes[d] = self.shape[dim];
            result.strides[d] = self.strides[dim];
        }
        Ok(result)
    }

    /// A new dimension of size 1 before dimension `dim`.
    ///
    /// # Errors
    /// A position past the last dimension, or one dimension too many.
    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        let rank = self.rank();
        if dim > rank || rank == MAX_RANK {
            return Err(shape_error("unsqueeze", format!("dimension {dim} of {self:?}")));
        }
        let mut result = *self;
        result.shape.sizes.copy_within(dim..rank, dim + 1);
        result.strides.copy_within(dim..rank, dim + 1);
        result.shape.sizes[dim] = 1;
        result.strides[dim] = 0;
        result.shape.rank += 1;
        Ok(result)
    }

    /// Without dimension `dim`, which has size 1.
    ///
    /// # Errors
    /// A dimension that is not there, or of another size.
    pub fn squeeze(&self, dim: usize) -> Result<Self> {
        match self.dimension("squeeze", dim)? {
            (1, _) => Ok(self.without(dim)),
            _ => Err(shape_error("squeeze", format!("dimension {dim} of {self:?} is not of size 1"))),
        }
    }

    /// `len` indices of a dimension from `start` on.
    ///
    /// # Errors
    /// A dimension that is not there, or a range past its end.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let (size, stride) = self.dimension("narrow", dim)?;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(shape_error("narrow", format!("{start}..{start}+{len} of dimension {dim} of {self:?}")));
        }
        let mut result = *self;
        result.shape.sizes[dim] = len;
        Ok(result.moved(start, stride))
    }

    /// Every `step`-th index of a range of a dimension, from its start on.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let odd = Layout::contiguous(&[9])?.slice(0, 1..9, 2)?;
    /// assert_eq!(odd.indices().collect::<Vec<_>>(), [1, 3, 5, 7]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dimension that is not there, a range past its end or one that ends before it starts, a step of 0.
    pub fn slice(&self, dim: usize, range: Range<usize>, step: usize) -> Result<Self> {
        let (size, stride) = self.dimension("slice", dim)?;
        if range.start > range.end || range.end > size || step == 0 {
            return Err(shape_error("slice", format!("{range:?} by {step} of dimension {dim} of {self:?}")));
        }
        let mut result = *self;
        let len = range.len().div_ceil(step);
        result.shape.sizes[dim] = len;
        // Two indices bound the step by the size; with fewer it may be anything, and no stride is ever taken.
        if len > 1 {
            result.strides[dim] = stride * step;
        }
        Ok(result.moved(range.start, stride))
    }

    /// The elements of one index of a dimension, which goes away.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let column = Layout::contiguous(&[2, 3])?.select(1, 2)?;
    /// assert_eq!(column.shape(), &[2]);
    /// assert_eq!(column.index(&[1]), Some(5));
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dimension that is not there, or an index past its end.
    pub fn select(&self, dim: usize, index: usize) -> Result<Self> {
        let (size, stride) = self.dimension("select", dim)?;
        if index >= size {
            return Err(shape_error("select", format!("index {index} of dimension {dim} of {self:?}")));
        }
        Ok(self.without(dim).moved(index, stride))
    }

    /// The elements repeated to a larger shape by strides of 0, as in NumPy: new dimensions come first, and a
    /// dimension of size 1 takes any size.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let bias = Layout::contiguous(&[3])?.broadcast_to(&[2, 3])?;
    /// assert_eq!(bias.strides(), &[0, 1]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Shape::new`], fewer dimensions than there are, or a size other than 1 that changes.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self> {
        let target = Shape::new(shape)?;
        let refused = || shape_error("broadcast", format!("{self:?} to {shape:?}"));
        let added = target.len().checked_sub(self.rank()).ok_or_else(refused)?;
        let mut strides = [0; MAX_RANK];
        for (d, (&size, &stride)) in self.shape().iter().zip(self.strides()).enumerate() {
            if target[added + d] == size {
                strides[added + d] = stride;
            } else if size != 1 {
                return Err(refused());
            }
        }
        Ok(Self { shape: target, strides, offset: self.offset })
    }

    /// Windows of `size` indices along a dimension, each `step` after the one before: the dimension counts windows, and
    /// a new last dimension goes through each. A tail that fills no window is left out.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let windows = Layout::contiguous(&[6])?.unfold(0, 3, 2)?;
    /// assert_eq!((windows.shape(), windows.strides()), (&[2, 3][..], &[2, 1][..]));
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dimension that is not there or is smaller than a window, a step of 0, one dimension too many, or windows that
    /// would be more elements than a shape can have.
    pub fn unfold(&self, dim: usize, size: usize, step: usize) -> Result<Self> {
        let (all, stride) = self.dimension("unfold", dim)?;
        if size > all || step == 0 || self.rank() == MAX_RANK {
            return Err(shape_error("unfold", format!("dimension {dim} of {self:?} in windows of {size} by {step}")));
        }
        let windows = (all - size) / step + 1;
        let mut result = self.unsqueeze(self.rank())?;
        result.shape.sizes[dim] = windows;
        result.shape.sizes[self.rank()] = size;
        result.shape = Shape::new(&result.shape)?;
        result.strides[self.rank()] = stride;
        if windows > 1 {
            result.strides[dim] = stride * step;
        }
        Ok(result)
    }

    /// The dimensions of `dims` as one, whose size is their product, where strides allow it without a copy. An empty
    /// range puts a dimension of size 1 there.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let tokens = Layout::contiguous(&[2, 7, 64])?.flatten(0..2)?;
    /// assert_eq!(tokens.shape(), &[14, 64]);
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Dimensions that are not there, one too many, or strides that would need a copy.
    pub fn flatten(&self, dims: Range<usize>) -> Result<Self> {
        let (Some(before), Some(middle), Some(after)) =
            (self.shape().get(..dims.start), self.shape().get(dims.clone()), self.shape().get(dims.end..))
        else {
            return Err(shape_error("flatten", format!("dimensions {dims:?} of {self:?}")));
        };
        let mut sizes = [1; MAX_RANK + 1];
        sizes[..before.len()].copy_from_slice(before);
        sizes[before.len()] = middle.iter().product();
        let rank = before.len() + 1 + after.len();
        sizes[before.len() + 1..rank].copy_from_slice(after);
        self.reshape(&sizes[..rank])
    }

    /// The same elements under another shape, where strides allow it without a copy.
    ///
    /// # Errors
    /// Another number of elements, or strides that would need a copy.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let target = Shape::new(shape)?;
        if target.elements() != self.elements() {
            return Err(shape_error("reshape", format!("{self:?} to {shape:?}: {} elements", self.elements())));
        }
        let mut result = Self { offset: self.offset, ..Self::contiguous(shape)? };
        if self.elements() == 0 {
            return Ok(result);
        }
        // Runs of dimensions that are one dimension in truth, from the outermost; those of size 1 carry no information.
        let mut runs = [(1, 1); MAX_RANK];
        let mut count = 0;
        for (&size, &stride) in self.shape().iter().zip(self.strides()).filter(|&(&size, _)| size != 1) {
            if count > 0 && runs[count - 1].1 == stride * size {
                runs[count - 1] = (runs[count - 1].0 * size, stride);
            } else {
                runs[count] = (size, stride);
                count += 1;
            }
        }
        // Each dimension of the target is a part of one run, filled from the innermost.
        let (mut left, mut step) = (1, 1);
        for d in (0..target.len()).rev().filter(|&d| target[d] != 1) {
            if left == 1 {
                // There is a run left: both sides have the same number of elements.
                count -= 1;
                (left, step) = runs[count];
            }
            if !left.is_multiple_of(target[d]) {
                return Err(shape_error("reshape", format!("{self:?} to {shape:?} needs a copy")));
            }
            result.strides[d] = step;
            left /= target[d];
            step *= target[d];
        }
        Ok(result)
    }

    /// Consecutive parts of a dimension, of these sizes.
    ///
    /// # Errors
    /// A dimension that is not there, or sizes that are not its size together.
    pub fn split(&self, dim: usize, sizes: &[usize]) -> Result<Vec<Self>> {
        let (all, _) = self.dimension("split", dim)?;
        if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(all) {
            return Err(shape_error("split", format!("dimension {dim} of {self:?} into {}", short(sizes))));
        }
        let mut start = 0;
        let part = |&size: &usize| {
            let part = self.narrow(dim, start, size);
            start += size;
            part
        };
        sizes.iter().map(part).collect()
    }

    /// At most `chunks` consecutive parts of a dimension, of equal sizes but for a smaller last one, as in PyTorch: 10
    /// in 4 chunks are 3, 3, 3 and 1; 5 in 4 are 2, 2 and 1.
    ///
    /// # Errors
    /// A dimension that is not there, or 0 chunks.
    pub fn chunk(&self, dim: usize, chunks: usize) -> Result<Vec<Self>> {
        let (all, _) = self.dimension("chunk", dim)?;
        if chunks == 0 {
            return Err(shape_error("chunk", format!("dimension {dim} of {self:?} into no chunk")));
        }
        let size = all.div_ceil(chunks).max(1);
        (0..all.max(1)).step_by(size).map(|start| self.narrow(dim, start, size.min(all - start))).collect()
    }
}
