//! The paged cache of keys and values: bytes in blocks, and the sequences that hold them.
//!
//! Layers that see equally far back are a group, with a pool of blocks and a table for each sequence of its own: what a
//! window has left behind is free again, while layers that see everything keep all. A layer whose old tokens have a form
//! of their own is in two groups: all of its tokens in that form in one, and the recent ones in the other.

mod form;
mod host;
mod poison;
mod prefixes;
mod room;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use sinew_memory::{BlockTable, Buffer, CopyBlock, Device, PageConfig, PagePool, PageStats, PrefixConfig};
use sinew_ops::Context;
use sinew_tensor::{PagedLayout, Tensor};

pub(crate) use self::form::Form;
pub use self::form::LayerCache;
use self::host::Host;
use self::poison::Poisoned;
use self::room::blocks_between_steps;
use crate::load_options::Limits;
use crate::precision::Precision;
use crate::{DecoderConfig, Error, Result};

/// How large a cache is: the blocks of each group of layers.
///
/// ```no_run
/// use sinew_models::{LanguageModel, LoadOptions};
///
/// let model = LanguageModel::load("path/to/model", &LoadOptions::default())?;
/// let shape = model.cache().shape();
/// for group in shape.groups() {
///     println!("{} blocks of {} tokens", group.layout.num_blocks(), group.layout.block_size());
/// }
/// println!("{} bytes in all", shape.bytes());
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShape {
    groups: Vec<GroupShape>,
    /// The group of each pair of keys and values: those of every layer, and behind them those of its old tokens, where they
    /// have a form of their own.
    layers: Vec<usize>,
    /// Blocks that a prefix may have of which a window sees the end; as many are known without their bytes.
    remembered: usize,
}

/// What its memory is called in reports.
const TAG: &str = "kv cache";

/// Of as many blocks at most the tokens are known without their bytes, which are a few hundred bytes for each.
const MOST_REMEMBERED: usize = 1 << 16;

/// Tokens of a prefix that is to be found again: of longer ones there is room for fewer in layers that see all.
const TOKENS_OF_PREFIX: usize = 1024;

/// The blocks of the layers that see equally far back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupShape {
    /// How many of the latest positions its layers see; `None` is all.
    pub window: Option<usize>,
    /// The keys, or the values, of one of its layers.
    pub layout: PagedLayout,
    /// Whether they are read of old tokens only, and recent ones from another group.
    pub is_old: bool,
}

impl CacheShape {
    /// Room for `tokens` tokens of sequences within `limits`, or for every sequence at its longest; of layers with a
    /// window, for what `max_sequences` sequences see and a step adds. Where tokens are asked for, windows have room as
    /// well for the ends of prefixes, one for each 1,024 of them. More sequences, or longer ones, never take
    /// less.
    ///
    /// # Errors
    /// No token, or more bytes than can be counted.
    pub fn new(config: &DecoderConfig, precision: &Precision, limits: &Limits, tokens: Option<usize>) -> Result<Self> {
        let &Limits { max_rows, max_sequences, block_size, context, .. } = limits;
        let longest = context.div_ceil(block_size).saturating_mul(max_sequences);
        let all = tokens.map_or(longest, |tokens| tokens.div_ceil(block_size));
        let prefixes = tokens.map_or(0, |tokens| tokens / TOKENS_OF_PREFIX);
        if all == 0 {
            return Err(Error::Input("a cache of 0 tokens".to_owned()));
        }
        let shape = Self::of_blocks(config, precision, block_size, |window| match window {
            None => all,
            Some(window) => {
                let each = blocks_between_steps(window, block_size);
                let ends = max_sequences.saturating_add(prefixes).saturating_mul(each);
                ends.saturating_add(max_rows.div_ceil(block_size)).min(all)
            }
        })?;
        Ok(Self { remembered: all.min(MOST_REMEMBERED), ..shape })
    }

    /// As many blocks for each group as `blocks` says of its window.
    ///
    /// # Errors
    /// More bytes than can be counted.
    pub(crate) fn of_blocks(
        config: &DecoderConfig,
        precision: &Precision,
        block_size: usize,
        blocks: impl Fn(Option<usize>) -> usize,
    ) -> Result<Self> {
        let (heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let forms = config.layers.iter().flat_map(|layer| {
            let (form, old) = Form::of(precision, layer.window);
            std::iter::once((form, false)).chain(old.map(|old| (old, true)))
        });
        Self::of_groups(forms.map(|(Form { window, dtype }, is_old)| {
            let layout = PagedLayout::new(blocks(window), heads, block_size, head_dim, dtype)?;
            Ok(GroupShape { window, layout, is_old })
        }))
    }

    /// Layers of which those with equal shapes are a group.
    pub(crate) fn of_groups(layers: impl Iterator<Item = Result<GroupShape>>) -> Result<Self> {
        let mut shape = Self { groups: Vec::new(), layers: Vec::new(), remembered: 0 };
        for group in layers {
            let group = group?;
            let known = shape.groups.iter().position(|known| *known == group);
            shape.layers.push(known.unwrap_or(shape.groups.len()));
            if known.is_none() {
                shape.groups.push(group);
            }
        }
        Ok(shape)
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

    /// The same of one token; in layers where old tokens have a form of their own, of an old one.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let of_layer = |(at, &group): (usize, &usize)| {
            let is_recent = self.layers.get(at + 1).is_some_and(|&next| self.groups[next].is_old);
            let layout = &self.groups[group].layout;
            if is_recent { 0 } else { 2 * layout.bytes_per_block() / layout.block_size() }
        };
        self.layers.iter().enumerate().map(of_layer).sum()
    }

    /// Bytes of a device's memory that it takes, with room for `host_tokens` tokens beside it and for a block that is
    /// copied.
    pub(crate) fn held_bytes(&self, device: &dyn Device, host_tokens: usize) -> usize {
        let of_layer = |&group: &usize| {
            let layout = &self.groups[group].layout;
            let host = layout.blocks_for(host_tokens).saturating_mul(layout.bytes_per_block());
            device.held_bytes(layout.bytes()).saturating_add(device.held_bytes(host)).saturating_mul(2)
        };
        let moved = device.held_bytes(self.largest_block());
        self.layers.iter().map(of_layer).fold(moved, usize::saturating_add)
    }

    /// Bytes of the largest block of keys, or of values.
    fn largest_block(&self) -> usize {
        self.groups.iter().map(|group| group.layout.bytes_per_block()).max().unwrap_or(0)
    }

    fn bytes_of(&self, blocks: impl Fn(&PagedLayout) -> usize) -> usize {
        let of_layer = |&group: &usize| {
            let layout = &self.groups[group].layout;
            blocks(layout).saturating_mul(layout.bytes_per_block()).saturating_mul(2)
        };
        self.layers.iter().map(of_layer).fold(0, usize::saturating_add)
    }
}

/// Keys and values of all layers, in blocks that sequences take as they grow. Nothing is ever moved or copied to grow,
/// but for the last block of a sequence that shares it with a fork.
///
/// ```no_run
/// use sinew_models::cache::{CacheShape, KvCache};
/// use sinew_ops::Context;
///
/// fn two_of_one_prompt(ctx: &Context, shape: CacheShape) -> sinew_models::Result<()> {
///     let mut cache = KvCache::new(ctx, shape)?;
///     let mut first = cache.sequence(64);
///     cache.append(ctx, &mut first, 40)?;
///     // Whole blocks are shared, and none is copied before one of both goes on.
///     let second = cache.fork(&first)?;
///     assert_eq!(second.len(), 40);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct KvCache {
    /// As the shape has them.
    layers: Vec<(Tensor, Tensor)>,
    pages: Vec<PagePool>,
    shape: CacheShape,
    windows: Arc<[Option<usize>]>,
    /// A block on its way to another place in the same tensor.
    moved: Option<Buffer>,
    host: Option<Host>,
    poisoned: Poisoned,
    /// The most blocks of all groups that sequences have had at once.
    peak_used: usize,
}

/// One sequence's place in the cache. Dropping it frees its blocks.
#[derive(Debug)]
pub struct Sequence {
    /// Of each group; all have the same tokens, but for those that a window has left behind.
    tables: Vec<BlockTable>,
    /// The windows of the groups.
    windows: Arc<[Option<usize>]>,
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
            let remembered = if group.window.is_some() { shape.remembered } else { 0 };
            Ok(PagePool::with_prefixes(config, PrefixConfig { remembered, ..PrefixConfig::default() })?)
        };
        let half = |layout: &PagedLayout| -> Result<Tensor> {
            let buffer = ctx.pool().uninitialised_apart(layout.bytes(), TAG)?;
            Ok(Tensor::new(buffer, layout.stored(), layout.layout()).map_err(sinew_ops::Error::from)?)
        };
        let pages = shape.groups.iter().map(pool).collect::<Result<Vec<_>>>()?;
        let layer = |&group: &usize| {
            let layout = &shape.groups[group].layout;
            Ok((half(layout)?, half(layout)?))
        };
        let layers = shape.layers.iter().map(layer).collect::<Result<_>>()?;
        let windows = shape.groups.iter().map(|group| group.window).collect();
        let poisoned = Poisoned::new(&pages, &shape);
        let mut cache = Self { layers, pages, shape, windows, moved: None, host: None, poisoned, peak_used: 0 };
        cache.poison_free(ctx)?;
        Ok(cache)
    }

    /// An empty sequence that grows to `tokens` tokens without allocating on the host. It takes no blocks yet.
    pub fn sequence(&self, tokens: usize) -> Sequence {
        let table = |pages: &PagePool| {
            let mut table = pages.table();
            table.reserve(tokens);
            table
        };
        let tables = self.pages.iter().map(table).collect();
        Sequence { tables, windows: self.windows.clone(), tokens: 0, swapped: false }
    }

    /// A second sequence of the same tokens, which shares all blocks. Either gets a block of its own where it appends to
    /// one that is half filled and shared.
    ///
    /// # Errors
    /// More sequences of one block than can be counted.
    pub fn fork(&self, sequence: &Sequence) -> Result<Sequence> {
        let tables = sequence.tables.iter().map(|table| Ok(table.fork()?)).collect::<Result<_>>()?;
        let &Sequence { tokens, swapped, .. } = sequence;
        Ok(Sequence { tables, windows: sequence.windows.clone(), tokens, swapped })
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
        sequence.release_unseen()?;
        self.poison_free(ctx)?;
        for group in 0..sequence.tables.len() {
            let table = &mut sequence.tables[group];
            let grown = match table.append(tokens) {
                Ok(None) => Ok(()),
                // What was not copied is still where it was.
                Ok(Some(copy)) => self.copy(ctx, group, &copy).or_else(|error| {
                    table.take_back(copy)?;
                    Err(error)
                }),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = grown {
                let mut grown = sequence.tables.iter_mut().filter(|table| table.num_tokens() > before);
                grown.try_for_each(|table| table.truncate(before))?;
                return Err(error);
            }
        }
        sequence.tokens += tokens;
        self.note_used();
        self.poison_tails(ctx, sequence, before).or_else(|error| {
            sequence.truncate(before)?;
            Err(error)
        })
    }

    /// Groups are at their fullest at different times, so that their own peaks do not add up.
    fn note_used(&mut self) {
        let used = self.pages.iter().map(|pages| pages.config().num_blocks - pages.available_blocks()).sum();
        self.peak_used = self.peak_used.max(used);
    }

    /// Brings the tokens of one block to another, in all layers of a group.
    fn copy(&mut self, ctx: &Context, group: usize, copy: &CopyBlock) -> Result<()> {
        let (pages, stream) = (&self.pages[group], ctx.stream());
        let bytes = pages.config().block_bytes;
        let place = |block| pages.byte_offset(block) as usize;
        let (from, to) = (place(copy.from()), place(copy.to()));
        // A copy within one buffer is not given to every device.
        let moved = match &mut self.moved {
            Some(moved) => moved,
            none => none.insert(ctx.pool().uninitialised_apart(self.shape.largest_block(), TAG)?),
        };
        let layers = self.layers.iter_mut().zip(&self.shape.layers).filter(|(_, of)| **of == group);
        for half in layers.flat_map(|((keys, values), _)| [keys, values]) {
            stream.copy(half.buffer(), from, moved, 0, bytes)?;
            stream.copy(moved, 0, half.buffer_mut()?, to, bytes)?;
        }
        Ok(())
    }

    /// Keys and values of each layer.
    pub fn layers_mut(&mut self) -> impl Iterator<Item = LayerCache<'_>> {
        let groups = &self.shape.groups;
        let mut all = self.shape.layers.iter().copied().zip(&mut self.layers).peekable();
        std::iter::from_fn(move || {
            let (group, cache) = all.next()?;
            Some(LayerCache { group, cache, old: all.next_if(|&(group, _)| groups[group].is_old) })
        })
    }

    /// How large it is.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Bytes of keys and values in all layers.
    pub fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// Bytes that one token takes in all layers; of those where old tokens have a form of their own, what an old one takes.
    pub fn bytes_per_token(&self) -> usize {
        self.shape.bytes_per_token()
    }

    /// Blocks of all groups: used, cached, free and shared, and what was found again.
    pub fn stats(&self) -> PageStats {
        let none = PageStats { peak_used: self.peak_used, ..PageStats::default() };
        self.pages.iter().map(PagePool::stats).fold(none, |a, b| PageStats {
            total: a.total + b.total,
            used: a.used + b.used,
            cached: a.cached + b.cached,
            free: a.free + b.free,
            shared: a.shared + b.shared,
            references: a.references + b.references,
            peak_used: a.peak_used,
            tables: a.tables + b.tables,
            table_tokens: a.table_tokens + b.table_tokens,
            table_slots: a.table_slots + b.table_slots,
            published: a.published + b.published,
            remembered: a.remembered + b.remembered,
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

/// The first position that the token at `position` sees through a window, which counts its own.
fn first_seen(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

impl Sequence {
    /// Whether its blocks are of these pools.
    fn is_of(&self, pages: &[PagePool]) -> bool {
        let pools = self.tables.iter().map(BlockTable::pool);
        self.tables.len() == pages.len() && pools.zip(pages).all(|(own, other)| own.is_same(other))
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
        let held = self.tables.iter().zip(&*self.windows).map(|(table, &window)| (table.positions().start, window));
        let left_behind = held.clone().any(|(start, window)| start > first_seen(tokens, window));
        if tokens > self.tokens || left_behind {
            let (len, held) = (self.tokens, held.map(|(start, _)| start).max().unwrap_or(0));
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

    /// Forgets the tokens from position `tokens` on, or all of them where a window has left behind what would be seen then.
    pub(crate) fn shorten(&mut self, tokens: usize) {
        if self.truncate(tokens).is_err() {
            self.clear();
        }
    }

    /// Frees the blocks that no later token sees where they are more than the cache has room for until the sequence goes
    /// on. A step of a few tokens can be taken back still.
    pub(crate) fn leave_room(&mut self) -> Result<()> {
        for (table, &window) in self.tables.iter_mut().zip(&*self.windows) {
            let block_size = table.pool().config().block_size;
            if window.is_some_and(|window| table.blocks().len() > blocks_between_steps(window, block_size)) {
                table.release_before(first_seen(self.tokens, window))?;
            }
        }
        Ok(())
    }

    /// Frees the blocks that no later token sees.
    pub(crate) fn release_unseen(&mut self) -> Result<()> {
        for (table, &window) in self.tables.iter_mut().zip(&*self.windows) {
            table.release_before(first_seen(self.tokens, window))?;
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
