//! What the bytes of a paged KV cache mean.

use crate::error::{Result, shape_error};
use crate::{DType, Layout};

/// The layout of the keys, or of the values, of one layer.
///
/// A block holds `block_size` consecutive tokens of one sequence, head by head, so that a kernel that works on one
/// head reads runs of `block_size · head_dim` elements. Keys and values are two tensors of this layout.
///
/// In f32, f16 and bf16 a cache is a tensor `[num_blocks, num_kv_heads, block_size, head_dim]` in row-major order. In int8
/// and fp8 e4m3 each token's head has a scale ([`PagedLayout::has_scales`]), and the tensor is of bytes, `[num_blocks,
/// num_kv_heads, block_size · (head_dim + 4)]`: of each head of a block first the codes, `[block_size, head_dim]`, then
/// the scales, `block_size` f32. An element is its code times its token's scale. A block stays one run of bytes, that of
/// a head too; and with sixteen tokens their scales fill a cache line, so that no code's place among lines is shifted.
///
/// Indices are 64-bit: a cache of a few GiB has more than 2^31 elements.
///
/// ```
/// use sinew_tensor::{DType, PagedLayout};
/// let cache = PagedLayout::new(100, 2, 16, 64, DType::BF16)?;
/// assert_eq!(cache.bytes_per_block(), 2 * 16 * 64 * 2);
/// assert_eq!(cache.index(3, 1, 5, 7), Some(((3 * 2 + 1) * 16 + 5) * 64 + 7));
///
/// let cache = PagedLayout::new(100, 2, 16, 64, DType::I8)?;
/// assert_eq!(cache.bytes_per_block(), 2 * 16 * (64 + 4));
/// assert_eq!((cache.stored(), cache.layout().shape()), (DType::U8, &[100, 2, 16 * 68][..]));
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
    /// Bytes of a scale, which is an f32. Sixteen bits would do, but save a thirty-third of a cache with heads of 64, and
    /// put codes of every other head across cache lines.
    pub const SCALE_BYTES: usize = size_of::<f32>();

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
        Layout::contiguous(&[num_blocks, num_kv_heads, block_size, head_dim.saturating_add(result.scale_bytes())])?;
        Ok(result)
    }

    /// Whether caches of this dtype have a scale for each token and head: int8 and fp8 e4m3.
    pub const fn has_scales(dtype: DType) -> bool {
        matches!(dtype, DType::I8 | DType::F8E4M3)
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

    /// Type of the elements; of their codes, where there are scales.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dtype of the tensor: that of the elements, or bytes where there are scales.
    pub fn stored(&self) -> DType {
        if Self::has_scales(self.dtype) { DType::U8 } else { self.dtype }
    }

    /// The layout of the tensor.
    pub fn layout(&self) -> Layout {
        let Self { num_blocks, num_kv_heads, block_size, head_dim, dtype } = *self;
        let layout = if Self::has_scales(dtype) {
            Layout::contiguous(&[num_blocks, num_kv_heads, self.bytes_per_head()])
        } else {
            Layout::contiguous(&[num_blocks, num_kv_heads, block_size, head_dim])
        };
        layout.unwrap_or_else(|_| unreachable!("checked in new"))
    }

    /// Bytes of the scale of a token's head, if it has one.
    fn scale_bytes(&self) -> usize {
        if Self::has_scales(self.dtype) { Self::SCALE_BYTES } else { 0 }
    }

    /// Bytes that a head of one token takes in caches of this dtype: its elements, or its codes and their scale.
    pub const fn head_bytes(dtype: DType, head_dim: usize) -> usize {
        head_dim * dtype.size() + if Self::has_scales(dtype) { Self::SCALE_BYTES } else { 0 }
    }

    /// Bytes of a head of a block.
    fn bytes_per_head(&self) -> usize {
        self.block_size * Self::head_bytes(self.dtype, self.head_dim)
    }

    /// Bytes of a block of keys, or of values.
    pub fn bytes_per_block(&self) -> usize {
        self.num_kv_heads * self.bytes_per_head()
    }

    /// Bytes of all blocks of keys, or of values.
    pub fn bytes(&self) -> usize {
        self.num_blocks * self.bytes_per_block()
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// The element of the buffer at a block, head, slot within the block and place within the head; with scales the byte
    /// of its code.
    pub fn index(&self, block: usize, head: usize, slot: usize, d: usize) -> Option<usize> {
        let start = self.head_start(block, head, slot)?;
        (d < self.head_dim).then(|| start + slot * self.head_dim + d)
    }

    /// The byte of the buffer where the scale of a token's head begins, if it has one.
    pub fn scale_index(&self, block: usize, head: usize, slot: usize) -> Option<usize> {
        let start = self.head_start(block, head, slot).filter(|_| Self::has_scales(self.dtype))?;
        Some(start + self.block_size * self.head_dim + slot * Self::SCALE_BYTES)
    }

    /// The element of the buffer with which a block's head begins, if it has the slot.
    fn head_start(&self, block: usize, head: usize, slot: usize) -> Option<usize> {
        let inside = block < self.num_blocks && head < self.num_kv_heads && slot < self.block_size;
        inside.then(|| (block * self.num_kv_heads + head) * self.block_size * (self.head_dim + self.scale_bytes()))
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
    fn with_scales_every_byte_of_a_block_is_one_code_or_part_of_one_scale() -> Result<()> {
        for dtype in [DType::I8, DType::F8E4M3] {
            let cache = PagedLayout::new(3, 2, 5, 7, dtype)?;
            assert_eq!((cache.stored(), cache.layout().elements()), (DType::U8, cache.bytes()));
            assert_eq!((cache.bytes(), PagedLayout::head_bytes(dtype, 7)), (3 * 2 * 5 * (7 + 4), 11));
            let mut times = vec![0; cache.bytes()];
            for (block, head, slot) in (0..3 * 2 * 5).map(|i| (i / 10, i / 5 % 2, i % 5)) {
                (0..7).for_each(|d| times[cache.index(block, head, slot, d).unwrap_or(0)] += 1);
                let scale = cache.scale_index(block, head, slot).unwrap_or(0);
                times[scale..scale + 4].iter_mut().for_each(|n| *n += 1);
                let of_head = (block * 2 + head) * 5 * 11..(block * 2 + head + 1) * 5 * 11;
                assert!(of_head.contains(&scale) && scale > of_head.start + 5 * 7 - 1, "{block} {head} {slot}");
            }
            assert!(times.iter().all(|&n| n == 1), "{times:?}");
            assert_eq!((cache.index(2, 1, 4, 7), cache.scale_index(2, 1, 5)), (None, None));
        }
        assert_eq!(PagedLayout::new(3, 2, 5, 7, DType::BF16)?.scale_index(0, 0, 0), None);
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
        assert!(PagedLayout::new(1, 1, 1, usize::MAX, DType::I8).is_err());
        assert!(PagedLayout::new(1, 0, 16, 128, DType::F32).is_err());
        assert!(PagedLayout::new(1, 1, 0, 128, DType::F32).is_err());
        assert!(PagedLayout::new(0, 1, 1, 1, DType::F32).is_ok());
    }
}
