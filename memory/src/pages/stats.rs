//! What a page pool counts.

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
