//! Sequences that were swapped out: the same blocks, on the host.

use std::ops::Range;

use sinew_memory::{BlockTable, Buffer, Cpu, Error as MemoryError, PagePool, SwapBlocks};
use sinew_ops::Context;

use super::{GroupShape, KvCache, Sequence, page_config};
use crate::{Error, Result};

/// Where they are.
#[derive(Debug)]
pub(super) struct Host {
    pages: Vec<PagePool>,
    /// Keys and values of each layer.
    layers: Vec<[Buffer; 2]>,
}

impl KvCache {
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
            Ok(Buffer::uninitialised(&Cpu::get(), bytes)?)
        };
        let layers = self.shape.layers.iter().map(|group| Ok([half(group)?, half(group)?])).collect::<Result<_>>()?;
        self.host = Some(Host { pages, layers });
        Ok(self)
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
            swap.copies().iter().for_each(|&(_, to)| self.poisoned.take(group, to));
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
        self.note_used();
        Ok(swaps.iter().map(|swap| swap.copies().len()).sum())
    }
}

impl Sequence {
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
}

/// The bytes of each block that is read, and of the one that it is written to.
fn places(swap: &SwapBlocks) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let place = |pages: &PagePool, block| {
        let start = pages.byte_offset(block) as usize;
        start..start + pages.config().block_bytes
    };
    swap.copies().iter().map(move |&(from, to)| (place(swap.from(), from), place(swap.to(), to)))
}
