//! NaN where no token is, in builds with debug assertions: a kernel that reads a free block, or behind the last token of
//! one, gives it on to logits, which tests compare. Other builds do none of this.
//!
//! What a free block held is overwritten before the next tokens are appended to any sequence, and what is behind a
//! sequence's tokens when some are appended to it. Where a sequence was made shorter, or a block was copied or swapped, old
//! values are behind its tokens until then.

use sinew_memory::{BlockId, PagePool};
use sinew_ops::Context;
use sinew_tensor::{PagedLayout, Tensor};

use super::{CacheShape, KvCache, Sequence};
use crate::Result;

/// NaN in f32, f16, bf16 and fp8 (e4m3), and in the scales of int8.
const NAN: u8 = 0xff;

/// The free blocks of each group that are filled with NaN.
#[derive(Debug, Default)]
pub(super) struct Poisoned {
    blocks: Vec<Vec<bool>>,
    /// As many bytes as a block has.
    bytes: Vec<u8>,
}

impl Poisoned {
    pub fn new(pages: &[PagePool], shape: &CacheShape) -> Self {
        if !cfg!(debug_assertions) {
            return Self::default();
        }
        let of_group = |pages: &PagePool| vec![false; pages.config().num_blocks];
        Self { blocks: pages.iter().map(of_group).collect(), bytes: vec![NAN; shape.largest_block()] }
    }

    /// A block gets something else.
    pub fn take(&mut self, group: usize, block: BlockId) {
        if let Some(poisoned) = self.blocks.get_mut(group).and_then(|blocks| blocks.get_mut(block.0 as usize)) {
            *poisoned = false;
        }
    }
}

impl KvCache {
    /// Poisons the blocks that became free.
    pub(super) fn poison_free(&mut self, ctx: &Context) -> Result<()> {
        if !cfg!(debug_assertions) {
            return Ok(());
        }
        let Self { layers, pages, shape, poisoned: Poisoned { blocks, bytes }, .. } = self;
        for (group, (pages, poisoned)) in pages.iter().zip(blocks).enumerate() {
            let layout = &shape.groups[group].layout;
            let mut outcome = Ok(());
            pages.for_each_free(|BlockId(block)| {
                let block = block as usize;
                if outcome.is_ok() && !std::mem::replace(&mut poisoned[block], true) {
                    let of_group = layers.iter_mut().zip(&shape.layers).filter(|(_, of)| **of == group);
                    outcome = fill(ctx, bytes, of_group.map(|(layer, _)| layer), layout, block, 0);
                }
            });
            outcome?;
        }
        Ok(())
    }

    /// Poisons the blocks of a sequence from the place of token `start` on, which nothing else refers to.
    pub(super) fn poison_tails(&mut self, ctx: &Context, sequence: &Sequence, start: usize) -> Result<()> {
        if !cfg!(debug_assertions) || start == sequence.len() {
            return Ok(());
        }
        for (group, table) in sequence.tables.iter().enumerate() {
            let layout = &self.shape.groups[group].layout;
            let first = (start / layout.block_size()).max(table.first_block());
            let blocks = table.blocks().iter().enumerate().skip(first - table.first_block());
            for (index, &block) in blocks {
                let slot = start.saturating_sub((table.first_block() + index) * layout.block_size());
                self.poisoned.take(group, block);
                let of_group = self.layers.iter_mut().zip(&self.shape.layers).filter(|(_, of)| **of == group);
                let of_group = of_group.map(|(layer, _)| layer);
                fill(ctx, &self.poisoned.bytes, of_group, layout, block.0 as usize, slot)?;
            }
        }
        Ok(())
    }
}

/// Fills the slots of a block from one on with `bytes`, in the keys and values of layers.
fn fill<'a>(
    ctx: &Context,
    bytes: &[u8],
    layers: impl Iterator<Item = &'a mut (Tensor, Tensor)>,
    layout: &PagedLayout,
    block: usize,
    slot: usize,
) -> Result<()> {
    let (size, slots) = (layout.dtype().size(), layout.block_size() - slot);
    for half in layers.flat_map(|(keys, values)| [keys, values]) {
        let buffer = half.buffer_mut().map_err(sinew_ops::Error::from)?;
        let mut write = |start, len| ctx.stream().upload(&bytes[..len], buffer, start);
        if slot == 0 {
            write(block * layout.bytes_per_block(), layout.bytes_per_block())?;
            continue;
        }
        for head in 0..layout.num_kv_heads() {
            if let Some(start) = layout.index(block, head, slot, 0) {
                write(start * size, slots * layout.head_dim() * size)?;
            }
            if let Some(start) = layout.scale_index(block, head, slot) {
                write(start, slots * PagedLayout::SCALE_BYTES)?;
            }
        }
    }
    Ok(())
}
