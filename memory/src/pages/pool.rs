//! Blocks counted by reference, and the counts of a pool.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::index::Index;
use super::state::State;
use super::{BlockTable, PrefixConfig};
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

/// Fixed-size blocks with reference counts.
///
/// A block is *used*, by as many tables, copies and callers as it has references; or *cached*: nothing refers to it, but
/// it was published ([`BlockTable::publish`]), and its bytes are kept for the next sequence that starts with the same
/// words ([`BlockTable::lookup`]); or *free*.
///
/// The free block with the lowest number is handed out first, so the blocks a workload gets depend on nothing but what
/// is free. When none is, the least recently used cached block is evicted of which no continuation is cached, or any where
/// words may be [remembered](PrefixConfig::remembered); what [windows left behind](BlockTable::release_before) and no
/// lookup has asked for goes before all others, but for the ends of chains where words may be remembered. What was
/// published behind it leaves the index too, unless its words are remembered: cached blocks are free then, used ones stay
/// with who uses them.
///
/// Clones are handles to the same pool, and all methods may be called from any thread.
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
    /// Whether both are one pool, whose blocks have one numbering.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A pool in which all blocks are free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for blocks of no tokens, more blocks than a [`BlockId`] can name, or more bytes than can be
    /// addressed.
    pub fn new(config: PageConfig) -> Result<Self> {
        Self::make(config, None)
    }

    /// A pool with a prefix index, which [`BlockTable::publish`] fills and [`BlockTable::lookup`] asks. It has room
    /// for the words of all blocks from the start.
    ///
    /// # Errors
    /// As [`PagePool::new`], and for tokens of no words or more words than the host has memory for.
    pub fn with_prefixes(config: PageConfig, prefixes: PrefixConfig) -> Result<Self> {
        Self::make(config, Some(prefixes))
    }

    fn make(config: PageConfig, prefixes: Option<PrefixConfig>) -> Result<Self> {
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
        let index = prefixes.map(|prefixes| Index::new(num_blocks, block_size, prefixes)).transpose()?;
        let state = Mutex::new(State::new(count, index)?);
        Ok(Self { shared: Arc::new(Shared { config, state }) })
    }

    /// What its blocks are.
    pub fn config(&self) -> PageConfig {
        self.shared.config
    }

    /// Where a block starts in a buffer of such blocks.
    pub fn byte_offset(&self, block: BlockId) -> u64 {
        u64::from(block.0) * self.shared.config.block_bytes as u64
    }

    /// A free block, with one reference, which the caller owns; where none is free, a cached one is evicted.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`].
    pub fn allocate(&self) -> Result<BlockId> {
        let mut state = self.lock();
        state.check_available(1)?;
        Ok(state.allocate())
    }

    /// One more reference to a used block.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block that nothing refers to, or not in the pool.
    pub fn retain(&self, block: BlockId) -> Result<()> {
        self.lock().retain(block)
    }

    /// One reference less; says whether it was the last, so that the block is free again, or cached.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a block that nothing refers to, or not in the pool. Nothing was changed then.
    pub fn release(&self, block: BlockId) -> Result<bool> {
        self.lock().release(block)
    }

    /// References to a block; 0 where it is free, cached or not in the pool.
    pub fn references(&self, block: BlockId) -> u32 {
        self.lock().references(block)
    }

    /// Blocks that nothing refers to, the prefix index included.
    pub fn free_blocks(&self) -> usize {
        self.lock().free()
    }

    /// Calls `each` with every free block, in no order. It is not to ask the pool for anything.
    pub fn for_each_free(&self, each: impl FnMut(BlockId)) {
        self.lock().free_list().for_each(each);
    }

    /// Blocks that could be allocated now: free and cached ones.
    pub fn available_blocks(&self) -> usize {
        self.lock().available()
    }

    /// A table of no tokens.
    pub fn table(&self) -> BlockTable {
        self.lock().add_table(0, 0);
        BlockTable::new(self.clone())
    }

    /// Counts now.
    pub fn stats(&self) -> PageStats {
        self.lock().stats()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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

/// What a [`crate::PagePool`] holds, and what its prefix index has been good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Blocks in all: used, cached and free ones.
    pub total: usize,
    /// Blocks with at least one reference.
    pub used: usize,
    /// Published blocks without a reference, which are evicted when free ones run out.
    pub cached: usize,
    /// Blocks that nothing refers to, the prefix index included.
    pub free: usize,
    /// Blocks with more than one reference.
    pub shared: usize,
    /// References in all: tables, copies under way and [`crate::PagePool::retain`].
    pub references: u64,
    /// The most blocks that have been used at once.
    pub peak_used: usize,
    /// Block tables alive.
    pub tables: usize,
    /// Tokens that tables hold, each table counted by itself.
    pub table_tokens: u64,
    /// Tokens for which tables have blocks.
    pub table_slots: u64,
    /// Blocks in the prefix index, used and cached ones.
    pub published: usize,
    /// Places in the prefix index whose words are kept without a block, for what is published behind them.
    pub remembered: usize,
    /// Full blocks of words that [`crate::BlockTable::lookup`] has found, those that a window does not see among them.
    pub hits: u64,
    /// Full blocks that it was asked for and has not found.
    pub misses: u64,
    /// Cached blocks that were freed for something else.
    pub evictions: u64,
}

impl PageStats {
    /// Blocks that can be taken now: free ones, and cached ones, which are evicted for it.
    pub fn available(&self) -> usize {
        self.free + self.cached
    }

    /// The share of the blocks asked of the prefix index that it had, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        let asked = self.hits + self.misses;
        if asked == 0 { 0.0 } else { self.hits as f64 / asked as f64 }
    }

    /// The share of the tables' slots that no token fills, 0 to 1: the tails of last blocks.
    pub fn tail_fragmentation(&self) -> f64 {
        if self.table_slots == 0 { 0.0 } else { 1.0 - self.table_tokens as f64 / self.table_slots as f64 }
    }
}

struct Shared {
    config: PageConfig,
    state: Mutex<State>,
}
