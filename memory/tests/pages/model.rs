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
    /// Whether it was found, or missed at the end of what is known of a prefix.
    is_wanted: bool,
}

impl Key {
    /// That of a block of a sequence with a salt and these contents.
    pub fn of(salt: u64, contents: &[u64], block: usize) -> Self {
        let start = block * BLOCK_SIZE;
        let parent = if block == 0 { salt } else { contents[start - 1] };
        let contents = contents[start..start + BLOCK_SIZE].try_into().expect("a full block");
        Self { parent, contents, is_wanted: false }
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
    /// Whether a window has released it last.
    left_behind: bool,
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
    /// What is known without a block, and how much may be.
    pub remembered: Vec<Key>,
    most_remembered: usize,
    clock: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Used blocks that left the index because one before them was evicted.
    pub cut: usize,
    /// Evictions after which the words were remembered, and lookups that went past such.
    pub kept: usize,
    pub bridged: usize,
    /// Evictions of what a window left behind, and lookups that lacked what is wanted since.
    pub left_behind: usize,
    pub lacked: usize,
    peak_used: usize,
}

impl Model {
    pub fn new(num_blocks: usize, most_remembered: usize) -> Self {
        Self {
            blocks: vec![Block::default(); num_blocks],
            remembered: Vec::new(),
            most_remembered,
            clock: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
            cut: 0,
            kept: 0,
            bridged: 0,
            left_behind: 0,
            lacked: 0,
            peak_used: 0,
        }
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
        block.left_behind = false;
        if block.is_cached() {
            self.clock += 1;
            block.cached_at = self.clock;
        }
    }

    /// Releases what a window does not see any more.
    pub fn leave_behind(&mut self, BlockId(block): BlockId) {
        self.release(BlockId(block));
        self.blocks[block as usize].left_behind = true;
    }

    pub fn is_frozen(&self, BlockId(block): BlockId) -> bool {
        let block = &self.blocks[block as usize];
        block.references > 1 || block.key.is_some()
    }

    pub fn find(&self, key: &Key) -> Option<BlockId> {
        let is = |block: &Block| block.key.is_some_and(|found| found.own() == key.own());
        self.blocks.iter().position(is).map(|block| BlockId(block as u32))
    }

    pub fn is_remembered(&self, key: &Key) -> bool {
        self.remembered.iter().any(|found| found.own() == key.own())
    }

    /// Keeps what is not known without a block, if it may.
    pub fn remember(&mut self, key: Key) -> bool {
        let has_room = self.remembered.len() < self.most_remembered;
        self.remembered.extend(has_room.then_some(key));
        has_room
    }

    pub fn bring_back(&mut self, key: Key, BlockId(block): BlockId) {
        let known = self.remembered.iter().position(|found| found.own() == key.own());
        self.blocks[block as usize].key = Some(known.map_or(key, |known| self.remembered.swap_remove(known)));
    }

    /// Forgets what is remembered for nothing.
    pub fn forget(&mut self) {
        let keys = |model: &Self| -> Vec<Key> {
            model.remembered.iter().copied().chain(model.blocks.iter().filter_map(|block| block.key)).collect()
        };
        loop {
            let (before, keys) = (self.remembered.len(), keys(self));
            self.remembered.retain(|key| keys.iter().any(|next| next.parent == key.own()));
            if self.remembered.len() == before {
                return;
            }
        }
    }

    /// What is known of these is not to go first.
    pub fn want(&mut self, keys: &[Key]) {
        let known = self.blocks.iter_mut().filter_map(|block| block.key.as_mut()).chain(&mut self.remembered);
        known.filter(|known| keys.iter().any(|key| key.own() == known.own())).for_each(|known| known.is_wanted = true);
    }

    /// The blocks that a lookup finds of a sequence of these, and how many it does not see before them.
    pub fn look_up(&mut self, keys: &[Key], window: usize) -> (usize, Vec<BlockId>) {
        let found: Vec<_> = keys.iter().map(|key| self.find(key)).collect();
        let known =
            keys.iter().zip(&found).take_while(|(key, block)| block.is_some() || self.is_remembered(key)).count();
        // The next token is at the position after them, and sees no more before it than one less than the window.
        let is_seen = |block: usize, blocks: usize| blocks * BLOCK_SIZE - (block + 1) * BLOCK_SIZE < window - 1;
        let first_seen = |blocks: usize| (0..blocks).find(|&block| is_seen(block, blocks)).unwrap_or(blocks);
        let whole = |blocks: &usize| found[first_seen(*blocks)..*blocks].iter().all(Option::is_some);
        let blocks = (0..=known).rev().find(whole).unwrap_or(0);
        let first = first_seen(blocks);
        if blocks < known {
            self.want(&keys[first_seen(known)..known]);
            self.lacked += 1;
        }
        self.bridged += usize::from(found[..blocks].iter().any(Option::is_none));
        (first, found[first..blocks].iter().flatten().copied().collect())
    }

    /// Whether something is known of what comes behind a block.
    fn goes_on(&self, block: &Block) -> bool {
        let own = block.key.map_or(0, |key| key.own());
        let mut keys = self.blocks.iter().filter_map(|block| block.key).chain(self.remembered.iter().copied());
        keys.any(|next| next.parent == own)
    }

    /// Whether a cached block goes before those of which this is not so.
    fn goes_first(&self, block: &Block) -> bool {
        let may_go = self.most_remembered == 0 || self.goes_on(block);
        block.left_behind && block.key.is_some_and(|key| !key.is_wanted) && may_go
    }

    /// Frees the least recently used cached block, of those that a window left behind if there are any. Where nothing may
    /// be remembered, that is one that no cached one continues, and all that continues it goes with it. Where no more may
    /// be than are, what a window left behind stays for what continues it, while there is anything else.
    pub fn evict(&mut self) -> usize {
        let continues = |block: &Block, parent: u64| block.key.is_some_and(|key| key.parent == parent);
        let is_candidate = |block: &&Block| {
            let own = block.key.map_or(0, |key| key.own());
            let goes_on = || self.blocks.iter().any(|next| next.is_cached() && continues(next, own));
            block.is_cached() && (self.most_remembered > 0 || !goes_on())
        };
        let victims = self.blocks.iter().zip(0..).filter(|(block, _)| is_candidate(block));
        let by_age = |(block, _): &(&Block, usize)| (!self.goes_first(block), block.cached_at);
        let Some(mut first) = victims.clone().min_by_key(by_age) else {
            return 0;
        };
        let is_full = self.remembered.len() == self.most_remembered;
        if is_full && self.most_remembered > 0 {
            first = victims.filter(|(block, _)| !self.goes_first(block)).min_by_key(by_age).unwrap_or(first);
        }
        let (victim, place) = first;
        let (key, goes_on) = (victim.key.expect("cached"), self.goes_on(victim));
        self.left_behind += usize::from(self.goes_first(victim));
        if goes_on && !is_full {
            self.blocks[place].key = None;
            self.remembered.push(key);
            self.evictions += 1;
            self.kept += 1;
            return 1;
        }
        let mut gone = vec![key.own()];
        let mut evicted = 0;
        while let Some(own) = gone.pop() {
            gone.extend(self.remembered.iter().filter(|key| key.parent == own).map(Key::own));
            self.remembered.retain(|key| key.own() != own);
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
        self.forget();
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
            remembered: self.remembered.len(),
            hits: self.hits,
            misses: self.misses,
            evictions: self.evictions,
            ..tables
        }
    }
}
