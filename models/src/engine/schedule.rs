//! Who runs in a step, who waits, and who makes room.

use sinew_memory::Error as MemoryError;

use super::Engine;
use super::stream::Stream;
use crate::batch::Wanted;
use crate::limits::Limits;
use crate::{Error, Result};

/// Puts a stream in its place by rank, behind those of the same.
pub(super) fn insert(streams: &mut Vec<Stream>, stream: Stream) {
    let at = streams.partition_point(|other| (other.rank(), other.sample()) <= (stream.rank(), stream.sample()));
    streams.insert(at, stream);
}

impl Engine {
    /// Puts the next step together, and returns how many sequences it gives logits for, and of how many tokens it is.
    pub(super) fn plan(&mut self) -> Result<Planned> {
        self.make_room();
        self.admit()?;
        let mut planned = Planned { tokens: 0, rows: 0 };
        let budget = self.model.decoder().limits().max_rows;
        // One token of each that answers. Whoever makes room is behind.
        let mut at = 0;
        while at < self.running.len() && planned.tokens < budget {
            if self.running[at].decodes() {
                self.stage(at, 1, &mut planned)?;
            }
            at += 1;
        }
        self.plan_prompts(budget, &mut planned)?;
        if planned.tokens == 0 && !self.running.is_empty() {
            // Everybody behind it has made room, and it is not enough.
            let stream = self.running.remove(0);
            self.fail(stream);
        }
        Ok(planned)
    }

    /// Parts of prompts, in what is left of the budget: half of it to the first, and the other half to those of which
    /// the least is left, so that short ones do not wait for long ones and long ones go on.
    fn plan_prompts(&mut self, budget: usize, planned: &mut Planned) -> Result<()> {
        let prompts = |engine: &Self| engine.running.iter().position(|stream| !stream.is_staged() && !stream.decodes());
        if let Some(first) = prompts(self) {
            let left = budget - planned.tokens;
            let pending = |stream: &Stream| if stream.decodes() || stream.is_staged() { 0 } else { stream.pending() };
            let others: usize = self.running[first + 1..].iter().map(pending).sum();
            let share = left.div_ceil(2).max(left.saturating_sub(others));
            self.stage(first, share.min(self.running[first].pending()), planned)?;
            self.starved = (!self.running[first].is_staged()).then(|| self.running[first].rank());
        }
        while planned.tokens < budget {
            let waits = |(_, stream): &(usize, &Stream)| !stream.is_staged() && !stream.decodes();
            let shortest = self.running.iter().enumerate().filter(waits).min_by_key(|(_, stream)| stream.pending());
            let Some((at, stream)) = shortest else { break };
            let count = stream.pending().min(budget - planned.tokens);
            if !self.stage(at, count, planned)? {
                break;
            }
        }
        Ok(())
    }

    /// Adds tokens of a running sequence to the step, as many of `count` as the cache has room for. Those of a lower rank
    /// that are not part of the step make room for it. Says whether there was room for any.
    fn stage(&mut self, at: usize, count: usize, planned: &mut Planned) -> Result<bool> {
        let mut count = count;
        loop {
            let stream = &mut self.running[at];
            let whole = count == stream.pending();
            let (sequence, tokens) = stream.next(count);
            let wanted = if whole { Wanted::Last } else { Wanted::None };
            match self.model.runner.stage(sequence, tokens, wanted) {
                Ok(()) => {
                    stream.stage(count, whole.then_some(planned.rows));
                    planned.tokens += count;
                    planned.rows += usize::from(whole);
                    return Ok(true);
                }
                Err(Error::Memory(MemoryError::OutOfBlocks { .. })) => {}
                Err(error) => return Err(error),
            }
            if let Some(last) = self.running.iter().rposition(|stream| !stream.is_staged()).filter(|&last| last > at) {
                self.preempt(last);
                continue;
            }
            let room = self.model.cache().room(&self.running[at].sequence);
            if room == 0 || room >= count {
                return Ok(false);
            }
            count = room;
        }
    }

    /// The sequence of the lowest rank leaves the cache, where one of a higher rank could not take a step.
    fn make_room(&mut self) {
        let Some(starved) = self.starved.take() else { return };
        if self.running.last().is_some_and(|last| last.rank() > starved) {
            self.preempt(self.running.len() - 1);
        }
    }

    /// Lets in who waits, in order of rank, as far as there is room. Whoever outranks running sequences takes their place,
    /// if that is enough. Who begins with what another is about to run waits for it.
    fn admit(&mut self) -> Result<()> {
        let Limits { block_size, context, .. } = self.model.decoder().limits();
        let mut at = 0;
        while let Some(next) = self.waiting.get_mut(at) {
            let cache = self.model.cache();
            if next.follows(&self.running, cache, block_size) {
                at += 1;
                continue;
            }
            let next = &self.waiting[at];
            let (all, known) = (self.running.len(), next.known(cache));
            let outranking = self.running.partition_point(|stream| stream.rank() <= next.rank());
            let outranking = if self.running[outranking..].iter().all(|stream| next.may_displace(stream)) {
                outranking
            } else {
                all
            };
            let staying = [all, outranking].into_iter().find(|&staying| self.fits(next, known, staying));
            let Some(staying) = staying else {
                if all > 0 {
                    break;
                }
                // An answer that has filled the whole cache, and made room for one of a higher rank.
                let stream = self.waiting.remove(at);
                self.fail(stream);
                continue;
            };
            let mut stream = self.waiting.remove(at);
            let found = stream.found(cache, context)?;
            // What was found was free before, and may have been the room.
            if !self.fits(&stream, found.len(), staying) {
                if all == 0 {
                    drop(found);
                    self.fail(stream);
                    continue;
                }
                insert(&mut self.waiting, stream);
                break;
            }
            if staying < all {
                insert(&mut self.waiting, stream);
                self.preempt(all - 1);
                continue;
            }
            match stream.enter(&mut self.model.runner, found) {
                Ok(found) => {
                    match stream.let_in() {
                        Some(prompt) => {
                            self.stats.prompted += prompt as u64;
                            self.stats.found += found as u64;
                        }
                        None => self.stats.found_again += found as u64,
                    }
                    insert(&mut self.running, stream);
                }
                Err(error) => {
                    insert(&mut self.waiting, stream);
                    let full = matches!(error, Error::Memory(MemoryError::OutOfBlocks { .. }));
                    return if full { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Ends an answer that the whole cache is too small for.
    fn fail(&mut self, stream: Stream) {
        let tokens = self.cache().tokens();
        let why = format!("the cache of {tokens} tokens is full, and no other request is in it to make room");
        stream.fail(&why, &mut self.events);
    }

    /// Whether a sequence that waits, of whose tokens `known` are held, would fit beside the first `staying` of those that
    /// run, and what those are still to take: the rest of their prompts, and for each of their answers a
    /// block more, or as little as is left of it.
    fn fits(&self, next: &Stream, known: usize, staying: usize) -> bool {
        let Limits { max_sequences, block_size, context, .. } = self.model.decoder().limits();
        let (staying, leaving) = self.running.split_at(staying);
        let sequences: usize = staying.iter().map(Stream::samples).sum();
        let promised = |stream: &Stream| {
            let of_each = block_size.min(stream.to_come(context));
            stream.pending().saturating_add(of_each.saturating_mul(stream.samples()))
        };
        let staying = staying.iter().map(|stream| (&stream.sequence, promised(stream)));
        sequences + next.samples() <= max_sequences
            && self.model.cache().fits((known, next.len() - known), staying, leaving.iter().map(|s| &s.sequence))
    }

    /// A running sequence leaves the cache, and waits by its rank to run its tokens again.
    fn preempt(&mut self, at: usize) {
        let mut stream = self.running.remove(at);
        self.stats.swapped += u64::from(stream.leave(&mut self.model.runner));
        self.stats.preemptions += 1;
        insert(&mut self.waiting, stream);
    }
}

/// The size of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Sequences whose logits it gives.
    pub rows: usize,
}
