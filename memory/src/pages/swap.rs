//! Tables that move between pools, as from a device to the host and back.

use std::fmt;

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
        let (table, swap) = self.swapped(pool.table())?;
        *self = table;
        Ok(swap)
    }

    /// A table of the same tokens that goes on from `start`, a table of another pool that has the first of them: what
    /// [`BlockTable::lookup`] found there, or nothing. What `start` has is not copied. This table stays as it is.
    ///
    /// ```
    /// use sinew_memory::{PageConfig, PagePool, PrefixConfig};
    ///
    /// let device = PagePool::with_prefixes(PageConfig { num_blocks: 8, block_size: 2, block_bytes: 64 }, PrefixConfig::default())?;
    /// let host = PagePool::new(device.config())?;
    /// let mut table = device.table();
    /// table.append(5)?;
    /// table.publish(0, &[1, 2, 3, 4, 5])?;
    /// drop(table.swap_to(&host)?);
    /// let mut start = device.table();
    /// start.lookup(0, &[1, 2, 3, 4, 5])?;
    /// let (table, swap) = table.swapped(start)?;
    /// assert_eq!((table.num_tokens(), swap.copies().len()), (5, 1));
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`BlockTable::swap_to`], and [`Error::Invalid`] where `start` has other positions than the first tokens
    /// of this table in whole blocks.
    pub fn swapped(&self, mut start: Self) -> Result<(Self, SwapBlocks)> {
        let (from, to) = (self.pool.config(), start.pool.config());
        if (from.block_size, from.block_bytes) != (to.block_size, to.block_bytes) {
            return Err(Error::Invalid(format!(
                "blocks of {} tokens and {} bytes cannot be swapped for blocks of {} tokens and {} bytes",
                from.block_size, from.block_bytes, to.block_size, to.block_bytes
            )));
        }
        let known = start.first_block + start.blocks.len();
        if start.num_tokens != known * to.block_size || start.num_tokens > self.num_tokens {
            let (start, own) = (start.positions(), self.positions());
            return Err(Error::Invalid(format!("positions {own:?} cannot go on from a table of {start:?}")));
        }
        // What this table has released, that one lets go.
        start.release_before(self.first_block.min(known) * to.block_size)?;
        let have = start.first_block.max(self.first_block)..known.max(self.first_block);
        let (before, behind) = (have.start - self.first_block, have.end - self.first_block);
        let (before, behind) = (&self.blocks[..before], &self.blocks[behind..]);
        let moved = || before.iter().chain(behind).copied();
        let mut swap = SwapBlocks { from: self.pool.clone(), to: start.pool.clone(), copies: Vec::new() };
        swap.copies.reserve(before.len() + behind.len());
        start.blocks.reserve(self.blocks.capacity().max(start.blocks.len()) - start.blocks.len());
        let (tokens, slots) = start.tokens_and_slots();
        // One lock at a time, so that tables which cross each other's way wait for nothing.
        let mut state = swap.to.lock();
        state.check_available(before.len() + behind.len())?;
        for (place, block) in moved().enumerate() {
            let to = state.allocate_twice();
            let place = if place < before.len() { place } else { start.blocks.len() };
            start.blocks.insert(place, to);
            swap.copies.push((block, to));
        }
        (start.first_block, start.num_tokens) = (self.first_block, self.num_tokens);
        if let Ok(index) = state.index()
            && !before.is_empty()
        {
            // What came before the blocks that were there is not published, whatever the index has of the same words.
            start.chain = index.shortened(start.chain, self.first_block);
        }
        let (more_tokens, more_slots) = start.tokens_and_slots();
        state.stats.table_tokens += (more_tokens - tokens) as u64;
        state.stats.table_slots += (more_slots - slots) as u64;
        drop(state);
        let mut state = swap.from.lock();
        for (retained, block) in moved().enumerate() {
            if let Err(error) = state.retain(block) {
                state.release_all(moved().take(retained));
                drop(state);
                swap.to.lock().release_all(swap.copies.drain(..).map(|copy| copy.1));
                return Err(error);
            }
        }
        drop(state);
        Ok((start, swap))
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
