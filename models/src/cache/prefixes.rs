//! Sequences that begin with what others have run.

use super::{GroupShape, KvCache, Sequence};
use crate::Result;

impl KvCache {
    /// How many of `tokens` an empty sequence would [start with](Self::start): the most that all groups have. One that
    /// lacks some of what another has may have fewer still where its window would see what is gone.
    pub(crate) fn known(&self, salt: u64, tokens: &[u32]) -> usize {
        let groups = self.pages.iter().zip(&self.shape.groups);
        let (mut known, mut agree) = (tokens.len(), 0);
        for (pages, group) in groups.cycle() {
            let found = pages.matching_seen(salt, &tokens[..known], group.sees()).unwrap_or(0);
            agree = if found == known { agree + 1 } else { 1 };
            known = found;
            if agree >= self.pages.len() {
                break;
            }
        }
        known
    }

    /// Starts an empty sequence with the first of `tokens` that sequences of the same salt had before it and that are still
    /// there, in whole blocks, and returns how many those are. Of layers with a window that is what it sees of them.
    ///
    /// # Errors
    /// A sequence that has tokens.
    pub fn start(&self, sequence: &mut Sequence, salt: u64, tokens: &[u32]) -> Result<usize> {
        let known = self.known(salt, tokens);
        for (table, group) in sequence.tables.iter_mut().zip(&self.shape.groups) {
            if table.lookup_within(salt, tokens, group.sees(), known)? < known {
                // More sequences of one block than can be counted.
                sequence.clear();
                return Ok(0);
            }
        }
        sequence.tokens = known;
        Ok(known)
    }

    /// Lets later sequences of the same salt start with the whole blocks of this one, whose tokens those are.
    ///
    /// # Errors
    /// None that a sequence of this cache has.
    pub fn publish(&self, sequence: &mut Sequence, salt: u64, tokens: &[u32]) -> Result<()> {
        Ok(sequence.tables.iter_mut().try_for_each(|table| table.publish(salt, tokens).map(drop))?)
    }

    /// Forgets what sequences have published.
    pub(crate) fn forget_prefixes(&self) {
        self.pages.iter().for_each(sinew_memory::PagePool::clear_prefixes);
    }
}

impl GroupShape {
    /// How many positions a token sees, its own among them.
    fn sees(&self) -> usize {
        self.window.unwrap_or(usize::MAX)
    }
}
