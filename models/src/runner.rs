//! Steps of a decoder on a paged cache: what is put together runs as one forward pass, and gives logits.

use std::ops::Range;
use std::sync::Arc;

use sinew_ops::Context;

use crate::Result;
use crate::batch::{Batch, Wanted};
use crate::cache::{KvCache, Sequence};
use crate::config::check_tokens;
use crate::decoder::Decoder;
use crate::logits::Logits;
use crate::prompt::check_length;

/// A decoder with its cache, the step that is put together, and the logits of the last.
#[derive(Debug)]
pub(crate) struct Runner {
    pub ctx: Arc<Context>,
    pub decoder: Decoder,
    pub cache: KvCache,
    pub batch: Batch,
    pub logits: Logits,
}

impl Runner {
    /// An empty sequence.
    pub(crate) fn sequence(&self) -> Sequence {
        self.cache.sequence(self.decoder.limits().context)
    }

    /// Refuses tokens that no sequence of so many before them could go on with.
    pub(crate) fn check(&self, before: usize, tokens: &[u32]) -> Result<()> {
        let context = self.decoder.limits().context;
        if tokens.is_empty() {
            return check_length(0, context);
        }
        check_tokens(tokens, self.decoder.config().vocab_size)?;
        check_length(before + tokens.len(), context)
    }

    /// Begins to put a step together.
    pub(crate) fn begin(&mut self) {
        self.batch.clear();
    }

    /// Adds tokens of a sequence to the step, and takes room for them in the cache.
    ///
    /// # Errors
    /// A full cache; the sequence is as before.
    pub(crate) fn stage(&mut self, sequence: &mut Sequence, tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.cache.append(&self.ctx, sequence, tokens.len())?;
        self.batch.push(sequence, tokens, wanted)
    }

    /// Runs the step. After an error its sequences have tokens that the cache does not: they are to be truncated.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.decoder.forward(&self.ctx, &mut self.cache, &self.batch)
    }

    /// Runs tokens, equally many for every sequence, as one step. After an error every sequence is as long as before.
    pub(crate) fn forward(&mut self, sequences: &mut [Sequence], tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.begin();
        let Some(each) = tokens.len().checked_div(sequences.len()) else { return Ok(()) };
        let mut staged = 0;
        let mut outcome = Ok(());
        for (sequence, tokens) in sequences.iter_mut().zip(tokens.chunks(each)) {
            outcome = self.stage(sequence, tokens, wanted);
            if outcome.is_err() {
                break;
            }
            staged += 1;
        }
        let outcome = outcome.and_then(|()| self.run());
        if outcome.is_err() {
            shrink(&mut sequences[..staged], each)?;
        }
        outcome
    }

    /// Computes the logits of some of the rows that the step was asked for.
    pub(crate) fn head(&mut self, rows: Range<usize>) -> Result<()> {
        self.decoder.head(&self.ctx, &self.batch.wanted()[rows], self.logits.tensor_mut())
    }

    /// Brings the first rows of logits to the host.
    pub(crate) fn fetch(&mut self, rows: usize) -> Result<()> {
        self.logits.fetch(&self.ctx, rows)
    }
}

/// Forgets the last `tokens` tokens of every sequence.
pub(crate) fn shrink(sequences: &mut [Sequence], tokens: usize) -> Result<()> {
    sequences.iter_mut().try_for_each(|sequence| sequence.truncate(sequence.len() - tokens))
}
