//! The paged cache of keys and values: bytes in blocks, and the sequences that hold them.

use sinew_memory::{BlockTable, Buffer, PageConfig, PagePool, PageStats};
use sinew_ops::Context;
use sinew_tensor::{PagedLayout, Tensor};

use crate::{Error, Result};

/// Keys and values of all layers, in blocks that sequences take as they grow. Nothing is ever moved or copied to grow.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    pages: PagePool,
    layout: PagedLayout,
}

/// One sequence's place in the cache. Dropping it frees its blocks.
#[derive(Debug)]
pub struct Sequence {
    table: BlockTable,
}

impl KvCache {
    /// A cache of `layout.num_blocks` blocks for each of `num_layers` layers.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(ctx: &Context, num_layers: usize, layout: PagedLayout) -> Result<Self> {
        let pages = PagePool::new(PageConfig {
            num_blocks: layout.num_blocks(),
            block_size: layout.block_size(),
            block_bytes: layout.bytes_per_block(),
        })
        .map_err(Error::from)?;
        let half = || -> Result<Tensor> {
            let buffer = Buffer::allocate(ctx.device(), layout.bytes())?;
            Ok(Tensor::new(buffer, layout.stored(), layout.layout()).map_err(sinew_ops::Error::from)?)
        };
        let layers = (0..num_layers).map(|_| Ok((half()?, half()?))).collect::<Result<_>>()?;
        Ok(Self { layers, pages, layout })
    }

    /// An empty sequence that grows to `tokens` tokens without allocating on the host. It takes no blocks yet.
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let mut table = self.pages.table();
        table.reserve(tokens);
        Sequence { table }
    }

    /// Keys and values of each layer.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = &mut (Tensor, Tensor)> {
        self.layers.iter_mut()
    }

    /// What a block is.
    pub fn layout(&self) -> &PagedLayout {
        &self.layout
    }

    /// Bytes of keys and values in all layers.
    pub fn bytes(&self) -> usize {
        2 * self.layers.len() * self.layout.bytes()
    }

    /// [`KvCache::bytes`] of a cache that is not there yet; the largest number where they are more.
    pub fn bytes_for(num_layers: usize, layout: &PagedLayout) -> usize {
        layout.bytes().saturating_mul(2).saturating_mul(num_layers)
    }

    /// Bytes that one token takes in all layers.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.layers.len() * self.layout.bytes_per_block() / self.layout.block_size()
    }

    /// Blocks used, free and shared.
    pub fn stats(&self) -> PageStats {
        self.pages.stats()
    }
}

impl Sequence {
    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        self.table.num_tokens()
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room in the cache for `tokens` more tokens.
    ///
    /// # Errors
    /// The cache is full; the sequence is as before.
    pub fn append(&mut self, tokens: usize) -> Result<()> {
        // Sequences are not forked here, so that no block is shared and none has to be copied.
        let copy = self.table.append(tokens)?;
        debug_assert!(copy.is_none());
        Ok(())
    }

    /// Forgets the tokens from `tokens` on.
    ///
    /// # Errors
    /// A sequence that is shorter.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        Ok(self.table.truncate(tokens)?)
    }

    /// Where the token at a position is: `block · block_size + offset`.
    pub(crate) fn slot(&self, position: usize) -> Result<i64> {
        let block_size = self.table.pool().config().block_size as i64;
        let (block, offset) = self
            .table
            .slot(position)
            .ok_or_else(|| Error::Input(format!("position {position} is not in the cache")))?;
        Ok(i64::from(block.0) * block_size + offset as i64)
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.table.blocks().iter().map(|block| block.0)
    }
}
