//! Prefixes: blocks that a table publishes, and tables that start with what others have published.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::index::Chain;
use super::{BlockTable, PagePool};
use crate::{Error, Result};

/// A hash of the words of a block, and of a number that stands for what came before it. It finds blocks, it does not
/// decide: equal hashes of different words cost time, nothing else.
pub type PrefixHash = fn(u64, &[u32]) -> u64;

/// What the words of a [`PagePool`]'s prefix index are.
#[derive(Clone, Copy, Debug)]
pub struct PrefixConfig {
    /// Words that tell a token apart, at least 1: its id, or more where ids do not say it all, as for images.
    pub words_per_token: usize,
    /// Finds the blocks.
    pub hash: PrefixHash,
}

impl Default for PrefixConfig {
    /// A word for each token, and the standard library's hash.
    fn default() -> Self {
        Self { words_per_token: 1, hash: default_hash }
    }
}

fn default_hash(before: u64, words: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, words).hash(&mut hasher);
    hasher.finish()
}

impl PagePool {
    /// How many tokens [`BlockTable::lookup`] would find now. It counts as no use of the blocks, nor in the statistics.
    ///
    /// # Errors
    /// As [`BlockTable::lookup`].
    pub fn matching_tokens(&self, salt: u64, words: &[u32]) -> Result<usize> {
        let mut state = self.lock();
        let index = state.index()?;
        let blocks = index.blocks_of(words)?;
        let mut chain = Chain::new(salt);
        while chain.blocks < blocks
            && let Some(longer) = index.follow(chain, words)
        {
            chain = longer;
        }
        Ok(chain.blocks * self.config().block_size)
    }

    /// Evicts cached blocks until `blocks` more are free or none is cached, in the order in which they would go when
    /// blocks run out; returns how many.
    pub fn evict(&self, blocks: usize) -> usize {
        let mut state = self.lock();
        let before = state.free();
        while state.free() - before < blocks && state.evict() {}
        state.free() - before
    }

    /// Forgets all that was published, as when the weights change. Cached blocks are free then; used ones stay with
    /// who uses them.
    pub fn clear_prefixes(&self) {
        self.lock().clear_index();
    }
}

impl BlockTable {
    /// Publishes the table's full blocks for [`BlockTable::lookup`] under a salt and the words of the sequence, from
    /// position 0 on; more words than tokens may be given, and fewer. Returns how many tokens of the sequence are
    /// published now.
    ///
    /// A block is found by its salt, its words and those of all blocks before it, each compared in full. A salt is to be
    /// a number given out, not a hash, where what it separates (users, adapters) must never meet.
    ///
    /// Publish blocks when all their tokens are written, or when writing them is enqueued on the stream that all reads
    /// go to. Where the index has a block already, it takes the place of the table's own, which is released: read
    /// [`BlockTable::blocks`] again afterwards. It allocates nothing and takes no block. It ends early, without an
    /// error, at a block that the table has released and the index does not have, and at one that is published with
    /// other words or another salt; such a block stays as it was.
    ///
    /// A table remembers how far it is published and goes on from there; of what it published before, only the last
    /// block's words are compared again. So this may be called after every append.
    ///
    /// A published block is never written again: appending to one that [`BlockTable::truncate`] has cut copies it.
    ///
    /// ```
    /// use sinew_memory::{PageConfig, PagePool, PrefixConfig};
    ///
    /// let config = PageConfig { num_blocks: 8, block_size: 4, block_bytes: 1024 };
    /// let pool = PagePool::with_prefixes(config, PrefixConfig::default())?;
    /// let prompt = [11, 12, 13, 14, 15, 16, 17, 18, 19];
    /// let mut first = pool.table();
    /// first.append(9)?;
    /// assert_eq!(first.publish(0, &prompt)?, 8);
    /// drop(first);
    ///
    /// let mut second = pool.table();
    /// assert_eq!(second.lookup(0, &[11, 12, 13, 14, 15, 16, 17, 18, 99])?, 8);
    /// assert_eq!(pool.table().lookup(1, &prompt)?, 0, "another salt");
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pool without an index, and for words that are no whole tokens. Nothing was changed then.
    pub fn publish(&mut self, salt: u64, words: &[u32]) -> Result<usize> {
        let pool = self.pool.clone();
        let mut state = pool.lock();
        let index = state.index()?;
        let full = index.blocks_of(words)?.min(self.num_tokens / self.block_size());
        let mut chain = index.resume(self.chain, salt, words);
        while chain.blocks < full {
            let held = chain.blocks.checked_sub(self.first_block).and_then(|i| self.blocks.get_mut(i));
            let index = state.index()?;
            chain = match (index.follow(chain, words), held) {
                (Some(longer), Some(held)) => {
                    if let Some(published) = longer.block().filter(|published| published != held) {
                        if state.retain_published(published).is_err() {
                            break;
                        }
                        state.release_all([std::mem::replace(held, published)]);
                    }
                    longer
                }
                (Some(longer), None) => longer,
                (None, Some(held)) => match index.publish(chain, words, *held) {
                    Some(longer) => longer,
                    None => break,
                },
                (None, None) => break,
            };
        }
        self.chain = chain;
        Ok(chain.blocks * self.block_size())
    }

    /// Starts an empty table with the published blocks that hold the first of these words, and returns for how many
    /// tokens that were. It shares them, and counts as their use; what follows is appended.
    ///
    /// Only whole blocks are found. Give one token less than there are where the last one's result is needed anyway.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a table that holds tokens, a pool without an index, and words that are no whole tokens.
    /// Nothing was changed then.
    pub fn lookup(&mut self, salt: u64, words: &[u32]) -> Result<usize> {
        if self.num_tokens > 0 {
            return Err(Error::Invalid(format!("cannot look up a prefix: the table has {} tokens", self.num_tokens)));
        }
        let pool = self.pool.clone();
        let mut state = pool.lock();
        let asked = state.index()?.blocks_of(words)?;
        let mut chain = Chain::new(salt);
        while chain.blocks < asked
            && let Some(longer) = state.index()?.follow(chain, words)
            && let Some(block) = longer.block()
            && state.retain_published(block).is_ok()
        {
            self.blocks.push(block);
            chain = longer;
        }
        let tokens = chain.blocks * self.block_size();
        self.chain = chain;
        self.num_tokens = tokens;
        state.stats.table_tokens += tokens as u64;
        state.stats.table_slots += tokens as u64;
        state.stats.hits += chain.blocks as u64;
        state.stats.misses += (asked - chain.blocks) as u64;
        Ok(tokens)
    }
}
