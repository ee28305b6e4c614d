//! Who runs in a step, who waits, and who makes room.

use sinew_memory::Error as MemoryError;

use super::job::{Job, Rank};
use super::request::Event;
use super::{EngineStats, RequestId};
use crate::cache::KvCache;
use crate::decoder::batch::Wanted;
use crate::load_options::Limits;
use crate::steps::runner::Staging;
use crate::{Error, Result};

/// The jobs of an engine, and which of them share the next step. It knows no model: steps are put together in a
/// [`Staging`], and run by who asks for them.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: Limits,
    /// In order of rank.
    waiting: Vec<Job>,
    /// In order of rank.
    running: Vec<Job>,
    /// One in `running` that could not take a step for want of blocks.
    starved: Option<Rank>,
    /// Of steps, and of who was let in and made room.
    stats: EngineStats,
}

/// The size of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepSize {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Sequences whose logits it gives.
    pub rows: usize,
}

/// Puts a job in its place by rank, behind those of the same.
fn insert(jobs: &mut Vec<Job>, job: Job) {
    let at = jobs.partition_point(|other| (other.rank(), other.sample()) <= (job.rank(), job.sample()));
    jobs.insert(at, job);
}

impl Schedule {
    /// One without jobs, of steps within these limits.
    pub fn new(limits: Limits) -> Self {
        let running = Vec::with_capacity(limits.max_sequences);
        Self { limits, waiting: Vec::new(), running, starved: None, stats: EngineStats::default() }
    }

    /// Counts of steps, and of who was let in and made room.
    pub fn stats(&self) -> EngineStats {
        EngineStats { waiting: self.waiting.len(), running: self.running.len(), ..self.stats }
    }

    /// Has a job wait.
    pub fn add(&mut self, job: Job) {
        insert(&mut self.waiting, job);
    }

    /// Takes out those of a request, or all.
    pub fn take_out(&mut self, request: Option<RequestId>) -> impl Iterator<Item = Job> {
        let is_of = move |job: &mut Job| request.is_none_or(|request| job.rank().request() == request);
        self.running.extract_if(.., is_of).chain(self.waiting.extract_if(.., is_of))
    }

    /// Those that the step gives logits, each with its row.
    pub fn rows(&mut self) -> impl Iterator<Item = (usize, &mut Job)> {
        self.running.iter_mut().filter_map(|job| job.row().map(|row| (row, job)))
    }

    /// Puts the next step together. An answer that the whole cache is too small for is ended.
    ///
    /// # Errors
    /// A failed device. What is part of the step is to be [taken back](Self::unstage).
    pub fn next_step(&mut self, staging: &mut Staging, events: &mut Vec<Event>) -> Result<StepSize> {
        staging.begin();
        self.make_room(staging);
        self.admit(staging, events)?;
        let mut size = StepSize::default();
        // One token of each that answers. Whoever makes room is behind.
        let mut at = 0;
        while at < self.running.len() && size.tokens < self.limits.max_rows {
            if self.running[at].decodes() {
                self.stage(at, 1, staging, &mut size)?;
            }
            at += 1;
        }
        self.plan_prompts(staging, &mut size)?;
        if size.tokens == 0 && !self.running.is_empty() {
            // Everybody behind it has made room, and it is not enough.
            fail(&self.running.remove(0), staging, events);
        }
        Ok(size)
    }

    /// Takes back what is part of a step that failed.
    pub fn unstage(&mut self) -> Result<()> {
        self.running.iter_mut().try_for_each(Job::unstage)
    }

    /// Notes that the step was run. `answer` is given each job that has logits, with their row; it says whether that is
    /// whole, and what has parted from it and goes on.
    pub fn advance(
        &mut self,
        cache: &KvCache,
        mut answer: impl FnMut(&mut Job, usize, &mut Vec<Job>) -> bool,
    ) -> Result<()> {
        self.stats.steps += 1;
        let (mut at, mut parted) = (0, Vec::new());
        while let Some(job) = self.running.get_mut(at) {
            let (prefilled, decoded, row) = job.run();
            if prefilled + decoded > 0 {
                job.publish(cache)?;
            }
            self.stats.prefilled += prefilled as u64;
            self.stats.decoded += decoded as u64;
            if row.is_some_and(|row| answer(job, row, &mut parted)) {
                self.running.remove(at);
            } else {
                at += 1;
            }
            for job in parted.drain(..) {
                self.running.insert(at, job);
                at += 1;
            }
        }
        Ok(())
    }

    /// Parts of prompts, in what is left of the budget: half of it to the first, and the other half to those of which
    /// the least is left, so that short ones do not wait for long ones and long ones go on.
    fn plan_prompts(&mut self, staging: &mut Staging, size: &mut StepSize) -> Result<()> {
        let budget = self.limits.max_rows;
        let waits = |job: &Job| !job.is_staged() && !job.decodes();
        if let Some(first) = self.running.iter().position(waits) {
            let left = budget - size.tokens;
            let others: usize = self.running[first + 1..].iter().filter(|job| waits(job)).map(Job::pending).sum();
            let share = left.div_ceil(2).max(left.saturating_sub(others));
            self.stage(first, share.min(self.running[first].pending()), staging, size)?;
            self.starved = (!self.running[first].is_staged()).then(|| self.running[first].rank());
        }
        while size.tokens < budget {
            let prompts = self.running.iter().enumerate().filter(|(_, job)| waits(job));
            let Some((at, job)) = prompts.min_by_key(|(_, job)| job.pending()) else { break };
            let count = job.pending().min(budget - size.tokens);
            if !self.stage(at, count, staging, size)? {
                break;
            }
        }
        Ok(())
    }

    /// Adds tokens of a running sequence to the step, as many of `count` as the cache has room for. Those of a lower rank
    /// that are not part of the step make room for it. Says whether there was room for any.
    fn stage(&mut self, at: usize, count: usize, staging: &mut Staging, size: &mut StepSize) -> Result<bool> {
        let mut count = count;
        loop {
            let job = &mut self.running[at];
            let whole = count == job.pending();
            let (sequence, tokens) = job.next(count);
            let wanted = if whole { Wanted::Last } else { Wanted::None };
            match staging.stage(sequence, tokens, wanted) {
                Ok(()) => {
                    job.stage(count, whole.then_some(size.rows));
                    size.tokens += count;
                    size.rows += usize::from(whole);
                    return Ok(true);
                }
                Err(Error::Memory(MemoryError::OutOfBlocks { .. })) => {}
                Err(error) => return Err(error),
            }
            if let Some(last) = self.running.iter().rposition(|job| !job.is_staged()).filter(|&last| last > at) {
                self.preempt(last, staging);
                continue;
            }
            let room = staging.cache().room(&self.running[at].sequence);
            if room == 0 || room >= count {
                return Ok(false);
            }
            count = room;
        }
    }

    /// The sequence of the lowest rank leaves the cache, where one of a higher rank could not take a step.
    fn make_room(&mut self, staging: &mut Staging) {
        let Some(starved) = self.starved.take() else { return };
        if self.running.last().is_some_and(|last| last.rank() > starved) {
            self.preempt(self.running.len() - 1, staging);
        }
    }

    /// Lets in who waits, in order of rank, as far as there is room. Whoever outranks running sequences takes their place,
    /// if that is enough. Who begins with what another is about to run waits for it.
    fn admit(&mut self, staging: &mut Staging, events: &mut Vec<Event>) -> Result<()> {
        let mut at = 0;
        while let Some(next) = self.waiting.get_mut(at) {
            let cache = staging.cache();
            if next.follows(&self.running, cache, self.limits.block_size) {
                at += 1;
                continue;
            }
            let next = &self.waiting[at];
            let (all, known) = (self.running.len(), next.known(cache));
            let outranking = self.running.partition_point(|job| job.rank() <= next.rank());
            let outranking =
                if self.running[outranking..].iter().all(|job| next.may_displace(job)) { outranking } else { all };
            let staying = [all, outranking].into_iter().find(|&staying| self.fits(next, known, staying, cache));
            let Some(staying) = staying else {
                if all > 0 {
                    break;
                }
                // An answer that has filled the whole cache, and made room for one of a higher rank.
                fail(&self.waiting.remove(at), staging, events);
                continue;
            };
            let mut job = self.waiting.remove(at);
            let found = job.found(cache, self.limits.context)?;
            // What was found was free before, and may have been the room.
            if !self.fits(&job, found.len(), staying, cache) {
                if all == 0 {
                    drop(found);
                    fail(&job, staging, events);
                    continue;
                }
                insert(&mut self.waiting, job);
                break;
            }
            if staying < all {
                insert(&mut self.waiting, job);
                self.preempt(all - 1, staging);
                continue;
            }
            match job.enter(staging, found) {
                Ok(found) => {
                    match job.let_in() {
                        Some(prompt) => {
                            self.stats.prompted += prompt as u64;
                            self.stats.found += found as u64;
                        }
                        None => self.stats.found_again += found as u64,
                    }
                    insert(&mut self.running, job);
                }
                Err(error) => {
                    insert(&mut self.waiting, job);
                    let full = matches!(error, Error::Memory(MemoryError::OutOfBlocks { .. }));
                    return if full { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    /// Whether a sequence that waits, of whose tokens `known` are held, would fit beside the first `staying` of those that
    /// run, and what those are still to take: the rest of their prompts, and for each of their answers a
    /// block more, or as little as is left of it.
    fn fits(&self, next: &Job, known: usize, staying: usize, cache: &KvCache) -> bool {
        let Limits { max_sequences, block_size, context, .. } = self.limits;
        let (staying, leaving) = self.running.split_at(staying);
        let sequences: usize = staying.iter().map(Job::samples).sum();
        let promised = |job: &Job| {
            let of_each = block_size.min(job.to_come(context));
            job.pending().saturating_add(of_each.saturating_mul(job.samples()))
        };
        let staying = staying.iter().map(|job| (&job.sequence, promised(job)));
        sequences + next.samples() <= max_sequences
            && cache.fits((known, next.len() - known), staying, leaving.iter().map(|job| &job.sequence))
    }

    /// A running sequence leaves the cache, and waits by its rank to run its tokens again.
    fn preempt(&mut self, at: usize, staging: &mut Staging) {
        let mut job = self.running.remove(at);
        self.stats.swapped += u64::from(job.leave(staging));
        self.stats.preemptions += 1;
        insert(&mut self.waiting, job);
    }
}

/// Ends an answer that the whole cache is too small for.
fn fail(job: &Job, staging: &Staging, events: &mut Vec<Event>) {
    let tokens = staging.cache().tokens();
    job.fail(&format!("the cache of {tokens} tokens is full, and no other request is in it to make room"), events);
}

#[cfg(test)]
mod tests;
