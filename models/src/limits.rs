//! How large the steps of a model are.

/// How large a step of a decoder can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in one step.
    pub max_rows: usize,
    /// Sequences in one step.
    pub max_sequences: usize,
    /// Tokens of one sequence, prompt and answer.
    pub context: usize,
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Rows of logits at once; without any no head is loaded, for models of which only hidden states are asked.
    pub max_logits: Option<usize>,
}

impl Limits {
    /// The same with no more rows of logits than a step has rows.
    pub(crate) fn capped(self) -> Self {
        Self { max_logits: self.max_logits.map(|most| most.min(self.max_rows)), ..self }
    }

    /// Rows of a step that are asked for at once.
    pub(crate) fn max_wanted(&self) -> usize {
        self.max_logits.unwrap_or(self.max_rows)
    }
}
