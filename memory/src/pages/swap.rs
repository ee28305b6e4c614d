//! Tables that move between pools, as from a device to the host and back.

use std::fmt;

use super::index::Chain;
use super::{BlockId, BlockTable, PagePool};
use crate::{Error, Result};

impl BlockTable {
    /// Moves the table to another pool: it takes a block there for each that it holds, and what was in them has to be
    /// copied before it is read. Swapping to the host and back in is the same, the other way.
    ///
    /// The old blocks are let go when the [`SwapBlocks`] is dropped. What shares them keeps them as they are; those
    /// that are published stay to be found. The new ones are not published: publishing them where the index has the
    /// same words exchanges them for the blocks that were there. A host pool may have an index of its own, whose
    /// tables come to the device like this. The table's own pool can be asked too; all blocks are copied then.
    ///
    /// ```
    /// use sinew_memory::{PageConfig, PagePool};
    ///
    /// let device = PagePool::new(PageConfig { num_blocks: 4, block_size: 16, block_bytes: 4096 })?;
    /// let host = PagePool::new(PageConfig { num_blocks: 64, ..device.config() })?;
    /// let mut table = device.table();
    /// table.append(40)?;
    /// let swap = table.swap_to(&host)?;
    /// for &(from, to) in swap.copies() {
    ///     let _ = (device.byte_offset(from), host.byte_offset(to)); // 4096 bytes from here to there, in every layer
    /// }
    /// drop(swap); // after the copies were done
    /// assert_eq!((device.stats().free, host.stats().used), (4, 3));
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`] of the other pool, and [`Error::Invalid`] where its blocks have another size. Nothing was
    /// changed then.
    pub fn swap_to(&mut self, pool: &PagePool) -> Result<SwapBlocks> {
        let (from, to) = (self.pool.config(), pool.config());
        if (from.block_size, from.block_bytes) != (to.block_size, to.block_bytes) {
            return Err(Error::Invalid(format!(
                "blocks of {} tokens and {} bytes cannot be swapped for blocks of {} tokens and {} bytes",
                from.block_size, from.block_bytes, to.block_size, to.block_bytes
            )));
        }
        let mut copies = Vec::with_capacity(self.blocks.len());
        let (tokens, slots) = self.tokens_and_slots();
        // One lock at a time, so that tables which cross each other's way wait for nothing.
        let mut state = pool.lock();
        state.check_available(self.blocks.len())?;
        for block in &mut self.blocks {
            let to = state.allocate_twice();
            copies.push((std::mem::replace(block, to), to));
        }
        state.add_table(tokens, slots);
        drop(state);
        self.pool.lock().remove_table(tokens, slots);
        // The table's references to the old blocks are the swap's now.
        let from = std::mem::replace(&mut self.pool, pool.clone());
        self.chain = Chain::default();
        Ok(SwapBlocks { from, to: pool.clone(), copies })
    }
}

/// Copies to make from blocks of one pool to blocks of another, whole blocks in every buffer of the cache.
///
/// It refers to both sides, so that no block is reused: drop it once the copies were made. Several, [`crate::CopyBlock`]
/// included, are made in the order in which they came. An append to the table before that is right, but may take one
/// more block.
#[must_use = "the new blocks have none of the tokens before they are copied"]
pub struct SwapBlocks {
    from: PagePool,
    to: PagePool,
    copies: Vec<(BlockId, BlockId)>,
}

impl SwapBlocks {
    /// The pool of the blocks to read.
    pub fn from(&self) -> &PagePool {
        &self.from
    }

    /// The pool of the blocks to write.
    pub fn to(&self) -> &PagePool {
        &self.to
    }

    /// Each block to read, and the one to write it to.
    pub fn copies(&self) -> &[(BlockId, BlockId)] {
        &self.copies
    }
}

impl Drop for SwapBlocks {
    fn drop(&mut self) {
        self.from.lock().release_all(self.copies.iter().rev().map(|copy| copy.0));
        self.to.lock().release_all(self.copies.iter().rev().map(|copy| copy.1));
    }
}

impl fmt::Debug for SwapBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwapBlocks({} blocks of {:?} to {:?})", self.copies.len(), self.from, self.to)
    }
}
