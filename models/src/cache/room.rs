//! What there is room for.

use sinew_memory::{BlockId, BlockTable, PagePool};

use super::{GroupShape, KvCache, Sequence, first_seen};

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

impl KvCache {
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
            // Of what is held already, a window leaves the beginning behind.
            let left_behind = first_seen(known, shape.window) / block_size;
            let (held, all) = (known / block_size - left_behind, known.saturating_add(tokens).div_ceil(block_size));
            let own = (all - left_behind).min(most).saturating_sub(held);
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
}

/// The most blocks that hold what a token sees: neither the first nor the last is whole.
pub(super) fn blocks_seen(window: usize, block_size: usize) -> usize {
    window.saturating_sub(1).div_ceil(block_size).saturating_add(1)
}

/// The most blocks of a window that a sequence holds while others run: what a token sees, and where a step ends one more.
pub(super) fn blocks_between_steps(window: usize, block_size: usize) -> usize {
    blocks_seen(window, block_size).saturating_add(1)
}

/// Blocks that would be free if these tables were: those to which nothing else refers. Allocates only for what several
/// of them share.
fn freed<'a>(pages: &PagePool, leaving: impl Iterator<Item = &'a BlockTable>) -> usize {
    let (mut own, mut shared) = (0, Vec::new());
    for &block in leaving.flat_map(BlockTable::blocks) {
        match pages.references(block) {
            1 => own += 1,
            references => shared.push((block, references)),
        }
    }
    shared.sort_unstable();
    let of_these = |same: &&[(BlockId, u32)]| same[0].1 as usize == same.len();
    own + shared.chunk_by(|a, b| a == b).filter(of_these).count()
}
