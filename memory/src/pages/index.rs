//! The prefix index: published blocks by the words in them and the block before, and which of them may be evicted.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use super::recency::Recency;
use super::{BlockId, PrefixConfig, PrefixHash};
use crate::{Error, Result};

const NONE: u32 = u32::MAX;

/// How far a sequence is published: its leading blocks, by the last of them.
#[derive(Clone, Copy, Default)]
pub(super) struct Chain {
    pub blocks: usize,
    salt: u64,
    last: Option<Entry>,
}

impl Chain {
    pub fn new(salt: u64) -> Self {
        Self { salt, ..Self::default() }
    }

    /// The last block.
    pub fn block(&self) -> Option<BlockId> {
        self.last.map(|last| BlockId(last.block))
    }

    fn parent(&self) -> u32 {
        self.last.map_or(NONE, |last| last.block)
    }
}

/// A published block, and a number that no other publication has: the block may be evicted and published anew.
#[derive(Clone, Copy)]
struct Entry {
    block: u32,
    serial: u64,
}

/// What the index knows of a block. Where `serial` is 0, the block is not published and the rest means nothing.
#[derive(Clone, Copy)]
struct Node {
    serial: u64,
    salt: u64,
    hash: u64,
    /// The block before in the sequence. It is published as long as this one is, so its number stands for all before.
    parent: u32,
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
    next_in_bucket: u32,
    cached_children: u32,
    /// When it was cached; 0 while something refers to it.
    cached_at: u64,
}

const UNPUBLISHED: Node = Node {
    serial: 0,
    salt: 0,
    hash: 0,
    parent: NONE,
    first_child: NONE,
    next_sibling: NONE,
    previous_sibling: NONE,
    next_in_bucket: NONE,
    cached_children: 0,
    cached_at: 0,
};

/// All its memory is taken when it is made: a block has room for its own node and words.
pub(super) struct Index {
    nodes: Vec<Node>,
    words: Vec<u32>,
    words_per_token: usize,
    words_per_block: usize,
    /// The first block of each bucket; the rest hang on it.
    buckets: Vec<u32>,
    hash: PrefixHash,
    /// Mixed into every hash, so that nobody can prepare words that share a bucket.
    secret: u64,
    /// Counts publications, and blocks that were cached.
    clock: u64,
    /// Cached blocks of which no child is cached.
    candidates: Recency,
    pub published: usize,
    pub cached: usize,
}

impl Index {
    pub fn new(num_blocks: usize, block_size: usize, config: PrefixConfig) -> Result<Self> {
        let PrefixConfig { words_per_token, hash } = config;
        let words_per_block = block_size.checked_mul(words_per_token).filter(|&words| words > 0);
        let sizes = words_per_block.and_then(|words| Some((words, words.checked_mul(num_blocks)?)));
        let Some((words_per_block, words)) = sizes else {
            return Err(Error::Invalid(format!(
                "{num_blocks} blocks of {block_size} tokens of {words_per_token} words"
            )));
        };
        let mut heap = Vec::new();
        if heap.try_reserve_exact(num_blocks).is_err() {
            return Err(no_memory(num_blocks));
        }
        Ok(Self {
            nodes: filled(num_blocks, UNPUBLISHED)?,
            words: filled(words, 0)?,
            words_per_token,
            words_per_block,
            buckets: filled(num_blocks.next_power_of_two(), NONE)?,
            hash,
            secret: RandomState::new().hash_one(num_blocks),
            clock: 0,
            candidates: Recency::new(heap, filled(num_blocks, 0)?),
            published: 0,
            cached: 0,
        })
    }

    /// How many full blocks these words are.
    pub fn blocks_of(&self, words: &[u32]) -> Result<usize> {
        let (words, per_token) = (words.len(), self.words_per_token);
        if !words.is_multiple_of(per_token) {
            return Err(Error::Invalid(format!("{words} words are no whole tokens of {per_token} words")));
        }
        Ok(words / self.words_per_block)
    }

    pub fn is_published(&self, block: BlockId) -> bool {
        self.nodes[block.0 as usize].serial != 0
    }

    pub fn is_cached(&self, block: BlockId) -> bool {
        self.nodes[block.0 as usize].cached_at != 0
    }

    /// A chain as far as it is known to hold: all of it where its last block is still published and these are its
    /// words, otherwise none.
    pub fn resume(&self, chain: Chain, salt: u64, words: &[u32]) -> Chain {
        let holds = |last: Entry| {
            self.nodes[last.block as usize].serial == last.serial
                && chain.salt == salt
                && words.get(self.range(chain.blocks - 1)) == Some(self.words_of(last.block))
        };
        if chain.last.is_some_and(holds) { chain } else { Chain::new(salt) }
    }

    /// The chain one block longer, where a block with the next of these words was published behind it.
    pub fn follow(&self, chain: Chain, words: &[u32]) -> Option<Chain> {
        let words = &words[self.range(chain.blocks)];
        let hash = self.hash_of(chain, words);
        let mut block = self.buckets[self.bucket(hash)];
        while block != NONE {
            let node = &self.nodes[block as usize];
            // The hash only finds. The parent says what came before, the salt whose it is, the words what is in it.
            let found = (node.hash, node.parent, node.salt) == (hash, chain.parent(), chain.salt);
            if found && self.words_of(block) == words {
                return Some(self.extended(chain, block));
            }
            block = node.next_in_bucket;
        }
        None
    }

    /// Publishes a block as the next of a chain, with the next of these words; the chain one block longer. [`None`] for
    /// a block that is published already. Nothing may be published there yet.
    pub fn publish(&mut self, chain: Chain, words: &[u32], block: BlockId) -> Option<Chain> {
        if self.is_published(block) {
            return None;
        }
        let words = &words[self.range(chain.blocks)];
        let (hash, parent, block) = (self.hash_of(chain, words), chain.parent(), block.0);
        let bucket = self.bucket(hash);
        let next_in_bucket = std::mem::replace(&mut self.buckets[bucket], block);
        let next_sibling = match self.node(parent) {
            Some(parent) => std::mem::replace(&mut parent.first_child, block),
            None => NONE,
        };
        if let Some(next) = self.node(next_sibling) {
            next.previous_sibling = block;
        }
        self.clock += 1;
        let (serial, salt) = (self.clock, chain.salt);
        self.nodes[block as usize] = Node { serial, salt, hash, parent, next_sibling, next_in_bucket, ..UNPUBLISHED };
        let range = self.range(block as usize);
        self.words[range].copy_from_slice(words);
        self.published += 1;
        Some(self.extended(chain, block))
    }

    /// The first `blocks` of a chain, or none where it does not hold any more.
    pub fn shortened(&self, mut chain: Chain, blocks: usize) -> Chain {
        while chain.blocks > blocks
            && let Some(last) = chain.last
        {
            let node = &self.nodes[last.block as usize];
            if node.serial != last.serial {
                return Chain::default();
            }
            chain.blocks -= 1;
            chain.last = self.entry(node.parent);
        }
        chain
    }

    /// The last reference to a published block is gone.
    pub fn cache(&mut self, block: BlockId) {
        let BlockId(block) = block;
        self.clock += 1;
        let node = &mut self.nodes[block as usize];
        node.cached_at = self.clock;
        let (parent, candidate) = (node.parent, node.cached_children == 0);
        self.cached += 1;
        if candidate {
            self.candidates.insert(self.clock, block);
        }
        if let Some(node) = self.node(parent) {
            node.cached_children += 1;
            self.candidates.remove(parent);
        }
    }

    /// A cached block is used again, or leaves the index.
    pub fn uncache(&mut self, block: BlockId) {
        let BlockId(block) = block;
        let node = &mut self.nodes[block as usize];
        debug_assert_ne!(node.cached_at, 0, "not cached");
        node.cached_at = 0;
        let parent = node.parent;
        self.cached -= 1;
        self.candidates.remove(block);
        if let Some(node) = self.node(parent) {
            node.cached_children -= 1;
            let (cached_at, candidate) = (node.cached_at, node.cached_children == 0);
            if cached_at != 0 && candidate {
                self.candidates.insert(cached_at, parent);
            }
        }
    }

    /// Drops the least recently used cached block of which no child is cached, with what was published behind it, and
    /// reports the blocks that are free by that.
    pub fn evict(&mut self, free: impl FnMut(BlockId)) {
        if let Some(block) = self.candidates.first() {
            self.remove(block, free);
        }
    }

    /// Drops everything, and reports the blocks that are free by that.
    pub fn clear(&mut self, mut free: impl FnMut(BlockId)) {
        for block in 0..self.nodes.len() as u32 {
            if self.is_published(BlockId(block)) {
                self.remove(block, &mut free);
            }
        }
    }

    /// Drops a block and what was published behind it, from the ends of the chains on. Every publication is dropped
    /// once, so that this costs no more in all than publishing did.
    fn remove(&mut self, block: u32, mut free: impl FnMut(BlockId)) {
        let mut at = block;
        loop {
            while self.nodes[at as usize].first_child != NONE {
                at = self.nodes[at as usize].first_child;
            }
            if self.is_cached(BlockId(at)) {
                self.uncache(BlockId(at));
                free(BlockId(at));
            }
            let parent = self.nodes[at as usize].parent;
            self.unlink(at);
            if at == block {
                return;
            }
            at = parent;
        }
    }

    fn unlink(&mut self, block: u32) {
        let node = self.nodes[block as usize];
        if let Some(next) = self.node(node.next_sibling) {
            next.previous_sibling = node.previous_sibling;
        }
        if let Some(previous) = self.node(node.previous_sibling) {
            previous.next_sibling = node.next_sibling;
        } else if let Some(parent) = self.node(node.parent) {
            parent.first_child = node.next_sibling;
        }
        let bucket = self.bucket(node.hash);
        let (mut before, mut at) = (NONE, self.buckets[bucket]);
        while at != block {
            (before, at) = (at, self.nodes[at as usize].next_in_bucket);
        }
        match self.node(before) {
            Some(before) => before.next_in_bucket = node.next_in_bucket,
            None => self.buckets[bucket] = node.next_in_bucket,
        }
        self.nodes[block as usize] = UNPUBLISHED;
        self.published -= 1;
    }

    fn extended(&self, chain: Chain, block: u32) -> Chain {
        Chain { blocks: chain.blocks + 1, last: self.entry(block), ..chain }
    }

    fn entry(&self, block: u32) -> Option<Entry> {
        Some(Entry { block, serial: self.nodes.get(block as usize)?.serial })
    }

    fn node(&mut self, block: u32) -> Option<&mut Node> {
        self.nodes.get_mut(block as usize)
    }

    fn words_of(&self, block: u32) -> &[u32] {
        &self.words[self.range(block as usize)]
    }

    fn range(&self, block: usize) -> Range<usize> {
        block * self.words_per_block..(block + 1) * self.words_per_block
    }

    fn hash_of(&self, chain: Chain, words: &[u32]) -> u64 {
        (self.hash)(self.secret ^ chain.last.map_or(chain.salt, |last| last.serial), words)
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}

/// A vector that is refused where the host has no memory for it.
pub(super) fn filled<T: Copy>(len: usize, value: T) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(len).map_err(|_| no_memory(len))?;
    items.resize(len, value);
    Ok(items)
}

fn no_memory(len: usize) -> Error {
    Error::Invalid(format!("no host memory for lists of {len} entries"))
}
