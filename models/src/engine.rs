//! Many requests at once: prompts and answers of all of them share steps of one model and one paged cache.
//!
//! [`Engine::step`] is one forward pass. Its tokens are one of each sequence that answers, and with what is left of the
//! budget, which is the model's `prefill_chunk` or, where those are more, its `max_sequences`, parts of prompts
//! (continuous batching with chunked prefill, as Orca, <https://www.usenix.org/conference/osdi22/presentation/yu>, and
//! Sarathi-Serve, <https://arxiv.org/abs/2403.02310>, describe them). On a CPU what a request is answered does not depend
//! on the others, to the bit.
//!
//! | part | what it decides |
//! |---|---|
//! | `request` | what is asked for, and what comes back |
//! | `job` | one answer on its way: its tokens, its sequence |
//! | `schedule` | who runs in a step, who waits, who makes room |
//! | `many` | requests that are all there: which of them go together |
//! | `handle` | the same on a thread, with a stream of events for each request |
//! | `trace`, `replay` | requests as they came, run again and timed |
//!
//! Requests are served in order of rank: as they come, and one of a higher priority as if it had come earlier
//! ([`EngineOptions::patience`]), so that none waits for ever. A request is let in when its prompt fits into the cache
//! beside what is running. Where blocks run out later, the sequence of the lowest rank makes room: it goes to the host
//! if there is room ([`LoadOptions::swap_tokens`](crate::LoadOptions)), or its tokens are run again when there is, which
//! on a CPU gives the same bits. Whole blocks of tokens that sequences begin with alike are run and held once, also after
//! those that ran them have ended, until their room is needed (as in vLLM, <https://arxiv.org/abs/2309.06180>).

mod handle;
mod job;
mod many;
mod replay;
mod request;
mod schedule;
mod trace;

use crate::answering::Finish;
use crate::cache::KvCache;
use crate::language::LanguageModel;
use crate::steps::Steps;
use crate::{Error, Result};

pub use self::handle::{Answers, EngineHandle};
use self::job::{Job, Rank};
pub use self::many::Many;
pub use self::replay::{Percentiles, Replayed};
use self::request::Checks;
pub use self::request::{Event, Happening, Request, RequestId};
use self::schedule::Schedule;
pub use self::trace::{TraceLine, TraceOptions};

/// How an engine treats requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// The most requests that wait to be let in, at least one; more are refused with [`Error::Busy`].
    pub max_waiting: usize,
    /// How many steps earlier a request counts as having come for each level of priority.
    pub patience: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { max_waiting: 1024, patience: 256 }
    }
}

/// What an engine has done, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences that wait to be let in, those that made room among them.
    pub waiting: usize,
    /// Sequences in the cache.
    pub running: usize,
    /// Forward passes.
    pub steps: u64,
    /// Tokens of prompts, and of answers that are run again, in those passes.
    pub prefilled: u64,
    /// Tokens of answers that were run one by one.
    pub decoded: u64,
    /// Tokens of the prompts that were let in.
    pub prompted: u64,
    /// How many of them were found in the cache, and need not be run.
    pub found: u64,
    /// The same of sequences that made room, and came back to what was left of theirs.
    pub found_again: u64,
    /// Times that a sequence had to make room.
    pub preemptions: u64,
    /// How many of them went to the host, so that nothing of them is run again.
    pub swapped: u64,
    /// Answers that ended, for whatever reason.
    pub finished: u64,
}

impl EngineStats {
    /// The share of prompts that was found in the cache, from 0 to 1. What sequences that made room find of their own is
    /// none of it.
    pub fn hit_rate(&self) -> f64 {
        if self.prompted == 0 { 0.0 } else { self.found as f64 / self.prompted as f64 }
    }

    /// What was done since `before`, and what is held now.
    pub fn since(self, before: &Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            prefilled: self.prefilled - before.prefilled,
            decoded: self.decoded - before.decoded,
            prompted: self.prompted - before.prompted,
            found: self.found - before.found,
            found_again: self.found_again - before.found_again,
            preemptions: self.preemptions - before.preemptions,
            swapped: self.swapped - before.swapped,
            finished: self.finished - before.finished,
            ..self
        }
    }
}

/// Runs many requests on one model, step by step.
///
/// ```no_run
/// use sinew_models::{Engine, EngineOptions, Happening, LanguageModel, LoadOptions, Request};
///
/// let options = LoadOptions { max_sequences: 8, cache_tokens: Some(16_384), ..LoadOptions::default() };
/// let model = LanguageModel::load("path/to/model", &options)?;
/// let prompts = [model.encode("Once upon a time")?, model.encode("The sea")?];
/// let mut engine = Engine::new(model, EngineOptions::default());
/// for prompt in prompts {
///     engine.submit(Request::new(prompt))?;
/// }
/// while !engine.is_idle() {
///     for event in engine.step()? {
///         if let Happening::Token { text, .. } = &event.what {
///             println!("{}: {text}", event.request);
///         }
///     }
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    model: LanguageModel,
    options: EngineOptions,
    schedule: Schedule,
    events: Vec<Event>,
    /// What happened between two steps.
    late: Vec<Event>,
    next_id: u64,
    /// Answers that ended.
    finished: u64,
}

impl Engine {
    /// An engine that owns its model. A step has at most `max_sequences` sequences and `prefill_chunk` tokens, or one of
    /// each sequence where that is more, as the model was loaded; all sequences together have at most the tokens of its
    /// cache.
    pub fn new(model: LanguageModel, options: EngineOptions) -> Self {
        let limits = model.decoder().limits();
        Self {
            model,
            options: EngineOptions { max_waiting: options.max_waiting.max(1), ..options },
            schedule: Schedule::new(limits),
            // A token and an end of each.
            events: Vec::with_capacity(2 * limits.max_sequences),
            late: Vec::new(),
            next_id: 0,
            finished: 0,
        }
    }

    /// The model.
    pub fn model(&self) -> &LanguageModel {
        &self.model
    }

    /// The model, once nobody else is to be served; what is running is forgotten.
    pub fn into_model(self) -> LanguageModel {
        self.model
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.model.cache()
    }

    /// Counts since the engine was made.
    pub fn stats(&self) -> EngineStats {
        EngineStats { finished: self.finished, ..self.schedule.stats() }
    }

    /// Whether nothing is to be done: no request waits or runs, and no event is to be told.
    pub fn is_idle(&self) -> bool {
        let EngineStats { waiting, running, .. } = self.stats();
        waiting == 0 && running == 0 && self.late.is_empty()
    }

    /// Whether as many wait as may.
    fn is_full(&self) -> bool {
        self.stats().waiting >= self.max_waiting()
    }

    fn max_waiting(&self) -> usize {
        self.options.max_waiting
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.next_id)
    }

    /// Refuses a request that [`Engine::submit`] would refuse however little waits.
    ///
    /// # Errors
    /// A prompt or options that the model, or the whole cache, could never serve.
    pub fn check(&self, request: &Request) -> Result<()> {
        Checks::of(&self.model).check(request)
    }

    /// Takes a request. It is let in by one of the next steps.
    ///
    /// # Errors
    /// [`Error::Busy`] where too many wait, or have ended of which no step has told; a prompt or options that the model, or
    /// the whole cache, could never serve.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let id = self.next_id();
        self.submit_as(id, request)?;
        Ok(id)
    }

    fn submit_as(&mut self, id: RequestId, request: Request) -> Result<()> {
        self.check(&request)?;
        // Answers that end without a step are told by the next, and take room until then: all of as many requests.
        let (most, each) = (self.max_waiting(), self.model.decoder().limits().max_sequences);
        let EngineStats { waiting, steps, .. } = self.stats();
        if self.is_full() || self.late.len() >= most.saturating_add(1).saturating_mul(each) {
            return Err(Error::Busy { waiting: waiting.saturating_add(self.late.len()) });
        }
        let tokenizer = if request.text { self.model.shared_tokenizer() } else { None };
        let rank = Rank::new(steps, request.priority, self.options.patience, id);
        let eos = &self.model.decoder().config().eos_token_ids;
        let job = Job::new(rank, tokenizer, eos, request, self.model.cache())?;
        self.next_id = self.next_id.max(id.0 + 1);
        if job.wants_nothing() {
            job.finish(Finish::Length, &mut self.late);
        } else {
            self.schedule.add(job);
        }
        Ok(())
    }

    /// Ends a request; the next step tells of it. Says whether it was still there.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let before = self.late.len();
        self.schedule.take_out(Some(request)).for_each(|job| job.finish(Finish::Cancelled, &mut self.late));
        self.late.len() > before
    }

    /// One forward pass, and what came of it. With nothing to run it returns at once.
    ///
    /// # Errors
    /// A failed device. No sequence has changed then, and the step may be tried again.
    pub fn step(&mut self) -> Result<&[Event]> {
        self.events.clear();
        self.events.append(&mut self.late);
        let planned = self.schedule.next_step(&mut self.model.steps.runner.staging, &mut self.events);
        let outcome = planned.and_then(|planned| match planned.tokens {
            0 => Ok(()),
            _ => self.run(planned.rows),
        });
        if let Err(error) = outcome {
            self.schedule.unstage()?;
            // What has ended meanwhile is told by the next step.
            self.late.append(&mut self.events);
            return Err(error);
        }
        self.count_finished();
        Ok(&self.events)
    }

    fn count_finished(&mut self) {
        self.finished += self.events.iter().filter(|event| event.is_last()).count() as u64;
    }

    /// A step, or where that fails the end of all that runs and waits: what a device has failed at once it is not asked
    /// again. What came of it is handed out.
    fn step_or_end(&mut self) -> impl Iterator<Item = Event> {
        if let Err(error) = self.step() {
            self.events.append(&mut self.late);
            let why = error.one_line();
            self.schedule.take_out(None).for_each(|job| job.fail(&why, &mut self.events));
            self.count_finished();
        }
        self.events.drain(..)
    }

    /// Runs the step that is put together, draws the next token of each of the sequences that it gives logits, and tells
    /// what came of it.
    fn run(&mut self, rows: usize) -> Result<()> {
        let Self { model: LanguageModel { steps, .. }, schedule, events, .. } = self;
        // A device that draws itself does for the sequences that want no more of the logits.
        steps.run(rows, |asked| {
            let mut wanted = false;
            for (row, job) in schedule.rows() {
                asked[row] = job.ask();
                wanted |= job.wants_logits();
            }
            wanted
        })?;
        let Steps { runner, logits, .. } = steps;
        let (cache, decoder) = (runner.staging.cache(), runner.decoder());
        let (context, eos) = (decoder.limits().context, &decoder.config().eos_token_ids);
        schedule.advance(cache, |job, row, parted| {
            let (drawn, logits) = (logits.drawn(row), logits.row(row));
            // All answers to a prompt read it once, and part here.
            let forks = match job.forks(cache, eos) {
                Ok(forks) => forks,
                Err(error) => {
                    job.fail(&error.one_line(), events);
                    return true;
                }
            };
            let is_whole = job.answer(drawn, logits, context, events);
            for mut fork in forks {
                if !fork.answer(None, logits, context, events) {
                    parted.push(fork);
                }
            }
            is_whole
        })
    }
}
