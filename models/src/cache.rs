//! The paged cache of keys and values: bytes in blocks, and the sequences that hold them.
//!
//! Layers that see equally far back are a group, with a pool of blocks and a table for each sequence of its own: what a
//! window has left behind is free again, while layers that see everything keep all.

use sinew_memory::{BlockTable, Buffer, CopyBlock, PageConfig, PagePool, PageStats};
use sinew_ops::Context;
use sinew_tensor::{DType, PagedLayout, Tensor};

use crate::plan::Limits;
use crate::{DecoderConfig, Error, Result};

/// How large a cache is: the blocks of each group of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShape {
    groups: Vec<GroupShape>,
    /// The group of each layer.
    layers: Vec<usize>,
}

/// The blocks of the layers that see equally far back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupShape {
    /// How many of the latest positions its layers see; `None` is all.
    pub window: Option<usize>,
    /// The keys, or the values, of one of its layers.
    pub layout: PagedLayout,
}

impl CacheShape {
    /// Room for `tokens` tokens of sequences within `limits`; of layers with a window, for what `max_sequences` sequences
    /// see and a step adds.
    ///
    /// # Errors
    /// No token, or more bytes than can be counted.
    pub fn new(config: &DecoderConfig, kv: DType, limits: &Limits, tokens: usize) -> Result<Self> {
        let &Limits { max_rows, max_sequences, block_size, .. } = limits;
        let all = tokens.div_ceil(block_size);
        if all == 0 {
            return Err(Error::Input("a cache of 0 tokens".to_owned()));
        }
        Self::of_blocks(config, kv, block_size, |window| match window {
            None => all,
            Some(window) => {
                // Neither the first nor the last block of what is seen is whole, and what a step adds ends in one more.
                let each = (window.saturating_sub(1)).div_ceil(block_size).saturating_add(2);
                max_sequences.saturating_mul(each).saturating_add(max_rows.div_ceil(block_size)).min(all)
            }
        })
    }

    /// As many blocks for each group as `blocks` says of its window.
    ///
    /// # Errors
    /// More bytes than can be counted.
    pub(crate) fn of_blocks(
        config: &DecoderConfig,
        kv: DType,
        block_size: usize,
        blocks: impl Fn(Option<usize>) -> usize,
    ) -> Result<Self> {
        let (heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        Self::of_windows(config.layers.iter().map(|layer| layer.window), |window| {
            Ok(PagedLayout::new(blocks(window), heads, block_size, head_dim, kv)?)
        })
    }

    /// Groups by the window of each layer.
    pub(crate) fn of_windows(
        windows: impl Iterator<Item = Option<usize>>,
        layout: impl Fn(Option<usize>) -> Result<PagedLayout>,
    ) -> Result<Self> {
        let (mut groups, mut layers) = (Vec::<GroupShape>::new(), Vec::new());
        for window in windows {
            let known = groups.iter().position(|group| group.window == window);
            layers.push(known.unwrap_or(groups.len()));
            if known.is_none() {
                groups.push(GroupShape { window, layout: layout(window)? });
            }
        }
        Ok(Self { groups, layers })
    }

    /// The groups.
    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }

    /// Bytes of keys and values in all layers; the largest number where they are more.
    pub fn bytes(&self) -> usize {
        let of_layer = |&group: &usize| self.groups[group].layout.bytes().saturating_mul(2);
        self.layers.iter().map(of_layer).fold(0, usize::saturating_add)
    }
}

/// Keys and values of all layers, in blocks that sequences take as they grow. Nothing is ever moved or copied to grow,
/// but for the last block of a sequence that shares it with a fork.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
    pages: Vec<PagePool>,
    shape: CacheShape,
    /// A block on its way to another place in the same tensor.
    moved: Option<Buffer>,
}

/// One sequence's place in the cache. Dropping it frees its blocks.
#[derive(Debug)]
pub struct Sequence {
    /// Of each group; all have the same tokens, but for those that a window has left behind.
    tables: Vec<BlockTable>,
    tokens: usize,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(ctx: &Context, shape: CacheShape) -> Result<Self> {
        let pool = |group: &GroupShape| {
            Ok(PagePool::new(PageConfig {
                num_blocks: group.layout.num_blocks(),
                block_size: group.layout.block_size(),
                block_bytes: group.layout.bytes_per_block(),
            })?)
        };
        let half = |layout: &PagedLayout| -> Result<Tensor> {
            let buffer = Buffer::allocate(ctx.device(), layout.bytes())?;
            Ok(Tensor::new(buffer, layout.dtype(), layout.layout()).map_err(sinew_ops::Error::from)?)
        };
        let pages = shape.groups.iter().map(pool).collect::<Result<_>>()?;
        let layer = |&group: &usize| {
            let layout = &shape.groups[group].layout;
            Ok((half(layout)?, half(layout)?))
        };
        let layers = shape.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, pages, shape, moved: None })
    }

    /// An empty sequence that grows to `tokens` tokens without allocating on the host. It takes no blocks yet.
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let table = |pages: &PagePool| {
            let mut table = pages.table();
            table.reserve(tokens);
            table
        };
        Sequence { tables: self.pages.iter().map(table).collect(), tokens: 0 }
    }

    /// A second sequence of the same tokens, which shares all blocks. Either gets a block of its own where it appends to
    /// one that is half filled and shared.
    ///
    /// # Errors
    /// More sequences of one block than can be counted.
    pub fn fork(&self, sequence: &Sequence) -> Result<Sequence> {
        let tables = sequence.tables.iter().map(|table| Ok(table.fork()?)).collect::<Result<_>>()?;
        Ok(Sequence { tables, tokens: sequence.tokens })
    }

    /// Makes room for `tokens` more tokens of a sequence, and frees what its windows have left behind.
    ///
    /// # Errors
    /// The cache is full, or the device failed; the sequence has the tokens that it had.
    pub fn append(&mut self, ctx: &Context, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        let before = sequence.len();
        sequence.release_unseen(&self.shape)?;
        for group in 0..sequence.tables.len() {
            let grown = match sequence.tables[group].append(tokens) {
                Ok(None) => Ok(()),
                Ok(Some(copy)) => self.copy(ctx, group, &copy),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = grown {
                let mut grown = sequence.tables.iter_mut().filter(|table| table.num_tokens() > before);
                grown.try_for_each(|table| table.truncate(before))?;
                return Err(error);
            }
        }
        sequence.tokens += tokens;
        Ok(())
    }

    /// Brings the tokens of one block to another, in all layers of a group.
    fn copy(&mut self, ctx: &Context, group: usize, copy: &CopyBlock) -> Result<()> {
        let (pages, stream) = (&self.pages[group], ctx.stream());
        let bytes = pages.config().block_bytes;
        let place = |block| pages.byte_offset(block) as usize;
        let (from, to) = (place(copy.from()), place(copy.to()));
        // A copy within one buffer is not given to every device. Blocks of all groups are as large.
        let moved = match &mut self.moved {
            Some(moved) => moved,
            none => none.insert(Buffer::allocate(ctx.device(), bytes)?),
        };
        let layers = self.layers.iter_mut().zip(&self.shape.layers).filter(|(_, of)| **of == group);
        for half in layers.flat_map(|((keys, values), _)| [keys, values]) {
            stream.copy(half.buffer(), from, moved, 0, bytes)?;
            stream.copy(moved, 0, half.buffer_mut()?, to, bytes)?;
        }
        Ok(())
    }

    /// Keys and values of each layer, with the group that it is of.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = (usize, &mut (Tensor, Tensor))> {
        self.shape.layers.iter().copied().zip(&mut self.layers)
    }

    /// How large it is.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Bytes of keys and values in all layers.
    pub fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// Bytes that one token takes in all layers.
    pub fn bytes_per_token(&self) -> usize {
        let of_layer = |&group: &usize| {
            let layout = &self.shape.groups[group].layout;
            2 * layout.bytes_per_block() / layout.block_size()
        };
        self.shape.layers.iter().map(of_layer).sum()
    }

    /// Tokens that it has room for: no limit where every layer has a window, which leaves the earlier ones behind.
    pub fn tokens(&self) -> usize {
        let all = self.shape.groups.iter().find(|group| group.window.is_none());
        all.map_or(usize::MAX, |group| group.layout.num_blocks() * group.layout.block_size())
    }

    /// Whether a sequence that is not in the cache, of `tokens` tokens, fits beside what the sequences of `running`
    /// are still to take, each with how many tokens.
    pub(crate) fn fits<'a>(&self, tokens: usize, running: impl Iterator<Item = (&'a Sequence, usize)> + Clone) -> bool {
        self.pages.iter().enumerate().all(|(group, pages)| {
            let promised: usize =
                running.clone().map(|(sequence, more)| sequence.tables[group].blocks_needed(more)).sum();
            let own = tokens.div_ceil(pages.config().block_size).min(self.most_blocks(group));
            pages.free_blocks() >= promised.saturating_add(own)
        })
    }

    /// Whether sequences of so many tokens would fit into it if it were empty.
    pub(crate) fn could_hold(&self, tokens: impl Iterator<Item = usize> + Clone) -> bool {
        self.pages.iter().enumerate().all(|(group, pages)| {
            let blocks = |tokens: usize| tokens.div_ceil(pages.config().block_size).min(self.most_blocks(group));
            tokens.clone().map(blocks).sum::<usize>() <= pages.config().num_blocks
        })
    }

    /// The most blocks that one sequence takes in a group.
    fn most_blocks(&self, group: usize) -> usize {
        let GroupShape { window, layout } = self.shape.groups[group];
        match window {
            None => layout.num_blocks(),
            Some(window) => layout.blocks_for(window).saturating_add(2).min(layout.num_blocks()),
        }
    }

    /// Tokens that can be appended to a sequence now.
    pub(crate) fn room(&self, sequence: &Sequence) -> usize {
        let of_group = |table: &BlockTable| {
            let (free, block_size) = (table.pool().free_blocks(), table.pool().config().block_size);
            let in_last = (block_size - sequence.len() % block_size) % block_size;
            // What is left of a last block that is shared goes with a copy of it.
            match in_last > 0 && table.blocks_needed(1) > 0 {
                true if free == 0 => 0,
                true => in_last + (free - 1) * block_size,
                false => in_last + free * block_size,
            }
        };
        sequence.tables.iter().map(of_group).min().unwrap_or(usize::MAX)
    }

    /// Blocks of all groups: used, free and shared.
    pub fn stats(&self) -> PageStats {
        self.pages.iter().map(PagePool::stats).fold(PageStats::default(), |a, b| PageStats {
            total: a.total + b.total,
            used: a.used + b.used,
            free: a.free + b.free,
            shared: a.shared + b.shared,
            references: a.references + b.references,
            peak_used: a.peak_used + b.peak_used,
            tables: a.tables + b.tables,
            table_tokens: a.table_tokens + b.table_tokens,
            table_slots: a.table_slots + b.table_slots,
        })
    }
}

impl Sequence {
    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the tokens from `tokens` on.
    ///
    /// # Errors
    /// A sequence that is shorter, or of which a window has left behind what would be seen then. It is as before.
    pub fn truncate(&mut self, tokens: usize) -> Result<()> {
        let held = self.tables.iter().map(|table| table.positions().start).max().unwrap_or(0);
        if tokens > self.tokens || tokens < held {
            let len = self.tokens;
            return Err(Error::Input(format!(
                "cannot truncate to {tokens} tokens a sequence of {len} that still has those from {held} on"
            )));
        }
        self.tables.iter_mut().try_for_each(|table| table.truncate(tokens))?;
        self.tokens = tokens;
        Ok(())
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        for table in &mut self.tables {
            *table = table.pool().table();
        }
        self.tokens = 0;
    }

    /// Frees the blocks that no later token sees.
    fn release_unseen(&mut self, shape: &CacheShape) -> Result<()> {
        for (table, group) in self.tables.iter_mut().zip(&shape.groups) {
            if let Some(window) = group.window {
                // The next token, at this position, sees `window` positions, its own among them.
                table.release_before((self.tokens + 1).saturating_sub(window))?;
            }
        }
        Ok(())
    }

    /// How many groups of layers there are.
    pub(crate) fn groups(&self) -> usize {
        self.tables.len()
    }

    /// Where the token at a position is in a group: `block · block_size + offset`.
    pub(crate) fn slot(&self, group: usize, position: usize) -> Result<i64> {
        let table = &self.tables[group];
        let block_size = table.pool().config().block_size as i64;
        let (block, offset) =
            table.slot(position).ok_or_else(|| Error::Input(format!("position {position} is not in the cache")))?;
        Ok(i64::from(block.0) * block_size + offset as i64)
    }

    /// The blocks of a group by index; those that are left behind, which are never read, are 0.
    pub(crate) fn blocks(&self, group: usize) -> impl Iterator<Item = u32> + '_ {
        let table = &self.tables[group];
        std::iter::repeat_n(0, table.first_block()).chain(table.blocks().iter().map(|block| block.0))
    }
}
