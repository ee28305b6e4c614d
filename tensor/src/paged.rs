//! What the bytes of a paged KV cache mean.

use crate::error::{Result, shape_error};
use crate::{DType, Layout};

/// The layout of the keys, or of the values, of one layer: `[num_blocks, num_kv_heads, block_size, head_dim]` in
/// row-major order.
///
/// A block holds `block_size` consecutive tokens of one sequence, head by head, so that a kernel that works on one
/// head reads runs of `block_size · head_dim` elements. Keys and values are two tensors of this layout.
///
/// Element indices are 64-bit: a cache of a few GiB has more than 2^31 elements.
///
/// ```
/// use sinew_tensor::{DType, PagedLayout};
/// let cache = PagedLayout::new(100, 2, 16, 64, DType::BF16)?;
/// assert_eq!(cache.bytes_per_block(), 2 * 16 * 64 * 2);
/// assert_eq!(cache.index(3, 1, 5, 7), Some(((3 * 2 + 1) * 16 + 5) * 64 + 7));
/// # Ok::<(), sinew_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedLayout {
    num_blocks: usize,
    num_kv_heads: usize,
    block_size: usize,
    head_dim: usize,
    dtype: DType,
}

impl PagedLayout {
    /// The layout of `num_blocks` blocks.
    ///
    /// # Errors
    /// A block size, number of heads or head size of 0, or a cache whose bytes cannot be counted.
    pub fn new(
        num_blocks: usize,
        num_kv_heads: usize,
        block_size: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<Self> {
        let result = Self { num_blocks, num_kv_heads, block_size, head_dim, dtype };
        if num_kv_heads == 0 || block_size == 0 || head_dim == 0 {
            return Err(shape_error("paged layout", format!("{result:?}: heads, block and head sizes start from 1")));
        }
        // The shape's own limit leaves room for any element size.
        Layout::contiguous(&result.shape())?;
        Ok(result)
    }

    /// Blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Heads of keys and values.
    pub fn num_kv_heads(&self) -> usize {
        self.num_kv_heads
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// `[num_blocks, num_kv_heads, block_size, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        [self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim]
    }

    /// The layout of the tensor.
    pub fn layout(&self) -> Layout {
        // `new` has made this layout once already.
        Layout::contiguous(&self.shape()).unwrap_or_else(|_| unreachable!("checked in new"))
    }

    /// Elements of a block.
    pub fn elements_per_block(&self) -> usize {
        self.num_kv_heads * self.block_size * self.head_dim
    }

    /// Bytes of a block of keys, or of values.
    pub fn bytes_per_block(&self) -> usize {
        self.elements_per_block() * self.dtype.size()
    }

    /// Bytes of all blocks of keys, or of values.
    pub fn bytes(&self) -> usize {
        self.num_blocks * self.bytes_per_block()
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// The element of the buffer at a block, head, slot within the block and place within the head.
    pub fn index(&self, block: usize, head: usize, slot: usize, d: usize) -> Option<usize> {
        let inside = block < self.num_blocks && head < self.num_kv_heads && slot < self.block_size && d < self.head_dim;
        inside.then(|| ((block * self.num_kv_heads + head) * self.block_size + slot) * self.head_dim + d)
    }

    /// The number that names a token's place to operators that append: `block · block_size + slot`.
    pub fn slot(&self, block: usize, slot: usize) -> Option<usize> {
        (block < self.num_blocks && slot < self.block_size).then(|| block * self.block_size + slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_agrees_with_the_layout() -> Result<()> {
        let cache = PagedLayout::new(5, 3, 4, 7, DType::F16)?;
        let layout = cache.layout();
        assert_eq!(cache.bytes(), layout.elements() * 2);
        for (block, head, slot, d) in [(0, 0, 0, 0), (4, 2, 3, 6), (2, 1, 0, 5)] {
            assert_eq!(cache.index(block, head, slot, d), layout.index(&[block, head, slot, d]));
        }
        assert_eq!(cache.index(5, 0, 0, 0), None);
        assert_eq!(cache.index(0, 0, 4, 0), None);
        assert_eq!(cache.slot(4, 3), Some(19));
        assert_eq!(cache.slot(4, 4), None);
        assert_eq!((cache.blocks_for(0), cache.blocks_for(4), cache.blocks_for(5)), (0, 1, 2));
        Ok(())
    }

    #[test]
    fn elements_past_two_to_the_31_and_32_have_their_own_index() -> Result<()> {
        let cache = PagedLayout::new(1 << 20, 8, 16, 128, DType::BF16)?;
        assert_eq!(cache.layout().elements(), 1 << 34);
        for block in [(1 << 17) - 1, 1 << 17, 1 << 18, (1 << 20) - 1] {
            let expected = block as u128 * 8 * 16 * 128 + (7 * 16 + 15) * 128 + 127;
            assert_eq!(cache.index(block, 7, 15, 127).map(|i| i as u128), Some(expected));
            assert_eq!(cache.layout().index(&[block, 7, 15, 127]).map(|i| i as u128), Some(expected));
        }
        assert_eq!(cache.index((1 << 20) - 1, 7, 15, 127), Some((1 << 34) - 1));
        Ok(())
    }

    #[test]
    fn sizes_that_cannot_be_counted_are_refused() {
        assert!(PagedLayout::new(usize::MAX, 8, 16, 128, DType::F32).is_err());
        assert!(PagedLayout::new(1, 0, 16, 128, DType::F32).is_err());
        assert!(PagedLayout::new(1, 1, 0, 128, DType::F32).is_err());
        assert!(PagedLayout::new(0, 1, 1, 1, DType::F32).is_ok());
    }
}
