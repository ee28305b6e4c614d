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
    /// How many blocks' words are kept at most after the blocks themselves were evicted, or were released before they
    /// were published, so that what is behind them is still found: for tables of layers with a sliding window, which
    /// need only the last blocks of a prefix ([`BlockTable::lookup_seen`]). Where it is 0, a chain ends where a block
    /// is missing, and of blocks that are not in use the ends of chains are evicted before what they continue; else the
    /// least recently used are, whatever is behind them. Before either, those go that a window has
    /// [left behind](BlockTable::release_before) and that are of no use for finding a prefix, as the ends of chains are
    /// where words may be remembered; where no more may be, only if nothing else can go.
    pub remembered: usize,
    /// Finds the blocks.
    pub hash: PrefixHash,
}

impl Default for PrefixConfig {
    /// A word for each token, nothing remembered, and the standard library's hash.
    fn default() -> Self {
        Self { words_per_token: 1, remembered: 0, hash: default_hash }
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
        self.matching_seen(salt, words, usize::MAX)
    }

    /// The same of [`BlockTable::lookup_seen`]. Where more of the words is known than can be found, the blocks that a
    /// window at the end of that would see are wanted: once they are back, they are kept as what a lookup has found.
    ///
    /// # Errors
    /// As [`BlockTable::lookup`].
    pub fn matching_seen(&self, salt: u64, words: &[u32], window: usize) -> Result<usize> {
        let block_size = self.config().block_size;
        let chain = self.lock().index()?.longest(salt, words, first_seen(window, block_size))?;
        Ok(chain.blocks * block_size)
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
    /// error, at a block that the table has released and the index neither has nor may
    /// [remember](PrefixConfig::remembered), and at one that is published with other words or another salt; such a block
    /// stays as it was.
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
            let longer = match index.follow(chain, words) {
                None => index.publish(chain, words, held.copied()),
                Some(longer) => {
                    let goes_on = match (index.block(longer), held) {
                        (Some(published), Some(held)) if published != *held => {
                            let shared = state.retain_published(published).is_ok();
                            if shared {
                                state.release_all([std::mem::replace(held, published)]);
                            }
                            shared
                        }
                        (None, Some(held)) => index.bring_back(longer, *held),
                        _ => true,
                    };
                    goes_on.then_some(longer)
                }
            };
            let Some(longer) = longer else { break };
            chain = longer;
        }
        chain = state.index()?.trimmed(chain);
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
        self.lookup_seen(salt, words, usize::MAX)
    }

    /// [`BlockTable::lookup`] for layers in which a token sees `window` positions, its own among them: it takes the
    /// blocks that the token after those found sees, as if the table had [released](BlockTable::release_before) the
    /// others, and finds prefixes of which the others are gone, but [remembered](PrefixConfig::remembered). What it takes
    /// is kept when a window leaves it behind again, and so is what it lacked for more, once that is back.
    ///
    /// ```
    /// use sinew_memory::{PageConfig, PagePool, PrefixConfig};
    ///
    /// let prefixes = PrefixConfig { remembered: 8, ..PrefixConfig::default() };
    /// let pool = PagePool::with_prefixes(PageConfig { num_blocks: 8, block_size: 2, block_bytes: 64 }, prefixes)?;
    /// let mut first = pool.table();
    /// first.append(6)?;
    /// first.publish(0, &[1, 2, 3, 4, 5, 6])?;
    /// first.release_before(4)?;
    /// pool.evict(2);
    /// let mut second = pool.table();
    /// assert_eq!(second.lookup_seen(0, &[1, 2, 3, 4, 5, 6, 7], 3)?, 6);
    /// assert_eq!((second.positions(), second.blocks()), (4..6, first.blocks()));
    /// # Ok::<(), sinew_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`BlockTable::lookup`].
    pub fn lookup_seen(&mut self, salt: u64, words: &[u32], window: usize) -> Result<usize> {
        self.lookup_within(salt, words, window, usize::MAX)
    }

    /// [`BlockTable::lookup_seen`] of no more than the first `tokens` tokens, as where other tables of the sequence found no
    /// more. All whole blocks of the words count as asked for.
    ///
    /// # Errors
    /// Those of [`BlockTable::lookup`].
    pub fn lookup_within(&mut self, salt: u64, words: &[u32], window: usize, tokens: usize) -> Result<usize> {
        if self.num_tokens > 0 {
            return Err(Error::Invalid(format!("cannot look up a prefix: the table has {} tokens", self.num_tokens)));
        }
        let (pool, block_size) = (self.pool.clone(), self.block_size());
        let first_seen = first_seen(window, block_size);
        let mut state = pool.lock();
        let index = state.index()?;
        let asked = index.blocks_of(words)?;
        let within = index.words_in(tokens).min(words.len());
        let mut chain = index.longest(salt, &words[..within], &first_seen)?;
        self.blocks.extend(index.last_blocks(chain, chain.blocks - first_seen(chain.blocks)));
        self.blocks.reverse();
        if let Some(full) = self.blocks.iter().position(|&block| state.retain_published(block).is_err()) {
            // More references than can be counted: as if nothing had been published.
            state.release_all(self.blocks.drain(..).take(full));
            chain = Chain::new(salt);
        }
        state.index()?.want(chain, chain.blocks - first_seen(chain.blocks));
        self.chain = chain;
        self.first_block = first_seen(chain.blocks);
        self.num_tokens = chain.blocks * block_size;
        let (tokens, slots) = self.tokens_and_slots();
        state.stats.table_tokens += tokens as u64;
        state.stats.table_slots += slots as u64;
        state.stats.hits += chain.blocks as u64;
        state.stats.misses += (asked - chain.blocks) as u64;
        Ok(self.num_tokens)
    }
}

/// The first block that the token behind so many blocks sees; their number where it sees none.
fn first_seen(window: usize, block_size: usize) -> impl Fn(usize) -> usize {
    move |blocks| ((blocks * block_size + 1).saturating_sub(window) / block_size).min(blocks)
}
