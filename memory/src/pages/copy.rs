//! The copy that an append to a shared block asks for.

use std::fmt;

use super::{BlockId, PagePool};

/// A copy to make, in every buffer of the cache: the first `tokens` tokens of block `from` to block `to`.
///
/// It refers to both blocks, so that neither is reused: drop it once the copy was made, or enqueued on the stream that
/// all writes go to. Several, those of [`crate::SwapBlocks`] included, are made in the order in which they came. An
/// append to the table before that is right, but takes one more block.
#[must_use = "the new block has none of the tokens before it is copied"]
pub struct CopyBlock {
    pub(super) pool: PagePool,
    pub(super) from: BlockId,
    pub(super) to: BlockId,
    pub(super) tokens: usize,
}

impl CopyBlock {
    /// The block to read.
    pub fn from(&self) -> BlockId {
        self.from
    }

    /// The block to write.
    pub fn to(&self) -> BlockId {
        self.to
    }

    /// Tokens to copy, from slot 0 on.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Drop for CopyBlock {
    fn drop(&mut self) {
        self.pool.lock().release_all([self.from, self.to]);
    }
}

impl fmt::Debug for CopyBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyBlock({} tokens of {} to {})", self.tokens, self.from, self.to)
    }
}
