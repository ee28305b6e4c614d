//! The paged cache of keys and values: bytes in blocks, and the sequences that hold them.
//!
//! Layers that see equally far back are a group, with a pool of blocks and a table for each sequence of its own: what a
//! window has left behind is free again, while layers that see everything keep all.

use std::ops::Range;

use sinew_memory::{
    BlockId, BlockTable, Buffer, CopyBlock, Cpu, Error as MemoryError, PageConfig, PagePool, PageStats, PrefixConfig,
    SwapBlocks,
};
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
                // What a step adds ends in one more.
                let each = blocks_seen(window, block_size).saturating_add(1);
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
        self.bytes_of(|layout| layout.num_blocks())
    }

    /// The same of room for `tokens` tokens on the host.
    pub fn host_bytes(&self, tokens: usize) -> usize {
        self.bytes_of(|layout| layout.blocks_for(tokens))
    }

    fn bytes_of(&self, blocks: impl Fn(&PagedLayout) -> usize) -> usize {
        let of_layer = |&group: &usize| {
            let layout = &self.groups[group].layout;
            blocks(layout).saturating_mul(layout.bytes_per_block()).saturating_mul(2)
        };
        self.layers.iter().map(of_layer).fold(0, usize::saturating_add)
    }
}

impl GroupShape {
    /// Whether it has room for what a window sees, so that a sequence goes on for ever.
    fn slides(&self) -> Option<usize> {
        let seen = blocks_seen(self.window?, self.layout.block_size());
        (self.layout.num_blocks() >= seen).then_some(seen)
    }

    /// Tokens that one sequence has room for.
    fn tokens(&self) -> usize {
        self.slides().map_or(self.layout.num_blocks() * self.layout.block_size(), |_| usize::MAX)
    }

    /// The most blocks that one sequence takes from step to step.
    fn most_blocks(&self) -> usize {
        self.slides().map_or(usize::MAX, |seen| (seen + 1).min(self.layout.num_blocks()))
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
    host: Option<Host>,
}

/// Where sequences are that were swapped out: the same blocks, on the host.
#[derive(Debug)]
struct Host {
    pages: Vec<PagePool>,
    /// Keys and values of each layer.
    layers: Vec<[Buffer; 2]>,
}

/// One sequence's place in the cache. Dropping it frees its blocks.
#[derive(Debug)]
pub struct Sequence {
    /// Of each group; all have the same tokens, but for those that a window has left behind.
    tables: Vec<BlockTable>,
    tokens: usize,
    /// Whether it is on the host.
    swapped: bool,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(ctx: &Context, shape: CacheShape) -> Result<Self> {
        let pool = |group: &GroupShape| {
            let config = page_config(group, group.layout.num_blocks());
            Ok(PagePool::with_prefixes(config, PrefixConfig::default())?)
        };
        let half = |layout: &PagedLayout| -> Result<Tensor> {
            let buffer = Buffer::allocate(ctx.device(), layout.bytes())?;
            Ok(Tensor::new(buffer, layout.stored(), layout.layout()).map_err(sinew_ops::Error::from)?)
        };
        let pages = shape.groups.iter().map(pool).collect::<Result<_>>()?;
        let layer = |&group: &usize| {
            let layout = &shape.groups[group].layout;
            Ok((half(layout)?, half(layout)?))
        };
        let layers = shape.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, pages, shape, moved: None, host: None })
    }

    /// The cache with room on the host for `tokens` tokens of sequences that are swapped out.
    ///
    /// # Errors
    /// Out of memory.
    pub fn with_host(mut self, tokens: usize) -> Result<Self> {
        let blocks = |group: &GroupShape| group.layout.blocks_for(tokens);
        let pool = |group: &GroupShape| Ok(PagePool::new(page_config(group, blocks(group)))?);
        let pages = self.shape.groups.iter().map(pool).collect::<Result<_>>()?;
        let half = |&group: &usize| -> Result<Buffer> {
            let group = &self.shape.groups[group];
            let bytes = blocks(group).saturating_mul(group.layout.bytes_per_block());
            Ok(Buffer::allocate(&Cpu::get(), bytes)?)
        };
        let layers = self.shape.layers.iter().map(|group| Ok([half(group)?, half(group)?])).collect::<Result<_>>()?;
        self.host = Some(Host { pages, layers });
        Ok(self)
    }

    /// An empty sequence that grows to `tokens` tokens without allocating on the host. It takes no blocks yet.
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let table = |pages: &PagePool| {
            let mut table = pages.table();
            table.reserve(tokens);
            table
        };
        Sequence { tables: self.pages.iter().map(table).collect(), tokens: 0, swapped: false }
    }

    /// A second sequence of the same tokens, which shares all blocks. Either gets a block of its own where it appends to
    /// one that is half filled and shared.
    ///
    /// # Errors
    /// More sequences of one block than can be counted.
    pub fn fork(&self, sequence: &Sequence) -> Result<Sequence> {
        let tables = sequence.tables.iter().map(|table| Ok(table.fork()?)).collect::<Result<_>>()?;
        Ok(Sequence { tables, tokens: sequence.tokens, swapped: sequence.swapped })
    }

    /// Whether sequences that begin with the same tokens are found: where no layer has a window, which leaves behind what
    /// another sequence would need.
    pub fn keeps_prefixes(&self) -> bool {
        self.shape.groups.iter().all(|group| group.window.is_none())
    }

    /// How many of `tokens` an empty sequence would [start with](Self::start).
    pub(crate) fn known(&self, salt: u64, tokens: &[u32]) -> usize {
        let known = self.pages.iter().map(|pages| pages.matching_tokens(salt, tokens).unwrap_or(0)).min();
        known.filter(|_| self.keeps_prefixes()).unwrap_or(0)
    }

    /// Starts an empty sequence with the first of `tokens` that sequences of the same salt had before it and that are still
    /// there, in whole blocks, and returns how many those are.
    ///
    /// # Errors
    /// A sequence that has tokens.
    pub fn start(&self, sequence: &mut Sequence, salt: u64, tokens: &[u32]) -> Result<usize> {
        if self.keeps_prefixes() {
            for table in &mut sequence.tables {
                sequence.tokens = table.lookup(salt, tokens)?;
            }
        }
        Ok(sequence.tokens)
    }

    /// Lets later sequences of the same salt start with the whole blocks of this one, whose tokens those are.
    ///
    /// # Errors
    /// None that a sequence of this cache has.
    pub fn publish(&self, sequence: &mut Sequence, salt: u64, tokens: &[u32]) -> Result<()> {
        if self.keeps_prefixes() {
            sequence.tables.iter_mut().try_for_each(|table| table.publish(salt, tokens).map(drop))?;
        }
        Ok(())
    }

    /// Brings a sequence to the host, and frees its blocks. It cannot be run there.
    ///
    /// # Errors
    /// No room there, or a failed device: the sequence is as before.
    pub fn swap_out(&mut self, ctx: &Context, sequence: &mut Sequence) -> Result<()> {
        let Some(host) = &mut self.host else {
            return Err(Error::Memory(MemoryError::OutOfBlocks { asked: 1, free: 0, total: 0 }));
        };
        let start = host.pages.iter().map(PagePool::table).collect();
        let (tables, swaps) = sequence.moved(start)?;
        for (group, swap) in swaps.iter().enumerate() {
            let layers = self.layers.iter().zip(&mut host.layers).zip(&self.shape.layers);
            for (((keys, values), on_host), _) in layers.filter(|(_, of)| **of == group) {
                for (tensor, host) in [keys, values].into_iter().zip(on_host) {
                    let host = host.as_mut_slice::<u8>()?;
                    for (from, to) in places(swap) {
                        ctx.stream().download(tensor.buffer(), from.start, &mut host[to])?;
                    }
                }
            }
        }
        (sequence.tables, sequence.swapped) = (tables, true);
        Ok(())
    }

    /// Brings a sequence back from the host. `start` is one of this cache that [has](Self::start) of its tokens what others
    /// have run, which is not copied, or is empty. Returns how many blocks were copied, of all groups.
    ///
    /// # Errors
    /// A full cache, or a failed device: the sequence is as before.
    pub fn swap_in(&mut self, ctx: &Context, sequence: &mut Sequence, start: Sequence) -> Result<usize> {
        let Some(host) = self.host.as_ref().filter(|_| sequence.swapped && start.is_of(&self.pages)) else {
            return Err(Error::Input("the sequence is not on the host, or comes from another cache".into()));
        };
        let (tables, swaps) = sequence.moved(start.tables)?;
        for (group, swap) in swaps.iter().enumerate() {
            let layers = self.layers.iter_mut().zip(&host.layers).zip(&self.shape.layers);
            for (((keys, values), on_host), _) in layers.filter(|(_, of)| **of == group) {
                for (tensor, host) in [keys, values].into_iter().zip(on_host) {
                    let host = host.as_slice::<u8>()?;
                    for (from, to) in places(swap) {
                        ctx.stream().upload(&host[from], tensor.buffer_mut()?, to.start)?;
                    }
                }
            }
        }
        (sequence.tables, sequence.swapped) = (tables, false);
        Ok(swaps.iter().map(|swap| swap.copies().len()).sum())
    }

    /// Makes room for `tokens` more tokens of a sequence, and frees what its windows have left behind.
    ///
    /// # Errors
    /// The cache is full, or the device failed; the sequence has the tokens that it had. A sequence of another cache, or
    /// one that is on the host: its blocks would be somebody else's here.
    pub fn append(&mut self, ctx: &Context, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        if !sequence.is_of(&self.pages) {
            return Err(Error::Input("the sequence is of another model's cache, or swapped out".into()));
        }
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

    /// Tokens that one sequence has room for: no limit where every layer has a window, which leaves the earlier ones
    /// behind, and room for what it sees.
    pub fn tokens(&self) -> usize {
        self.shape.groups.iter().map(GroupShape::tokens).min().unwrap_or(usize::MAX)
    }

    /// Whether a sequence of which the first `known` tokens are held already has room for `tokens` more, or would have if
    /// those of `leaving` left, beside what those of `staying` are still to take, each with how many tokens.
    pub(crate) fn fits<'a>(
        &self,
        (known, tokens): (usize, usize),
        staying: impl Iterator<Item = (&'a Sequence, usize)> + Clone,
        leaving: impl Iterator<Item = &'a Sequence> + Clone,
    ) -> bool {
        self.pages.iter().zip(&self.shape.groups).enumerate().all(|(group, (pages, shape))| {
            let most = shape.most_blocks();
            let promised = staying.clone().map(|(sequence, tokens)| {
                let table = &sequence.tables[group];
                // A table that holds all that its window sees frees as much as it takes, but for a block.
                table.blocks_needed(tokens).min(most.saturating_sub(table.blocks().len()).max(1))
            });
            let block_size = shape.layout.block_size();
            let own = known.saturating_add(tokens).div_ceil(block_size).min(most) - known / block_size;
            let needed = promised.fold(own, usize::saturating_add);
            needed <= pages.available_blocks() + freed(pages, leaving.clone().map(|leaving| &leaving.tables[group]))
        })
    }

    /// Tokens that can be appended to a sequence now.
    pub(crate) fn room(&self, sequence: &Sequence) -> usize {
        let of_group = |table: &BlockTable| {
            let (free, block_size) = (table.pool().available_blocks(), table.pool().config().block_size);
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

    /// Blocks of all groups: used, cached, free and shared, and what was found again.
    pub fn stats(&self) -> PageStats {
        self.pages.iter().map(PagePool::stats).fold(PageStats::default(), |a, b| PageStats {
            total: a.total + b.total,
            used: a.used + b.used,
            cached: a.cached + b.cached,
            free: a.free + b.free,
            shared: a.shared + b.shared,
            references: a.references + b.references,
            peak_used: a.peak_used + b.peak_used,
            tables: a.tables + b.tables,
            table_tokens: a.table_tokens + b.table_tokens,
            table_slots: a.table_slots + b.table_slots,
            published: a.published + b.published,
            hits: a.hits + b.hits,
            misses: a.misses + b.misses,
            evictions: a.evictions + b.evictions,
        })
    }
}

fn page_config(group: &GroupShape, num_blocks: usize) -> PageConfig {
    let layout = &group.layout;
    PageConfig { num_blocks, block_size: layout.block_size(), block_bytes: layout.bytes_per_block() }
}

/// The bytes of each block that is read, and of the one that it is written to.
fn places(swap: &SwapBlocks) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let place = |pages: &PagePool, block| {
        let start = pages.byte_offset(block) as usize;
        start..start + pages.config().block_bytes
    };
    swap.copies().iter().map(move |&(from, to)| (place(swap.from(), from), place(swap.to(), to)))
}

/// The most blocks that hold what a token sees: neither the first nor the last is whole.
fn blocks_seen(window: usize, block_size: usize) -> usize {
    window.saturating_sub(1).div_ceil(block_size).saturating_add(1)
}

/// Blocks that would be free if these tables were: those to which nothing else refers.
fn freed<'a>(pages: &PagePool, leaving: impl Iterator<Item = &'a BlockTable>) -> usize {
    let mut blocks: Vec<_> = leaving.flat_map(BlockTable::blocks).copied().collect();
    blocks.sort_unstable();
    let own = |same: &&[BlockId]| pages.references(same[0]) as usize == same.len();
    blocks.chunk_by(|a, b| a == b).filter(own).count()
}

impl Sequence {
    /// Whether its blocks are of these pools.
    fn is_of(&self, pages: &[PagePool]) -> bool {
        let pools = self.tables.iter().map(BlockTable::pool);
        self.tables.len() == pages.len() && pools.zip(pages).all(|(own, other)| own.is_same(other))
    }

    /// Its tables as they go on from `start` in other pools, and what is to be copied there.
    fn moved(&self, start: Vec<BlockTable>) -> Result<(Vec<BlockTable>, Vec<SwapBlocks>)> {
        let (mut tables, mut swaps) = (Vec::with_capacity(start.len()), Vec::with_capacity(start.len()));
        for (table, start) in self.tables.iter().zip(start) {
            let (table, swap) = table.swapped(start)?;
            tables.push(table);
            swaps.push(swap);
        }
        Ok((tables, swaps))
    }

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

    /// Whether it is on the host, where it cannot be run.
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }

    /// Forgets all tokens.
    pub(crate) fn clear(&mut self) {
        self.tables.iter_mut().for_each(BlockTable::clear);
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
