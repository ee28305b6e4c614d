//! A batch: the tokens of one step, of one sequence or many, as kernels want them.

use std::ops::Range;

use crate::cache::Sequence;
use crate::load_options::Limits;
use crate::{Error, Result};

/// The tokens of one step with their positions, cache slots and block tables. Kept and reused from step to step.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    tokens: Vec<u32>,
    positions: Vec<i32>,
    query_start: Vec<i32>,
    kv_len: Vec<i32>,
    /// Of each group of layers.
    places: Vec<Places>,
    wanted: Vec<u32>,
    max_query: usize,
    max_kv: usize,
}

/// Where the tokens of a step are in the cache of a group of layers.
#[derive(Debug, Default, Clone)]
pub struct Places {
    slots: Vec<i64>,
    /// Blocks of all sequences, and where those of each end.
    blocks: Vec<u32>,
    block_ends: Vec<usize>,
    blocks_per_table: usize,
}

/// Which rows of logits a step should give for a sequence's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None: the middle of a prompt.
    None,
    /// That of the last token.
    Last,
    /// Those of all tokens.
    All,
}

impl Batch {
    /// An empty batch with room for any step within `limits` in caches of so many groups of layers.
    pub fn for_limits(limits: &Limits, groups: usize) -> Self {
        let &Limits { max_rows: rows, max_sequences: sequences, context, block_size, .. } = limits;
        Self {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            query_start: Vec::with_capacity(sequences + 1),
            kv_len: Vec::with_capacity(sequences),
            places: std::iter::repeat_with(|| Places {
                slots: Vec::with_capacity(rows),
                blocks: Vec::with_capacity(sequences * context.div_ceil(block_size)),
                block_ends: Vec::with_capacity(sequences),
                blocks_per_table: 0,
            })
            .take(groups)
            .collect(),
            wanted: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    /// Forgets the tokens and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.query_start.clear();
        self.kv_len.clear();
        self.places.iter_mut().for_each(Places::clear);
        self.wanted.clear();
        (self.max_query, self.max_kv) = (0, 0);
    }

    /// Adds `tokens` of a sequence whose cache has room for them already, at its last positions.
    ///
    /// # Errors
    /// A sequence that is shorter than the tokens.
    pub fn push(&mut self, sequence: &Sequence, tokens: &[u32], wanted: Wanted) -> Result<()> {
        let end = sequence.len();
        let start = end.checked_sub(tokens.len());
        let start = start.ok_or_else(|| Error::Input(format!("{} tokens in a sequence of {end}", tokens.len())))?;
        if self.query_start.is_empty() {
            self.query_start.push(0);
        }
        let row = self.tokens.len() as u32;
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..end).map(|position| position as i32));
        self.places.resize_with(sequence.groups().max(self.places.len()), Places::default);
        for (group, places) in self.places.iter_mut().enumerate() {
            places.push(sequence, group, start..end)?;
        }
        match wanted {
            Wanted::None => {}
            Wanted::Last => self.wanted.extend((!tokens.is_empty()).then(|| row + tokens.len() as u32 - 1)),
            Wanted::All => self.wanted.extend(row..row + tokens.len() as u32),
        }
        self.query_start.push(self.tokens.len() as i32);
        self.kv_len.push(end as i32);
        self.max_query = self.max_query.max(tokens.len());
        self.max_kv = self.max_kv.max(end);
        Ok(())
    }

    /// Tokens, sequence after sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Position of each token in its sequence.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// Where the tokens are in the cache of each group of layers.
    pub fn places(&self) -> &[Places] {
        &self.places
    }

    /// First row of each sequence, and the number of rows.
    pub fn query_start(&self) -> &[i32] {
        &self.query_start
    }

    /// Keys of each sequence, those of this step included.
    pub fn kv_len(&self) -> &[i32] {
        &self.kv_len
    }

    /// Rows whose logits are wanted.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// The most tokens of one sequence.
    pub fn max_query(&self) -> usize {
        self.max_query
    }

    /// The most keys of one sequence.
    pub fn max_kv(&self) -> usize {
        self.max_kv
    }
}

impl Places {
    fn clear(&mut self) {
        self.slots.clear();
        self.blocks.clear();
        self.block_ends.clear();
        self.blocks_per_table = 0;
    }

    fn push(&mut self, sequence: &Sequence, group: usize, positions: Range<usize>) -> Result<()> {
        for position in positions {
            self.slots.push(sequence.slot(group, position)?);
        }
        let start = self.blocks.len();
        self.blocks.extend(sequence.blocks(group));
        self.block_ends.push(self.blocks.len());
        self.blocks_per_table = self.blocks_per_table.max(self.blocks.len() - start);
        Ok(())
    }

    /// Where each token's key and value go: `block · block_size + offset`.
    pub fn slots(&self) -> &[i64] {
        &self.slots
    }

    /// Lays out the blocks of each sequence in `tables` as rows of equal length, `[sequences, blocks_per_table]`.
    pub fn lay_out_block_tables(&self, tables: &mut Vec<u32>) {
        let width = self.blocks_per_table();
        tables.clear();
        let mut start = 0;
        for (i, &end) in self.block_ends.iter().enumerate() {
            tables.extend_from_slice(&self.blocks[start..end]);
            // What pads a row is behind `kv_len` and never read.
            tables.resize((i + 1) * width, 0);
            start = end;
        }
    }

    /// Length of a row of block tables: blocks of the longest sequence, at least 1.
    pub fn blocks_per_table(&self) -> usize {
        self.blocks_per_table.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheShape, GroupShape, KvCache};
    use sinew_ops::Context;
    use sinew_tensor::{DType, PagedLayout};

    #[test]
    fn tables_are_rows_as_long_as_the_longest_sequence() {
        let ctx = Context::cpu().expect("the CPU is there");
        let layout = PagedLayout::new(8, 1, 4, 2, DType::F32).expect("a small cache");
        let group = |window| Ok(GroupShape { window, layout, is_old: false });
        let shape = CacheShape::of_groups([None, Some(3), None].into_iter().map(group));
        let mut cache = KvCache::new(&ctx, shape.expect("two groups")).expect("a small cache");
        let mut batch = Batch::default();
        let mut tables = vec![9; 3];
        // Reused: nothing of the batch before is left.
        for _ in 0..2 {
            batch.clear();
            for places in batch.places() {
                places.lay_out_block_tables(&mut tables);
                assert_eq!((tables.as_slice(), places.blocks_per_table()), (&[][..], 1));
            }
            let mut sequences = [cache.sequence(9), cache.sequence(9), cache.sequence(9)];
            for (sequence, tokens) in sequences.iter_mut().zip([1, 9, 4]) {
                cache.append(&ctx, sequence, tokens).expect("there are blocks");
            }
            cache.append(&ctx, &mut sequences[2], 1).expect("there are blocks");
            // The window of the next token has left two blocks behind.
            sequences[1].truncate(8).expect("shorter");
            cache.append(&ctx, &mut sequences[1], 1).expect("there are blocks");
            for (sequence, tokens) in sequences.iter().zip([&[7][..], &[8], &[7, 8, 9, 10, 11]]) {
                batch.push(sequence, tokens, Wanted::Last).expect("the tokens are there");
            }
            let [all, window] = batch.places() else { panic!("two groups") };
            all.lay_out_block_tables(&mut tables);
            assert_eq!(all.blocks_per_table(), 3);
            assert_eq!(tables, [0, 0, 0, 1, 2, 3, 4, 5, 0]);
            assert_eq!(all.slots(), [0, 12, 16, 17, 18, 19, 20]);
            window.lay_out_block_tables(&mut tables);
            assert_eq!(window.blocks_per_table(), 3);
            // What is left behind is never read.
            assert_eq!(tables, [0, 0, 0, 0, 2, 1, 4, 5, 0]);
            assert_eq!(window.slots(), [0, 4, 16, 17, 18, 19, 20]);
            assert_eq!((batch.query_start(), batch.kv_len()), (&[0, 1, 2, 7][..], &[1, 9, 5][..]));
            assert_eq!(batch.wanted(), [0, 1, 6]);
            assert!(batch.push(&sequences[0], &[1, 2], Wanted::None).is_err());
            let free = [&sequences[0], &sequences[1]].map(|sequence| sequence.blocks(1).collect::<Vec<_>>());
            assert_eq!(free, [vec![0], vec![0, 2, 1]]);
            assert!(sequences[1].truncate(3).is_err());
            assert_eq!(sequences[1].len(), 9);
        }
    }
}
