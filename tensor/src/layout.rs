//! Layouts: which element of a buffer each index names.

mod overlap;
mod views;

use std::fmt;

use crate::error::{Result, shape_error, short};

/// The most dimensions that a tensor can have.
pub const MAX_RANK: usize = 8;

/// Sizes of up to [`MAX_RANK`] dimensions, held without an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    sizes: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// A shape of these sizes.
    ///
    /// # Errors
    /// Where there are more than [`MAX_RANK`] dimensions or their product overflows.
    pub fn new(sizes: &[usize]) -> Result<Self> {
        if sizes.len() > MAX_RANK {
            return Err(shape_error("shape", format!("{} has more than {MAX_RANK} dimensions", short(sizes))));
        }
        // Zero sizes must not hide an overflow of the others: strides are products of those.
        let product = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        if product.is_none_or(|n| n > isize::MAX as usize / 8) {
            return Err(shape_error("shape", format!("{sizes:?} has too many elements")));
        }
        let mut shape = Self { sizes: [0; MAX_RANK], rank: sizes.len() as u8 };
        shape.sizes[..sizes.len()].copy_from_slice(sizes);
        Ok(shape)
    }

    /// The sizes.
    pub fn as_slice(&self) -> &[usize] {
        &self.sizes[..self.rank as usize]
    }

    /// Number of elements; 1 for no dimension.
    pub fn elements(&self) -> usize {
        self.as_slice().iter().product()
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        self.as_slice()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Shape, strides and offset, all in elements: index `i` is at `offset + Σ i[d]·strides[d]`.
///
/// Strides may be 0 (broadcast) but never negative.
///
/// ```
/// use sinew_tensor::Layout;
/// let rows = Layout::contiguous(&[2, 3])?;
/// let columns = rows.transpose(0, 1)?;
/// assert_eq!(columns.shape(), &[3, 2]);
/// assert_eq!(columns.strides(), &[1, 3]);
/// assert_eq!(columns.index(&[2, 1]), Some(5));
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The layout of `shape` in row-major order.
    ///
    /// # Errors
    /// Those of [`Shape::new`].
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape)?;
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for d in (0..shape.len()).rev() {
            strides[d] = step;
            step *= shape[d].max(1);
        }
        Ok(Self { shape, strides, offset: 0 })
    }

    /// A layout of these strides.
    ///
    /// # Errors
    /// Those of [`Shape::new`], another number of strides than of sizes, or an index that overflows.
    pub fn strided(shape: &[usize], strides: &[usize], offset: usize) -> Result<Self> {
        let shape = Shape::new(shape)?;
        if strides.len() != shape.len() {
            return Err(shape_error("layout", format!("{} strides for shape {shape:?}", strides.len())));
        }
        let mut all = [0; MAX_RANK];
        all[..strides.len()].copy_from_slice(strides);
        let layout = Self { shape, strides: all, offset };
        let last = shape.iter().zip(strides).try_fold(offset, |at, (&size, &stride)| {
            at.checked_add(size.saturating_sub(1).checked_mul(stride)?).filter(|&at| at < isize::MAX as usize / 8)
        });
        match last {
            Some(_) => Ok(layout),
            None => Err(shape_error("layout", format!("{layout:?} reaches too far"))),
        }
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        self.shape.as_slice()
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.len()]
    }

    /// The element of index 0.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of indices.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// One past the last element of the buffer that any index names; `offset` where there is none.
    pub fn end(&self) -> usize {
        if self.elements() == 0 {
            return self.offset;
        }
        let reach: usize = self.shape().iter().zip(self.strides()).map(|(&size, &stride)| (size - 1) * stride).sum();
        self.offset + reach + 1
    }

    /// The element of the buffer that `index` names, if it is inside the shape.
    pub fn index(&self, index: &[usize]) -> Option<usize> {
        if index.len() != self.rank() || index.iter().zip(self.shape()).any(|(&i, &size)| i >= size) {
            return None;
        }
        Some(self.offset + index.iter().zip(self.strides()).map(|(&i, &stride)| i * stride).sum::<usize>())
    }

    /// Whether elements follow one another in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        if self.elements() == 0 {
            return true;
        }
        let mut step = 1;
        for (&size, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if size != 1 {
                if stride != step {
                    return false;
                }
                step *= size;
            }
        }
        true
    }

    /// The element of the buffer that each index names, in row-major order of the indices.
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        let (shape, strides) = (self.shape(), self.strides());
        let mut index = [0; MAX_RANK];
        let mut at = self.offset;
        (0..self.elements()).map(move |_| {
            let here = at;
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                at += strides[d];
                if index[d] < shape[d] {
                    break;
                }
                at -= index[d] * strides[d];
                index[d] = 0;
            }
            here
        })
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shape {:?} strides {:?}", self.shape(), self.strides())?;
        if self.offset != 0 { write!(f, " offset {}", self.offset) } else { Ok(()) }
    }
}
