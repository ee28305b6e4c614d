//! Operands of one shape, walked in step.

use bytemuck::{Pod, Zeroable};
use sinew_tensor::{DType, MAX_RANK, View};

use super::{code, pointer};
use crate::Result;
use crate::operator::refuse;
use crate::strided::Walk;

/// Elements that a thread of `map` takes.
const QUAD: usize = 4;

/// A [`Walk`] as kernels read it: `struct Strided` of the prelude, whose `types` are so many, `T`, that there is no
/// gap.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Strided<const N: usize, const T: usize> {
    pub elements: u64,
    pub pointers: [u64; N],
    strides: [[i64; MAX_RANK]; N],
    sizes: [u32; MAX_RANK],
    pub types: [u32; T],
    rank: u32,
    quads: u32,
}

/// One operand.
pub(crate) type Strided1 = Strided<1, 2>;
/// Two.
pub(crate) type Strided2 = Strided<2, 2>;
/// Three.
pub(crate) type Strided3 = Strided<3, 4>;
/// Four.
pub(crate) type Strided4 = Strided<4, 4>;

// SAFETY: every field is of numbers, for which all zeros are a value.
unsafe impl<const N: usize, const T: usize> Zeroable for Strided<N, T> {}
// SAFETY: the fields are numbers, any bits of which are a value. All before `sizes` take 8 bytes, all from there on 4,
// and of those there is an even number: 8 sizes, an even `T`, and two.
unsafe impl<const N: usize, const T: usize> Pod for Strided<N, T> {}

impl<const N: usize, const T: usize> Strided<N, T> {
    /// Operands as a walk goes through them.
    ///
    /// # Errors
    /// A dimension that is too large for a kernel, or memory that a GPU does not reach.
    pub fn new(walk: &Walk<N>, views: [&View<'_>; N]) -> Result<Self> {
        const { assert!(T.is_multiple_of(2) && T >= N) };
        let mut operands: Self = Zeroable::zeroed();
        operands.elements = 1;
        for (d, (size, strides)) in walk.dimensions().enumerate() {
            operands.elements *= size as u64;
            operands.rank += 1;
            // The outermost one is not divided by.
            operands.sizes[d] = match u32::try_from(size) {
                Ok(size) => size,
                Err(_) if d == 0 => u32::MAX,
                Err(_) => return Err(refuse("cuda", format!("a dimension of {size} is too large for a kernel"))),
            };
            for (n, stride) in strides.into_iter().enumerate() {
                operands.strides[n][d] = stride as i64;
            }
        }
        for (n, view) in views.into_iter().enumerate() {
            operands.pointers[n] = pointer(view)?;
            operands.types[n] = code(view.dtype());
        }
        let aligned = |(pointer, view): (u64, &View<'_>)| {
            DType::COMPUTE.contains(&view.dtype()) && pointer.is_multiple_of((QUAD * view.dtype().size()) as u64)
        };
        let dense = operands.elements.is_multiple_of(QUAD as u64) && operands.is_dense();
        operands.quads = u32::from(dense && operands.pointers.into_iter().zip(views).all(aligned));
        Ok(operands)
    }

    /// Whether every operand is contiguous.
    fn is_dense(&self) -> bool {
        self.rank == 1 && self.strides.iter().all(|strides| strides[0] == 1)
    }

    /// Joins elements of `size` bytes into such of 16, where all operands are contiguous and aligned, for kernels that
    /// copy them as they are. Returns the bytes of an element.
    pub fn widest(&mut self, size: usize) -> u32 {
        const WIDEST: u64 = 16;
        let bytes = self.elements * size as u64;
        if self.is_dense() && self.pointers.iter().chain([&bytes]).all(|n| n.is_multiple_of(WIDEST)) {
            self.elements = bytes / WIDEST;
            return WIDEST as u32;
        }
        size as u32
    }

    /// Blocks of `threads` threads for one element each.
    pub fn blocks(&self, threads: u32) -> u32 {
        super::blocks(self.elements as usize, threads)
    }

    /// Blocks of `threads` threads for what `map` gives each.
    pub fn map_blocks(&self, threads: u32) -> u32 {
        super::blocks(self.elements.div_ceil(QUAD as u64) as usize, threads)
    }
}
