//! A batch: the tokens of one step, of one sequence or many, as kernels want them.

use crate::cache::Sequence;
use crate::{Error, Result};

/// The tokens of one step with their positions, cache slots and block tables. Kept and reused from step to step.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    tokens: Vec<u32>,
    positions: Vec<i32>,
    slots: Vec<i64>,
    query_start: Vec<i32>,
    kv_len: Vec<i32>,
    block_tables: Vec<u32>,
    /// Blocks of each sequence, before they are laid out as a table.
    blocks: Vec<u32>,
    block_ends: Vec<usize>,
    blocks_per_table: usize,
    wanted: Vec<u32>,
    max_query: usize,
    max_kv: usize,
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
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the tokens and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.query_start.clear();
        self.kv_len.clear();
        self.block_tables.clear();
        self.blocks.clear();
        self.block_ends.clear();
        self.wanted.clear();
        (self.blocks_per_table, self.max_query, self.max_kv) = (0, 0, 0);
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
        for position in start..end {
            self.positions.push(position as i32);
            self.slots.push(sequence.slot(position)?);
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
        self.blocks.extend(sequence.blocks());
        self.block_ends.push(self.blocks.len());
        self.lay_out_tables();
        Ok(())
    }

    /// Block tables as rows of equal length.
    fn lay_out_tables(&mut self) {
        let starts = std::iter::once(0).chain(self.block_ends.iter().copied());
        let longest = starts.clone().zip(&self.block_ends).map(|(start, end)| end - start).max().unwrap_or(0);
        self.blocks_per_table = longest.max(1);
        self.block_tables.clear();
        let mut start = 0;
        for &end in &self.block_ends {
            self.block_tables.extend_from_slice(&self.blocks[start..end]);
            // What pads a table is behind `kv_len` and never read.
            self.block_tables.resize(self.block_tables.len() + self.blocks_per_table - (end - start), 0);
            start = end;
        }
    }

    /// Tokens, sequence after sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Position of each token in its sequence.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// Where each token's key and value go: `block · block_size + offset`.
    pub fn slots(&self) -> &[i64] {
        &self.slots
    }

    /// First row of each sequence, and the number of rows.
    pub fn query_start(&self) -> &[i32] {
        &self.query_start
    }

    /// Keys of each sequence, those of this step included.
    pub fn kv_len(&self) -> &[i32] {
        &self.kv_len
    }

    /// Blocks of each sequence, `[sequences, blocks_per_table]`.
    pub fn block_tables(&self) -> &[u32] {
        &self.block_tables
    }

    /// Length of a row of [`Batch::block_tables`].
    pub fn blocks_per_table(&self) -> usize {
        self.blocks_per_table
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
