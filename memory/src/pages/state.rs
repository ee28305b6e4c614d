//! The counts behind a pool's lock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::index::Index;
use super::{BlockId, PageStats};
use crate::messages::{self, Severity};
use crate::{Error, Result};

pub(super) struct State {
    references: Vec<u32>,
    /// All blocks without references that are not published, lowest first. Never grows past its first size, so it
    /// allocates nothing later.
    free: BinaryHeap<Reverse<u32>>,
    index: Option<Index>,
    /// Everything but what follows from the lists.
    pub stats: PageStats,
}

impl State {
    pub fn new(num_blocks: u32, index: Option<Index>) -> Result<Self> {
        let total = num_blocks as usize;
        let mut free = filled(total, Reverse(0))?;
        free.iter_mut().zip(0..).for_each(|(slot, block)| *slot = Reverse(block));
        let stats = PageStats { total, ..PageStats::default() };
        Ok(Self { references: filled(total, 0)?, free: free.into(), index, stats })
    }

    /// # Errors
    /// For a pool without one.
    pub fn index(&mut self) -> Result<&mut Index> {
        self.index.as_mut().ok_or_else(|| Error::Invalid("the pool has no prefix index; make it with one".into()))
    }

    pub fn check_available(&self, asked: usize) -> Result<()> {
        let available = self.available();
        if asked > available {
            return Err(Error::OutOfBlocks { asked, free: available, total: self.references.len() });
        }
        Ok(())
    }

    /// A block that was free or cached; [`State::check_available`] has said that there is one.
    pub fn allocate(&mut self) -> BlockId {
        if self.free.is_empty() {
            self.evict();
        }
        let Some(Reverse(block)) = self.free.pop() else { unreachable!("asked for available blocks before") };
        debug_assert_eq!(self.references[block as usize], 0);
        self.first_reference(BlockId(block));
        BlockId(block)
    }

    /// Such a block with two references: a table's, and that of a copy into it.
    pub fn allocate_twice(&mut self) -> BlockId {
        let block = self.allocate();
        let retained = self.retain(block);
        debug_assert!(retained.is_ok(), "one reference more than the first");
        block
    }

    pub fn retain(&mut self, block: BlockId) -> Result<()> {
        let references = self.counted(block)?;
        let Some(more) = references.checked_add(1) else {
            return Err(Error::Invalid(format!("{block} has too many references")));
        };
        *references = more;
        self.stats.shared += usize::from(more == 2);
        self.stats.references += 1;
        Ok(())
    }

    /// One more reference to a published block, which may be cached.
    pub fn retain_published(&mut self, block: BlockId) -> Result<()> {
        match &mut self.index {
            Some(index) if index.is_cached(block) => {
                index.uncache(block);
                self.first_reference(block);
                Ok(())
            }
            _ => self.retain(block),
        }
    }

    pub fn release(&mut self, block: BlockId) -> Result<bool> {
        self.let_go(block, false)
    }

    fn let_go(&mut self, block: BlockId, is_left_behind: bool) -> Result<bool> {
        let references = self.counted(block)?;
        *references -= 1;
        let left = *references;
        self.stats.shared -= usize::from(left == 1);
        self.stats.references -= 1;
        if left == 0 {
            match &mut self.index {
                Some(index) if index.is_published(block) => index.cache(block, is_left_behind),
                _ => self.free.push(Reverse(block.0)),
            }
        }
        Ok(left == 0)
    }

    /// Releases what a table or a copy holds. It can fail only if somebody released that reference by hand.
    pub fn release_all(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        self.let_all_go(blocks, false);
    }

    /// Releases what the window of a table has left behind.
    pub fn leave_behind(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        self.let_all_go(blocks, true);
    }

    fn let_all_go(&mut self, blocks: impl IntoIterator<Item = BlockId>, are_left_behind: bool) {
        for block in blocks {
            if let Err(error) = self.let_go(block, are_left_behind) {
                let text = format_args!("a block was released while its table held it: {error}");
                messages::send(Severity::Error, text);
            }
        }
    }

    pub fn references(&self, block: BlockId) -> u32 {
        self.references.get(block.0 as usize).copied().unwrap_or(0)
    }

    /// Whether a block that a table holds is to stay as it is, for somebody else or for the index.
    pub fn is_frozen(&self, block: BlockId) -> bool {
        self.references(block) > 1 || self.index.as_ref().is_some_and(|index| index.is_published(block))
    }

    /// Frees the cached block that is to go first, and says whether there was one.
    pub fn evict(&mut self) -> bool {
        let free = self.free.len();
        if let Some(index) = &mut self.index {
            index.evict(|block| self.free.push(Reverse(block.0)));
        }
        let evicted = self.free.len() - free;
        self.stats.evictions += evicted as u64;
        evicted > 0
    }

    pub fn clear_index(&mut self) {
        if let Some(index) = &mut self.index {
            index.clear(|block| self.free.push(Reverse(block.0)));
        }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn free_list(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter().map(|&Reverse(block)| BlockId(block))
    }

    pub fn available(&self) -> usize {
        self.free.len() + self.cached()
    }

    pub fn add_table(&mut self, tokens: usize, slots: usize) {
        self.stats.tables += 1;
        self.stats.table_tokens += tokens as u64;
        self.stats.table_slots += slots as u64;
    }

    pub fn remove_table(&mut self, tokens: usize, slots: usize) {
        self.stats.tables -= 1;
        self.stats.table_tokens -= tokens as u64;
        self.stats.table_slots -= slots as u64;
    }

    pub fn stats(&self) -> PageStats {
        let (free, cached) = (self.free.len(), self.cached());
        let (published, remembered) = self.index.as_ref().map_or((0, 0), |index| (index.published, index.remembered));
        PageStats { used: self.used(), cached, free, published, remembered, ..self.stats }
    }

    fn cached(&self) -> usize {
        self.index.as_ref().map_or(0, |index| index.cached)
    }

    fn used(&self) -> usize {
        self.references.len() - self.available()
    }

    fn first_reference(&mut self, block: BlockId) {
        self.references[block.0 as usize] = 1;
        self.stats.references += 1;
        self.stats.peak_used = self.stats.peak_used.max(self.used());
    }

    fn counted(&mut self, block: BlockId) -> Result<&mut u32> {
        match self.references.get_mut(block.0 as usize) {
            Some(references) if *references > 0 => Ok(references),
            Some(_) => Err(Error::Invalid(format!("nothing refers to {block}"))),
            None => Err(Error::Invalid(format!("{block} is not in the pool"))),
        }
    }
}

/// A vector that is refused where the host has no memory for it.
pub(super) fn filled<T: Copy>(len: usize, value: T) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(len).map_err(|_| no_memory(len))?;
    items.resize(len, value);
    Ok(items)
}

pub(super) fn no_memory(len: usize) -> Error {
    Error::Invalid(format!("no host memory for lists of {len} entries"))
}
