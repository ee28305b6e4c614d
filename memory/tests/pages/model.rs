//! What a pool must do, in the simplest way: every list is searched from end to end.

use sinew_memory::{BlockId, PageStats};

use super::BLOCK_SIZE;

/// Under what a block was published.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// What the slot before the block holds, which stands for all words up to it; the salt at the start.
    pub parent: u64,
    /// What the block holds.
    pub contents: [u64; BLOCK_SIZE],
}

impl Key {
    /// That of a block of a sequence with a salt and these contents.
    pub fn of(salt: u64, contents: &[u64], block: usize) -> Self {
        let start = block * BLOCK_SIZE;
        let parent = if block == 0 { salt } else { contents[start - 1] };
        Self { parent, contents: contents[start..start + BLOCK_SIZE].try_into().expect("a full block") }
    }

    /// What stands for all words up to its end.
    fn own(&self) -> u64 {
        self.contents[BLOCK_SIZE - 1]
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    pub references: u32,
    pub key: Option<Key>,
    cached_at: u64,
}

impl Block {
    fn is_cached(&self) -> bool {
        self.references == 0 && self.key.is_some()
    }

    pub fn is_free(&self) -> bool {
        self.references == 0 && self.key.is_none()
    }
}

pub struct Model {
    pub blocks: Vec<Block>,
    clock: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Used blocks that left the index because one before them was evicted.
    pub cut: usize,
    peak_used: usize,
}

impl Model {
    pub fn new(num_blocks: usize) -> Self {
        let blocks = vec![Block::default(); num_blocks];
        Self { blocks, clock: 0, hits: 0, misses: 0, evictions: 0, cut: 0, peak_used: 0 }
    }

    fn count(&self, is: impl Fn(&Block) -> bool) -> usize {
        self.blocks.iter().filter(|block| is(block)).count()
    }

    pub fn available(&self) -> usize {
        self.count(|block| block.references == 0)
    }

    /// The lowest free block, or what an eviction frees.
    pub fn allocate(&mut self) -> BlockId {
        if !self.blocks.iter().any(Block::is_free) {
            self.evict();
        }
        let block = self.blocks.iter().position(Block::is_free).expect("asked before");
        let block = BlockId(block as u32);
        self.retain(block);
        block
    }

    pub fn retain(&mut self, BlockId(block): BlockId) {
        self.blocks[block as usize].references += 1;
        self.peak_used = self.peak_used.max(self.count(|block| block.references > 0));
    }

    pub fn release(&mut self, BlockId(block): BlockId) {
        let block = &mut self.blocks[block as usize];
        block.references -= 1;
        if block.is_cached() {
            self.clock += 1;
            block.cached_at = self.clock;
        }
    }

    pub fn is_frozen(&self, BlockId(block): BlockId) -> bool {
        let block = &self.blocks[block as usize];
        block.references > 1 || block.key.is_some()
    }

    pub fn find(&self, key: &Key) -> Option<BlockId> {
        let is = |block: &Block| block.key.is_some_and(|found| found.own() == key.own());
        self.blocks.iter().position(is).map(|block| BlockId(block as u32))
    }

    /// Frees the least recently used cached block that no cached one continues, with all that continues it.
    pub fn evict(&mut self) -> usize {
        let continues = |block: &Block, parent: u64| block.key.is_some_and(|key| key.parent == parent);
        let is_candidate = |block: &&Block| {
            let own = block.key.map_or(0, |key| key.own());
            block.is_cached() && !self.blocks.iter().any(|next| next.is_cached() && continues(next, own))
        };
        let Some(victim) = self.blocks.iter().filter(is_candidate).min_by_key(|block| block.cached_at) else {
            return 0;
        };
        let mut gone = vec![victim.key.expect("cached").own()];
        let mut evicted = 0;
        while let Some(own) = gone.pop() {
            for block in &mut self.blocks {
                let Some(key) = block.key else { continue };
                if key.parent == own {
                    gone.push(key.own());
                }
                if key.own() == own {
                    evicted += usize::from(block.references == 0);
                    self.cut += usize::from(block.references > 0);
                    block.key = None;
                }
            }
        }
        self.evictions += evicted as u64;
        evicted
    }

    /// The statistics, but for those of tables.
    pub fn stats(&self, tables: PageStats) -> PageStats {
        PageStats {
            total: self.blocks.len(),
            used: self.count(|block| block.references > 0),
            cached: self.count(Block::is_cached),
            free: self.count(Block::is_free),
            shared: self.count(|block| block.references > 1),
            references: self.blocks.iter().map(|block| u64::from(block.references)).sum(),
            peak_used: self.peak_used,
            published: self.count(|block| block.key.is_some()),
            hits: self.hits,
            misses: self.misses,
            evictions: self.evictions,
            ..tables
        }
    }
}
