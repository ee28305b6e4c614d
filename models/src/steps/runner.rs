//! Steps of a decoder on a paged cache: what is put together runs as one forward pass.

use std::ops::Range;
use std::sync::Arc;

use sinew_ops::Context;

use super::check_length;
use super::logits::Logits;
use crate::cache::{CacheShape, KvCache, Sequence};
use crate::config::check_tokens;
use crate::decoder::Decoder;
use crate::decoder::batch::{Batch, Wanted};
use crate::load_options::Limits;
use crate::{Error, Result};

/// A cache, and the step that is put together of sequences in it.
#[derive(Debug)]
pub(crate) struct Staging {
    ctx: Arc<Context>,
    cache: KvCache,
    batch: Batch,
}

/// A decoder, and what it runs.
#[derive(Debug)]
pub(crate) struct Runner {
    decoder: Decoder,
    pub(crate) staging: Staging,
}

impl Staging {
    /// Steps within these limits.
    pub(crate) fn new(ctx: Arc<Context>, cache: KvCache, limits: &Limits) -> Self {
        let batch = Batch::for_limits(limits, cache.shape().groups().len());
        Self { ctx, cache, batch }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Another cache in the place of the one that there is, while no sequence holds tokens.
    pub(crate) fn replace_cache(&mut self, shape: CacheShape) -> Result<()> {
        self.cache = KvCache::new(&self.ctx, shape)?;
        Ok(())
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

    /// Rows of which the step is asked for logits or states.
    pub(crate) fn wanted(&self) -> usize {
        self.batch.wanted().len()
    }

    /// Moves a sequence to the host.
    ///
    /// # Errors
    /// Those of [`KvCache::swap_out`].
    pub(crate) fn swap_out(&mut self, sequence: &mut Sequence) -> Result<()> {
        self.cache.swap_out(&self.ctx, sequence)
    }

    /// Moves a sequence back from the host, behind what was found of its tokens.
    ///
    /// # Errors
    /// Those of [`KvCache::swap_in`].
    pub(crate) fn swap_in(&mut self, sequence: &mut Sequence, found: Sequence) -> Result<usize> {
        self.cache.swap_in(&self.ctx, sequence, found)
    }
}

impl Runner {
    /// Steps within the limits that a decoder was loaded for.
    pub(crate) fn new(ctx: Arc<Context>, decoder: Decoder, cache: KvCache) -> Self {
        let staging = Staging::new(ctx, cache, &decoder.limits());
        Self { decoder, staging }
    }

    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Turns queries and keys from here on as a model that was loaded for `context` tokens.
    ///
    /// # Errors
    /// Sequences that hold tokens, which were turned otherwise, or out of memory.
    pub(crate) fn rotate_for(&mut self, context: usize) -> Result<()> {
        if self.staging.cache.stats().used > 0 {
            return Err(Error::Input("other rotary frequencies while sequences hold tokens".to_owned()));
        }
        self.decoder.rotate_for(&self.staging.ctx, context)?;
        self.staging.cache.forget_prefixes();
        Ok(())
    }

    /// An empty sequence of up to the context's tokens.
    pub(crate) fn sequence(&self) -> Sequence {
        self.staging.cache.sequence(self.decoder.limits().context)
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

    /// Runs the step. After an error its sequences have tokens that the cache does not: they are to be truncated.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.decoder.forward(&self.staging.ctx, &mut self.staging.cache, &self.staging.batch)
    }

    /// Runs tokens, equally many for every sequence, as one step. After an error every sequence is as long as before.
    pub(crate) fn forward(&mut self, sequences: &mut [Sequence], tokens: &[u32], wanted: Wanted) -> Result<()> {
        self.staging.begin();
        let Some(each) = tokens.len().checked_div(sequences.len()) else { return Ok(()) };
        let mut staged = 0;
        let mut outcome = Ok(());
        for (sequence, tokens) in sequences.iter_mut().zip(tokens.chunks(each)) {
            outcome = self.staging.stage(sequence, tokens, wanted);
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
    pub(crate) fn head(&mut self, rows: Range<usize>, logits: &mut Logits) -> Result<()> {
        self.decoder.head(&self.staging.ctx, &self.staging.batch.wanted()[rows], logits.tensor_mut())
    }

    /// The hidden states of all rows that the step was asked for, of a decoder without a head.
    pub(crate) fn hidden(&mut self) -> Result<Vec<f32>> {
        self.decoder.hidden(&self.staging.ctx, self.staging.batch.wanted())
    }
}

/// Forgets the last `tokens` tokens of every sequence.
pub(crate) fn shrink(sequences: &mut [Sequence], tokens: usize) -> Result<()> {
    sequences.iter_mut().try_for_each(|sequence| sequence.truncate(sequence.len() - tokens))
}
