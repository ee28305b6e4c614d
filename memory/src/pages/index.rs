//! The prefix index: published blocks by the words in them and the block before, and which of them may be evicted.

use super::recency::Recency;
use super::state::filled;
use super::tree::{Entry, NONE, Node, Tree};
use super::{BlockId, PrefixConfig};
use crate::{Error, Result};

/// How far a sequence is published: its leading blocks, by the node of the last of them.
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
}

/// All its memory is taken when it is made: there is a node, with words, for every block and every remembered one.
pub(super) struct Index {
    tree: Tree,
    /// The node of each block, where it is published.
    nodes: Vec<u32>,
    words_per_token: usize,
    words_per_block: usize,
    /// Counts blocks that were cached.
    clock: u64,
    /// Cached blocks that may be evicted: those that go first, and the others.
    candidates: [Recency; 2],
    /// The most nodes without a block.
    most_remembered: usize,
    pub published: usize,
    pub cached: usize,
    pub remembered: usize,
}

impl Index {
    pub fn new(num_blocks: usize, block_size: usize, config: PrefixConfig) -> Result<Self> {
        let PrefixConfig { words_per_token, remembered, hash } = config;
        let nodes = num_blocks.checked_add(remembered).filter(|&nodes| nodes < NONE as usize);
        let words_per_block = block_size.checked_mul(words_per_token).filter(|&words| words > 0);
        let sizes =
            nodes.zip(words_per_block).and_then(|(nodes, words)| Some((nodes, words, words.checked_mul(nodes)?)));
        let Some((nodes, words_per_block, words)) = sizes else {
            return Err(Error::Invalid(format!(
                "{num_blocks} blocks, and {remembered} remembered, of {block_size} tokens of {words_per_token} words"
            )));
        };
        Ok(Self {
            tree: Tree::new(nodes, words_per_block, words, hash)?,
            nodes: filled(num_blocks, NONE)?,
            words_per_token,
            words_per_block,
            clock: 0,
            candidates: [Recency::new(num_blocks)?, Recency::new(num_blocks)?],
            most_remembered: remembered,
            published: 0,
            cached: 0,
            remembered: 0,
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

    /// How many words these tokens are.
    pub fn words_in(&self, tokens: usize) -> usize {
        tokens.saturating_mul(self.words_per_token)
    }

    pub fn is_published(&self, block: BlockId) -> bool {
        self.nodes[block.0 as usize] != NONE
    }

    pub fn is_cached(&self, block: BlockId) -> bool {
        self.tree.node(self.nodes[block.0 as usize]).is_some_and(|node| node.cached_at != 0)
    }

    /// The last block of a chain; [`None`] where it is only remembered.
    pub fn block(&self, chain: Chain) -> Option<BlockId> {
        let block = self.tree.node(chain.last?.node)?.block;
        (block != NONE).then_some(BlockId(block))
    }

    /// The last `count` blocks of a chain, from its end on.
    pub fn last_blocks(&self, chain: Chain, count: usize) -> impl Iterator<Item = BlockId> + '_ {
        let last = chain.last.and_then(|last| self.tree.node(last.node));
        let before = std::iter::successors(last, |node| self.tree.node(node.parent));
        before.take(count).map(|node| BlockId(node.block))
    }

    /// A chain as far as it is known to hold: all of it where its last node is still there and these are its words,
    /// otherwise none.
    pub fn resume(&self, chain: Chain, salt: u64, words: &[u32]) -> Chain {
        let holds = |last: Entry| {
            self.tree.has(last)
                && chain.salt == salt
                && words.get(self.tree.range(chain.blocks - 1)) == Some(self.tree.words_of(last.node))
        };
        if chain.last.is_some_and(holds) { chain } else { Chain::new(salt) }
    }

    /// The chain one block longer, where a block with the next of these words was published behind it.
    pub fn follow(&self, chain: Chain, words: &[u32]) -> Option<Chain> {
        let node = self.tree.find(chain.last, chain.salt, &words[self.tree.range(chain.blocks)])?;
        Some(self.extended(chain, node))
    }

    /// The longest chain of these words of which all blocks are there from the one on that `first_seen` names for its
    /// length. Where more is known, what would have to be there for that is wanted.
    pub fn longest(&mut self, salt: u64, words: &[u32], first_seen: impl Fn(usize) -> usize) -> Result<Chain> {
        let blocks = self.blocks_of(words)?;
        let (mut chain, mut longest, mut held_from) = (Chain::new(salt), Chain::new(salt), 0);
        while chain.blocks < blocks
            && let Some(longer) = self.follow(chain, words)
        {
            chain = longer;
            if self.block(chain).is_none() {
                held_from = chain.blocks;
            }
            if held_from <= first_seen(chain.blocks) {
                longest = chain;
            }
        }
        if longest.blocks < chain.blocks {
            self.want(chain, chain.blocks - first_seen(chain.blocks));
        }
        Ok(longest)
    }

    /// The last `count` of a chain are of use for finding it: their blocks do not go first, neither now nor later.
    pub fn want(&mut self, chain: Chain, count: usize) {
        let mut at = chain.last.map_or(NONE, |last| last.node);
        for _ in 0..count {
            let Some(node) = self.tree.node_mut(at) else { return };
            node.is_wanted = true;
            let parent = node.parent;
            self.rank(at);
            at = parent;
        }
    }

    /// Publishes the next of these words behind a chain, where they are not yet, with the block that holds what was
    /// computed of them, or without: the chain one block longer. [`None`] for a block that is published already, and
    /// where as many are remembered as may be.
    pub fn publish(&mut self, chain: Chain, words: &[u32], block: Option<BlockId>) -> Option<Chain> {
        let is_refused = match block {
            Some(block) => self.is_published(block),
            None => self.remembered == self.most_remembered,
        };
        if is_refused {
            return None;
        }
        let words = &words[self.tree.range(chain.blocks)];
        let node = self.tree.add(chain.last, chain.salt, words, block.map_or(NONE, |block| block.0))?;
        self.rank(chain.last.map_or(NONE, |last| last.node));
        match block {
            Some(block) => {
                self.nodes[block.0 as usize] = node;
                self.published += 1;
            }
            None => self.remembered += 1,
        }
        Some(self.extended(chain, node))
    }

    /// Gives the last of a chain, which is only remembered, a block again; says whether it is of no other words.
    pub fn bring_back(&mut self, chain: Chain, block: BlockId) -> bool {
        let Some(last) = chain.last.filter(|_| !self.is_published(block)) else { return false };
        if let Some(node) = self.tree.node_mut(last.node) {
            debug_assert_eq!(node.block, NONE);
            node.block = block.0;
            self.nodes[block.0 as usize] = last.node;
            self.remembered -= 1;
            self.published += 1;
        }
        true
    }

    /// A chain without what is remembered at its end behind which nothing is, which is forgotten.
    pub fn trimmed(&mut self, mut chain: Chain) -> Chain {
        while let Some(last) = chain.last
            && let Some(parent) = self.forget(last.node)
        {
            chain.blocks -= 1;
            chain.last = self.tree.entry(parent);
            self.rank(parent);
        }
        chain
    }

    /// Drops a node that has neither block nor children, and gives its parent.
    fn forget(&mut self, node: u32) -> Option<u32> {
        let &Node { block, parent, .. } = self.tree.node(node)?;
        if block != NONE || self.tree.has_children(node) {
            return None;
        }
        self.tree.remove(node);
        self.remembered -= 1;
        Some(parent)
    }

    /// The first `blocks` of a chain, or none where it does not hold any more.
    pub fn shortened(&self, mut chain: Chain, blocks: usize) -> Chain {
        while chain.blocks > blocks
            && let Some(last) = chain.last
        {
            let Some(node) = self.tree.node(last.node).filter(|_| self.tree.has(last)) else {
                return Chain::default();
            };
            chain.blocks -= 1;
            chain.last = self.tree.entry(node.parent);
        }
        chain
    }

    /// The last reference to a published block is gone, maybe as a window has left it behind.
    pub fn cache(&mut self, block: BlockId, is_left_behind: bool) {
        self.clock += 1;
        let keeps_ends = self.keeps_ends();
        let Some(node) = self.tree.node_mut(self.nodes[block.0 as usize]) else { return };
        (node.cached_at, node.is_left_behind) = (self.clock, is_left_behind);
        if !keeps_ends || node.cached_children == 0 {
            self.candidates[class(node)].insert(self.clock, block.0);
        }
        let parent = node.parent;
        self.rank(self.nodes[block.0 as usize]);
        self.cached += 1;
        if let Some(parent) = self.tree.node_mut(parent) {
            parent.cached_children += 1;
            if keeps_ends && parent.cached_at != 0 {
                self.candidates[class(parent)].remove(parent.block);
            }
        }
    }

    /// Notes whether a node's cached block goes before those of others: a window has left it behind, and nobody was
    /// looking for it. The last of a chain stays until its turn comes where words may be remembered: all before it that is
    /// only remembered is known by it alone.
    fn rank(&mut self, at: u32) {
        let may_go = self.keeps_ends() || self.tree.has_children(at);
        let Some(node) = self.tree.node_mut(at) else { return };
        let goes_first = node.is_left_behind && !node.is_wanted && may_go;
        if goes_first == node.goes_first {
            return;
        }
        let before = class(node);
        node.goes_first = goes_first;
        let (block, cached_at, now) = (node.block, node.cached_at, class(node));
        if block != NONE && self.candidates[before].remove(block) {
            self.candidates[now].insert(cached_at, block);
        }
    }

    /// A cached block is used again, or leaves the index.
    pub fn uncache(&mut self, block: BlockId) {
        let keeps_ends = self.keeps_ends();
        let Some(node) = self.tree.node_mut(self.nodes[block.0 as usize]) else { return };
        debug_assert_ne!(node.cached_at, 0, "not cached");
        self.candidates[class(node)].remove(block.0);
        (node.cached_at, node.is_left_behind, node.goes_first) = (0, false, false);
        let parent = node.parent;
        self.cached -= 1;
        if let Some(parent) = self.tree.node_mut(parent) {
            parent.cached_children -= 1;
            if keeps_ends && parent.cached_at != 0 && parent.cached_children == 0 {
                self.candidates[class(parent)].insert(parent.cached_at, parent.block);
            }
        }
    }

    /// Whether a block has to stay as long as one that is cached behind it: nothing would be found there without it.
    fn keeps_ends(&self) -> bool {
        self.most_remembered == 0
    }

    /// Drops the block that is to go first, and reports the blocks that are free by that. What is published behind it is
    /// dropped too, unless its words can be remembered without it.
    pub fn evict(&mut self, mut free: impl FnMut(BlockId)) {
        let may_remember = self.remembered < self.most_remembered;
        let [first, other] = self.candidates.each_ref().map(Recency::first);
        // Where no more may be remembered, the first would take with it what is behind, which is mostly still in use. One of
        // the others makes room then: with the last of an old chain, what is remembered before it is forgotten.
        let first_alone = first.filter(|_| may_remember || self.keeps_ends());
        let Some(block) = first_alone.or(other).or(first) else { return };
        let at = self.nodes[block as usize];
        if self.tree.has_children(at) && may_remember {
            self.uncache(BlockId(block));
            self.nodes[block as usize] = NONE;
            if let Some(node) = self.tree.node_mut(at) {
                node.block = NONE;
            }
            self.published -= 1;
            self.remembered += 1;
            free(BlockId(block));
        } else {
            self.remove(at, free);
        }
    }

    /// Drops everything, and reports the blocks that are free by that.
    pub fn clear(&mut self, mut free: impl FnMut(BlockId)) {
        for node in 0..self.tree.len() as u32 {
            if self.tree.is_taken(node) {
                self.remove(node, &mut free);
            }
        }
    }

    /// Drops a node and what was published behind it, from the ends of the chains on, and what is remembered before it
    /// for nothing else. Every publication is dropped once, so that this costs no more in all than publishing did.
    fn remove(&mut self, node: u32, mut free: impl FnMut(BlockId)) {
        let mut parent = loop {
            let end = self.tree.end(node);
            let Some(&Node { block, cached_at, parent, .. }) = self.tree.node(end) else { return };
            if block == NONE {
                self.remembered -= 1;
            } else {
                if cached_at != 0 {
                    self.uncache(BlockId(block));
                    free(BlockId(block));
                }
                self.nodes[block as usize] = NONE;
                self.published -= 1;
            }
            self.tree.remove(end);
            if end == node {
                break parent;
            }
        };
        while let Some(before) = self.forget(parent) {
            parent = before;
        }
        self.rank(parent);
    }

    fn extended(&self, chain: Chain, node: u32) -> Chain {
        Chain { blocks: chain.blocks + 1, last: self.tree.entry(node), ..chain }
    }
}

/// Which of the candidates a cached block is among, if any.
fn class(node: &Node) -> usize {
    usize::from(!node.goes_first)
}
