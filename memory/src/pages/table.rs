//! Block tables: sequences as blocks, and the copies that appends to shared blocks ask for.

use std::fmt;
use std::ops::Range;

use super::index::Chain;
use super::state::State;
use super::{BlockId, PagePool};
use crate::{Error, Result};

/// The blocks of one sequence, in order of positions.
///
/// Token `p` is in the block of index `p / block_size`, at slot `p % block_size`; see [`BlockTable::slot`]. Dropping
/// the table releases its blocks. A table never leads to write into a block that something else refers to: where that
/// would happen, [`BlockTable::append`] puts a block of its own in place and says what to copy.
///
/// Layers of one kind share a table. A model whose layers are of several kinds, some over a sliding window, has a table
/// for each kind, from one pool or from several; the sliding ones let go of what the window has left
/// ([`BlockTable::release_before`]). For prefixes this means:
/// - A prefix is of use as far as all tables of the sequence have it: ask the pools in turn for
///   [`PagePool::matching_seen`], each of the words that the one before has found, until all find the same, and look up
///   that. In one pool, tables of different kinds need different salts.
/// - A sliding table is to publish blocks before it releases them, to a pool that remembers those that are evicted
///   ([`PrefixConfig::remembered`](crate::PrefixConfig)): it needs only the last ones of a prefix
///   ([`BlockTable::lookup_seen`]).
/// - What a window leaves behind is evicted before all else, unless it is of use for finding a prefix: the end of a chain,
///   or where a lookup has found it, or would have, as [`PagePool::matching_seen`] would, had it still been there. So the
///   second sequence that begins as an earlier one says how far they are alike, and runs that again; the third starts
///   there.
pub struct BlockTable {
    pub(super) pool: PagePool,
    pub(super) blocks: Vec<BlockId>,
    /// Blocks released from the front.
    pub(super) first_block: usize,
    pub(super) num_tokens: usize,
    /// How far it is published; never beyond `num_tokens`.
    pub(super) chain: Chain,
}

impl BlockTable {
    pub(super) fn new(pool: PagePool) -> Self {
        Self { pool, blocks: Vec::new(), first_block: 0, num_tokens: 0, chain: Chain::default() }
    }

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

    /// Free or cached blocks that appending `tokens` tokens takes now.
    pub fn blocks_needed(&self, tokens: usize) -> usize {
        let state = self.pool.lock();
        self.growth(&state, tokens).map_or(usize::MAX, |growth| growth.new_blocks + usize::from(growth.copies_last))
    }

    /// Makes room for `tokens` more tokens, so that appending or finding them allocates nothing on the host. Takes no
    /// blocks.
    pub fn reserve(&mut self, tokens: usize) {
        let blocks = self.num_tokens.saturating_add(tokens).div_ceil(self.block_size());
        let missing = blocks.saturating_sub(self.first_block + self.blocks.len());
        // More blocks than the pool has will never be needed.
        self.blocks.reserve(missing.min(self.pool.config().num_blocks));
    }

    /// Appends `tokens` tokens, taking blocks as needed. Where the last block is half-filled and shared or published,
    /// its place is taken by a new block, and what was in it has to be copied there before it is read or written.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`], and [`Error::Invalid`] for more tokens than can be counted. Nothing was changed then.
    pub fn append(&mut self, tokens: usize) -> Result<Option<CopyBlock>> {
        let pool = self.pool.clone();
        let mut state = pool.lock();
        let growth = self.growth(&state, tokens)?;
        state.check_available(growth.new_blocks.saturating_add(usize::from(growth.copies_last)))?;
        let mut copy = None;
        if growth.copies_last
            && let Some(last) = self.blocks.last_mut()
        {
            let to = state.allocate_twice();
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

    /// Takes back an append whose copy could not be made: the table has the tokens that it had, the last ones in the block
    /// that they were in.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the copy of another table.
    pub fn take_back(&mut self, copy: CopyBlock) -> Result<()> {
        let at = self.blocks.iter().rposition(|&block| block == copy.to).filter(|_| self.pool.is_same(&copy.pool));
        let Some(at) = at else {
            return Err(Error::Invalid(format!("{copy:?} is not of {self:?}")));
        };
        self.truncate((self.first_block + at) * self.block_size() + copy.tokens)?;
        let mut state = self.pool.lock();
        state.retain(copy.from)?;
        self.blocks[at] = copy.from;
        state.release_all([copy.to]);
        Ok(())
    }

    /// A second table of the same tokens that shares all blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more references to a block than can be counted.
    pub fn fork(&self) -> Result<Self> {
        let mut state = self.pool.lock();
        for (retained, &block) in self.blocks.iter().enumerate() {
            if let Err(error) = state.retain(block) {
                state.release_all(self.blocks[..retained].iter().copied());
                return Err(error);
            }
        }
        let (tokens, slots) = self.tokens_and_slots();
        state.add_table(tokens, slots);
        drop(state);
        Ok(Self { pool: self.pool.clone(), blocks: self.blocks.clone(), ..*self })
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
        let block_size = self.block_size();
        let kept = tokens.div_ceil(block_size) - self.first_block;
        let released = self.blocks.len() - kept;
        let mut state = self.pool.lock();
        state.release_all(self.blocks.drain(kept..).rev());
        if let Ok(index) = state.index() {
            self.chain = index.shortened(self.chain, tokens / block_size);
        }
        state.stats.table_tokens -= (self.num_tokens - tokens) as u64;
        state.stats.table_slots -= (released * block_size) as u64;
        self.num_tokens = tokens;
        Ok(())
    }

    /// Releases the full blocks that hold only positions below `position`, as a sliding window leaves them behind.
    /// Returns how many; asking again releases nothing more. Published ones that nothing else refers to are evicted
    /// before others, unless they are of use for finding a prefix.
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
        state.leave_behind(self.blocks.drain(..released));
        state.stats.table_tokens -= (released * block_size) as u64;
        state.stats.table_slots -= (released * block_size) as u64;
        self.first_block += released;
        Ok(released)
    }

    /// Releases all blocks. The table is empty again, also where blocks were released before, and keeps the memory that
    /// [`BlockTable::reserve`] took.
    pub fn clear(&mut self) {
        let (tokens, slots) = self.tokens_and_slots();
        let mut state = self.pool.lock();
        // The last block first, so that of cached ones it is evicted first.
        state.release_all(self.blocks.drain(..).rev());
        state.stats.table_tokens -= tokens as u64;
        state.stats.table_slots -= slots as u64;
        (self.first_block, self.num_tokens, self.chain) = (0, 0, Chain::default());
    }

    pub(super) fn block_size(&self) -> usize {
        self.pool.config().block_size
    }

    /// Tokens held, and tokens that there are blocks for.
    pub(super) fn tokens_and_slots(&self) -> (usize, usize) {
        (self.positions().len(), self.blocks.len() * self.block_size())
    }

    fn growth(&self, state: &State, tokens: usize) -> Result<Growth> {
        let Some(num_tokens) = self.num_tokens.checked_add(tokens).filter(|&n| n <= isize::MAX as usize) else {
            return Err(Error::Invalid(format!("cannot append {tokens} tokens to {}", self.num_tokens)));
        };
        let new_blocks = num_tokens.div_ceil(self.block_size()) - self.first_block - self.blocks.len();
        let is_frozen = |&block: &BlockId| state.is_frozen(block);
        let half_filled = !self.num_tokens.is_multiple_of(self.block_size());
        Ok(Growth { new_blocks, copies_last: tokens > 0 && half_filled && self.blocks.last().is_some_and(is_frozen) })
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        self.clear();
        self.pool.lock().remove_table(0, 0);
    }
}

impl fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks: Vec<u32> = self.blocks.iter().map(|block| block.0).collect();
        write!(f, "BlockTable({:?} in blocks {blocks:?})", self.positions())
    }
}

/// A copy to make, in every buffer of the cache: the first `tokens` tokens of block `from` to block `to`.
///
/// It refers to both blocks, so that neither is reused: drop it once the copy was made, or enqueued on the stream that
/// all writes go to. Several, those of [`crate::SwapBlocks`] included, are made in the order in which they came. An
/// append to the table before that is right, but takes one more block.
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
        self.pool.lock().release_all([self.from, self.to]);
    }
}

impl fmt::Debug for CopyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyBlock({} tokens of {} to {})", self.tokens, self.from, self.to)
    }
}

/// What an append takes from the pool.
struct Growth {
    new_blocks: usize,
    copies_last: bool,
}
