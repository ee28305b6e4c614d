//! Fixed-size blocks for a paged cache, counted by reference, and the tables that string them into sequences.
//!
//! Only the bookkeeping is here: which block holds which positions, and who shares it. The bytes are somewhere else,
//! often in one buffer for each layer, and a block is at [`PagePool::byte_offset`] in each of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Error, Result};

/// The number of a block in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BlockId(pub u32);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// What the blocks of a [`PagePool`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageConfig {
    /// Blocks in all.
    pub num_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Bytes of a block, in each buffer that the pool describes.
    pub block_bytes: usize,
}

/// What a [`PagePool`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Blocks in all.
    pub total: usize,
    /// Blocks with at least one reference.
    pub used: usize,
    /// Blocks with none.
    pub free: usize,
    /// Blocks with more than one.
    pub shared: usize,
    /// References in all: tables, copies under way and [`PagePool::retain`].
    pub references: u64,
    /// The most blocks that have been in use at once.
    pub peak_used: usize,
    /// Block tables alive.
    pub tables: usize,
    /// Tokens that tables hold, each table counted by itself.
    pub table_tokens: u64,
    /// Tokens for which tables have blocks.
    pub table_slots: u64,
}

impl PageStats {
    /// The share of the tables' slots that no token fills, 0 to 1: the tails of last blocks.
    pub fn tail_fragmentation(&self) -> f64 {
        if self.table_slots == 0 { 0.0 } else { 1.0 - self.table_tokens as f64 / self.table_slots as f64 }
    }
}

/// Fixed-size blocks with reference counts.
///
/// A free block with the lowest number is handed out first, so the blocks a workload gets depend on nothing but what
/// is free. Clones are handles to the same pool, and all methods may be called from any thread.
///
/// ```
/// use sinew_memory::{PageConfig, PagePool};
///
/// let pool = PagePool::new(PageConfig { num_blocks: 8, block_size: 16, block_bytes: 4096 })?;
/// let mut prompt = pool.table();
/// prompt.append(20)?;
/// let mut answer = prompt.fork()?;
/// let copy = answer.append(1)?.expect("the half-filled last block is shared");
/// assert_eq!((copy.from(), copy.to()), (prompt.blocks()[1], answer.blocks()[1]));
/// drop(copy); // after the copy was done
/// assert_eq!(pool.stats().used, 3);
/// # Ok::<(), sinew_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct PagePool {
    shared: Arc<Shared>,
}

impl PagePool {
    /// A pool in which all blocks are free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of no tokens, more blocks than a [`BlockId`] can name, or more bytes than can be
    /// addressed.
    pub fn new(config: PageConfig) -> Result<Self> {
        let PageConfig { num_blocks, block_size, block_bytes } = config;
        if block_size == 0 {
            return Err(Error::Invalid("block_size must be at least 1 token".into()));
        }
        let Some(count) = u32::try_from(num_blocks).ok().filter(|&count| count < u32::MAX) else {
            return Err(Error::Invalid(format!("num_blocks must be below {}, not {num_blocks}", u32::MAX)));
        };
        let addressable =
            |size: usize| num_blocks.checked_mul(size).is_some_and(|product| product <= isize::MAX as usize);
        if !addressable(block_bytes) || !addressable(block_size) {
            return Err(Error::Invalid(format!(
                "{num_blocks} blocks of {block_size} tokens and {block_bytes} bytes cannot be addressed"
            )));
        }
        let (mut references, mut free) = (Vec::new(), Vec::new());
        if references.try_reserve_exact(num_blocks).is_err() || free.try_reserve_exact(num_blocks).is_err() {
            return Err(Error::Invalid(format!("no host memory for the counts of {num_blocks} blocks")));
        }
        references.resize(num_blocks, 0);
        free.extend((0..count).map(Reverse));
        let state =
            State { references, free: free.into(), stats: PageStats { total: num_blocks, ..PageStats::default() } };
        Ok(Self { shared: Arc::new(Shared { config, state: Mutex::new(state) }) })
    }

    /// What its blocks are.
    pub fn config(&self) -> PageConfig {
        self.shared.config
    }

    /// Where a block starts in a buffer of such blocks.
    pub fn byte_offset(&self, block: BlockId) -> u64 {
        u64::from(block.0) * self.shared.config.block_bytes as u64
    }

    /// A free block, with one reference, which the caller owns.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`].
    pub fn allocate(&self) -> Result<BlockId> {
        let mut state = self.lock();
        state.check_free(1)?;
        Ok(state.allocate())
    }

    /// One more reference to a block in use.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block that is free or not in the pool.
    pub fn retain(&self, block: BlockId) -> Result<()> {
        self.lock().retain(block)
    }

    /// One reference less; says whether it was the last, so that the block is free again.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block that is free already or not in the pool. Nothing was changed then.
    pub fn release(&self, block: BlockId) -> Result<bool> {
        self.lock().release(block)
    }

    /// References to a block; 0 where it is free or not in the pool.
    pub fn references(&self, block: BlockId) -> u32 {
        self.lock().references.get(block.0 as usize).copied().unwrap_or(0)
    }

    /// Blocks that could be allocated now.
    pub fn free_blocks(&self) -> usize {
        self.lock().free.len()
    }

    /// A table of no tokens.
    pub fn table(&self) -> BlockTable {
        self.lock().stats.tables += 1;
        BlockTable { pool: self.clone(), blocks: Vec::new(), first_block: 0, num_tokens: 0 }
    }

    /// Counts now.
    pub fn stats(&self) -> PageStats {
        self.lock().stats()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageConfig { num_blocks, block_size, block_bytes } = self.config();
        write!(f, "PagePool({} of {num_blocks} blocks free", self.free_blocks())?;
        write!(f, ", {block_size} tokens and {block_bytes} bytes each)")
    }
}

/// The blocks of one sequence, in order of positions.
///
/// Token `p` is in the block of index `p / block_size`, at slot `p % block_size`; see [`BlockTable::slot`]. Dropping
/// the table releases its blocks. A table never leads to write into a block that something else refers to: where that
/// would happen, [`BlockTable::append`] puts a block of its own in place and says what to copy.
pub struct BlockTable {
    pool: PagePool,
    blocks: Vec<BlockId>,
    /// Blocks released from the front.
    first_block: usize,
    num_tokens: usize,
}

impl BlockTable {
    /// The pool of the blocks.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// The blocks held, in order; the first is that of index [`BlockTable::first_block`].
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Index of the first block still held: how many [`BlockTable::release_before`] has released.
    pub fn first_block(&self) -> usize {
        self.first_block
    }

    /// Tokens of the sequence, released ones included: the position of the next token.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Positions of the tokens still held.
    pub fn positions(&self) -> Range<usize> {
        self.first_block * self.block_size()..self.num_tokens
    }

    /// The block of a position, and the slot in it; [`None`] for a position that is not held.
    pub fn slot(&self, position: usize) -> Option<(BlockId, usize)> {
        if !self.positions().contains(&position) {
            return None;
        }
        let block = self.blocks.get(position / self.block_size() - self.first_block)?;
        Some((*block, position % self.block_size()))
    }

    /// Free blocks that appending `tokens` tokens takes now.
    pub fn blocks_needed(&self, tokens: usize) -> usize {
        let state = self.pool.lock();
        self.growth(&state, tokens).map_or(usize::MAX, |growth| growth.new_blocks + usize::from(growth.copies_last))
    }

    /// Makes room for `tokens` more tokens, so that appending them allocates nothing on the host. Takes no blocks.
    pub fn reserve(&mut self, tokens: usize) {
        let blocks = self.num_tokens.saturating_add(tokens).div_ceil(self.block_size());
        let missing = blocks.saturating_sub(self.first_block + self.blocks.len());
        // More blocks than the pool has will never be needed.
        self.blocks.reserve(missing.min(self.pool.config().num_blocks));
    }

    /// Appends `tokens` tokens, taking blocks as needed. Where the last block is half-filled and shared, its place is
    /// taken by a new block, and what was in it has to be copied there before it is read or written.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`], and [`Error::Invalid`] for more tokens than can be counted. Nothing was changed then.
    pub fn append(&mut self, tokens: usize) -> Result<Option<CopyBlock>> {
        let pool = self.pool.clone();
        let mut state = pool.lock();
        let growth = self.growth(&state, tokens)?;
        state.check_free(growth.new_blocks.saturating_add(usize::from(growth.copies_last)))?;
        let mut copy = None;
        if growth.copies_last
            && let Some(last) = self.blocks.last_mut()
        {
            let to = state.allocate();
            let retained = state.retain(to);
            debug_assert!(retained.is_ok(), "one reference more than the first");
            let from = std::mem::replace(last, to);
            // The table's reference to the old block becomes the copy's. It refers to the new one too: until it is
            // done, neither is written again or reused, not even by a table that truncates or is dropped meanwhile.
            copy = Some(CopyBlock { pool: pool.clone(), from, to, tokens: self.num_tokens % self.block_size() });
        }
        for _ in 0..growth.new_blocks {
            self.blocks.push(state.allocate());
        }
        self.num_tokens += tokens;
        state.stats.table_tokens += tokens as u64;
        state.stats.table_slots += (growth.new_blocks * self.block_size()) as u64;
        Ok(copy)
    }

    /// A second table of the same tokens that shares all blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more references to a block than can be counted.
    pub fn fork(&self) -> Result<Self> {
        let mut state = self.pool.lock();
        for (retained, &block) in self.blocks.iter().enumerate() {
            if let Err(error) = state.retain(block) {
                for &block in &self.blocks[..retained] {
                    state.release(block)?;
                }
                return Err(error);
            }
        }
        state.stats.tables += 1;
        state.stats.table_tokens += self.positions().len() as u64;
        state.stats.table_slots += (self.blocks.len() * self.block_size()) as u64;
        drop(state);
        let Self { pool, blocks, first_block, num_tokens } = self;
        Ok(Self { pool: pool.clone(), blocks: blocks.clone(), first_block: *first_block, num_tokens: *num_tokens })
    }

    /// Forgets the tokens from position `tokens` on, as speculative decoding does with rejected ones, and releases
    /// the blocks that held nothing else.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the sequence is shorter already, or where what would be left was released.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        let held = self.positions();
        if tokens > held.end || tokens < held.start {
            let Range { start, end } = held;
            return Err(Error::Invalid(format!(
                "cannot truncate to {tokens} tokens: the table holds positions {start} to {end}"
            )));
        }
        let kept = tokens.div_ceil(self.block_size()) - self.first_block;
        let released = self.blocks.len() - kept;
        let mut state = self.pool.lock();
        for block in self.blocks.drain(kept..) {
            state.release_from_table(block);
        }
        state.stats.table_tokens -= (self.num_tokens - tokens) as u64;
        state.stats.table_slots -= (released * self.pool.shared.config.block_size) as u64;
        self.num_tokens = tokens;
        Ok(())
    }

    /// Releases the full blocks that hold only positions below `position`, as a sliding window leaves them behind.
    /// Returns how many; asking again releases nothing more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a position beyond the next token.
    pub fn release_before(&mut self, position: usize) -> Result<usize> {
        if position > self.num_tokens {
            let tokens = self.num_tokens;
            return Err(Error::Invalid(format!("cannot release before {position}: the sequence has {tokens} tokens")));
        }
        let block_size = self.block_size();
        let released = (position / block_size).saturating_sub(self.first_block);
        let mut state = self.pool.lock();
        for block in self.blocks.drain(..released) {
            state.release_from_table(block);
        }
        state.stats.table_tokens -= (released * block_size) as u64;
        state.stats.table_slots -= (released * block_size) as u64;
        self.first_block += released;
        Ok(released)
    }

    fn block_size(&self) -> usize {
        self.pool.shared.config.block_size
    }

    fn growth(&self, state: &State, tokens: usize) -> Result<Growth> {
        let Some(num_tokens) = self.num_tokens.checked_add(tokens).filter(|&n| n <= isize::MAX as usize) else {
            return Err(Error::Invalid(format!("cannot append {tokens} tokens to {}", self.num_tokens)));
        };
        let new_blocks = num_tokens.div_ceil(self.block_size()) - self.first_block - self.blocks.len();
        let is_shared = |block: &BlockId| state.references[block.0 as usize] > 1;
        let half_filled = !self.num_tokens.is_multiple_of(self.block_size());
        Ok(Growth { new_blocks, copies_last: tokens > 0 && half_filled && self.blocks.last().is_some_and(is_shared) })
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        let slots = self.blocks.len() * self.block_size();
        let tokens = self.positions().len();
        let mut state = self.pool.lock();
        for block in self.blocks.drain(..) {
            state.release_from_table(block);
        }
        state.stats.tables -= 1;
        state.stats.table_tokens -= tokens as u64;
        state.stats.table_slots -= slots as u64;
    }
}

impl fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks: Vec<u32> = self.blocks.iter().map(|block| block.0).collect();
        write!(f, "BlockTable({:?} in blocks {blocks:?})", self.positions())
    }
}

/// What an append takes from the pool.
struct Growth {
    new_blocks: usize,
    copies_last: bool,
}

/// A copy to make, in every buffer of the cache: the first `tokens` tokens of block `from` to block `to`.
///
/// It refers to both blocks, so that neither is reused: drop it once the copy was made, or enqueued on the stream that
/// all writes go to. Several are made in the order in which they came. An append to the table before that is right, but
/// takes one more block.
#[must_use = "the new block has none of the tokens before it is copied"]
pub struct CopyBlock {
    pool: PagePool,
    from: BlockId,
    to: BlockId,
    tokens: usize,
}

impl CopyBlock {
    /// The block to read.
    pub fn from(&self) -> BlockId {
        self.from
    }

    /// The block to write.
    pub fn to(&self) -> BlockId {
        self.to
    }

    /// Tokens to copy, from slot 0 on.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Drop for CopyBlock {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.release_from_table(self.from);
        state.release_from_table(self.to);
    }
}

impl fmt::Debug for CopyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyBlock({} tokens of {} to {})", self.tokens, self.from, self.to)
    }
}

struct Shared {
    config: PageConfig,
    state: Mutex<State>,
}

struct State {
    references: Vec<u32>,
    /// All blocks without references, lowest first. Never grows past its first size, so it allocates nothing later.
    free: BinaryHeap<Reverse<u32>>,
    /// Everything but `used` and `free`, which follow from the lists.
    stats: PageStats,
}

impl State {
    fn check_free(&self, asked: usize) -> Result<()> {
        if asked > self.free.len() {
            return Err(Error::OutOfBlocks { asked, free: self.free.len(), total: self.references.len() });
        }
        Ok(())
    }

    /// A free block; [`State::check_free`] has said that there is one.
    fn allocate(&mut self) -> BlockId {
        let Some(Reverse(block)) = self.free.pop() else { unreachable!("asked for free blocks before") };
        debug_assert_eq!(self.references[block as usize], 0);
        self.references[block as usize] = 1;
        self.stats.references += 1;
        self.stats.peak_used = self.stats.peak_used.max(self.references.len() - self.free.len());
        BlockId(block)
    }

    fn counted(&mut self, block: BlockId) -> Result<&mut u32> {
        match self.references.get_mut(block.0 as usize) {
            Some(references) if *references > 0 => Ok(references),
            Some(_) => Err(Error::Invalid(format!("{block} is free"))),
            None => Err(Error::Invalid(format!("{block} is not in the pool"))),
        }
    }

    fn retain(&mut self, block: BlockId) -> Result<()> {
        let references = self.counted(block)?;
        let Some(more) = references.checked_add(1) else {
            return Err(Error::Invalid(format!("{block} has too many references")));
        };
        *references = more;
        self.stats.shared += usize::from(more == 2);
        self.stats.references += 1;
        Ok(())
    }

    fn release(&mut self, block: BlockId) -> Result<bool> {
        let references = self.counted(block)?;
        *references -= 1;
        let left = *references;
        self.stats.shared -= usize::from(left == 1);
        self.stats.references -= 1;
        if left == 0 {
            self.free.push(Reverse(block.0));
        }
        Ok(left == 0)
    }

    /// Releases what a table or a copy holds. It can fail only if somebody released that reference by hand.
    fn release_from_table(&mut self, block: BlockId) {
        if let Err(error) = self.release(block) {
            tracing::error!(%error, "a block of a table was released by somebody else");
        }
    }

    fn stats(&self) -> PageStats {
        let free = self.free.len();
        PageStats { used: self.references.len() - free, free, ..self.stats }
    }
}
