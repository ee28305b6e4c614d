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
//! | `stream` | one answer on its way: its tokens, its sequence |
//! | `schedule` | who runs in a step, who waits, who makes room |
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
mod replay;
mod request;
mod schedule;
mod stream;
mod trace;

use crate::answering::Finish;
use crate::cache::KvCache;
use crate::language::LanguageModel;
use crate::{Error, Result};

pub use self::handle::{Answers, EngineHandle};
pub use self::replay::{Percentiles, Replayed};
use self::request::Checks;
pub use self::request::{Event, Happening, Request, RequestId};
use self::stream::{Rank, Stream};
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
    /// In order of rank.
    waiting: Vec<Stream>,
    /// In order of rank.
    running: Vec<Stream>,
    /// A sequence in `running` that could not take a step for want of blocks.
    starved: Option<Rank>,
    events: Vec<Event>,
    /// What happened between two steps.
    late: Vec<Event>,
    next_id: u64,
    stats: EngineStats,
}

impl Engine {
    /// An engine that owns its model. A step has at most `max_sequences` sequences and `prefill_chunk` tokens, or one of
    /// each sequence where that is more, as the model was loaded; all sequences together have at most the tokens of its
    /// cache.
    pub fn new(model: LanguageModel, options: EngineOptions) -> Self {
        let most = model.decoder().limits().max_sequences;
        Self {
            model,
            options: EngineOptions { max_waiting: options.max_waiting.max(1), ..options },
            waiting: Vec::new(),
            running: Vec::with_capacity(most),
            starved: None,
            // A token and an end of each.
            events: Vec::with_capacity(2 * most),
            late: Vec::new(),
            next_id: 0,
            stats: EngineStats::default(),
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
        EngineStats { waiting: self.waiting.len(), running: self.running.len(), ..self.stats }
    }

    /// Whether nothing is to be done: no request waits or runs, and no event is to be told.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.late.is_empty()
    }

    /// Refuses a request that [`Engine::submit`] would refuse however little waits.
    ///
    /// # Errors
    /// A prompt or options that the model, or the whole cache, could never serve.
    pub fn check(&self, request: &Request) -> Result<()> {
        self.checks().check(request)
    }

    /// Takes a request. It is let in by one of the next steps.
    ///
    /// # Errors
    /// [`Error::Busy`] where too many wait, or have ended of which no step has told; a prompt or options that the model, or
    /// the whole cache, could never serve.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let id = RequestId(self.next_id);
        self.submit_as(id, request)?;
        Ok(id)
    }

    fn submit_as(&mut self, id: RequestId, request: Request) -> Result<()> {
        self.check(&request)?;
        // Answers that end without a step are told by the next, and take room until then: all of as many requests.
        let (most, each) = (self.options.max_waiting, self.model.decoder().limits().max_sequences);
        if self.waiting.len() >= most || self.late.len() >= most.saturating_add(1).saturating_mul(each) {
            return Err(Error::Busy { waiting: self.waiting.len().saturating_add(self.late.len()) });
        }
        let tokenizer = if request.text { self.model.shared_tokenizer() } else { None };
        let rank = Rank::new(self.stats.steps, request.priority, self.options.patience, id);
        let stream = Stream::new(rank, tokenizer, self.model.decoder().config(), request, self.model.cache())?;
        self.next_id = self.next_id.max(id.0 + 1);
        if stream.wants_nothing() {
            for sample in 0..stream.samples() {
                self.late.push(Event::finished(id, sample, Finish::Length, String::new()));
            }
            return Ok(());
        }
        schedule::insert(&mut self.waiting, stream);
        Ok(())
    }

    fn checks(&self) -> Checks {
        let decoder = self.model.decoder();
        Checks {
            vocab_size: decoder.config().vocab_size,
            context: decoder.limits().context,
            max_sequences: decoder.limits().max_sequences,
            cache_tokens: self.model.cache().tokens(),
            has_tokenizer: self.model.has_tokenizer(),
        }
    }

    /// Ends a request; the next step tells of it. Says whether it was still there.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let before = self.late.len();
        for streams in [&mut self.waiting, &mut self.running] {
            streams.retain(|stream| {
                if stream.rank().request() == request {
                    for sample in stream.sample()..stream.sample() + stream.samples() {
                        self.late.push(Event::finished(request, sample, Finish::Cancelled, String::new()));
                    }
                }
                stream.rank().request() != request
            });
        }
        self.late.len() > before
    }

    /// One forward pass, and what came of it. With nothing to run it returns at once.
    ///
    /// # Errors
    /// A failed device. No sequence has changed then, and the step may be tried again.
    pub fn step(&mut self) -> Result<&[Event]> {
        self.events.clear();
        self.events.append(&mut self.late);
        self.model.runner.begin();
        let outcome = self.plan().and_then(|planned| match planned.tokens {
            0 => Ok(()),
            _ => self.run(planned.rows),
        });
        if let Err(error) = outcome {
            self.running.iter_mut().try_for_each(Stream::unstage)?;
            // What has ended meanwhile is told by the next step.
            self.late.append(&mut self.events);
            return Err(error);
        }
        self.count_finished();
        Ok(&self.events)
    }

    fn count_finished(&mut self) {
        self.stats.finished += self.events.iter().filter(|event| event.is_last()).count() as u64;
    }

    /// After a step that failed: ends all that runs and waits, of which the events tell, behind what has ended before.
    fn abandon(&mut self, why: &str) {
        self.events.clear();
        self.events.append(&mut self.late);
        for streams in [&mut self.running, &mut self.waiting] {
            streams.drain(..).for_each(|stream| stream.fail(why, &mut self.events));
        }
        self.count_finished();
    }

    /// Runs the step that is put together, draws the next token of each of the sequences that it gives logits, and tells
    /// what came of it.
    fn run(&mut self, rows: usize) -> Result<()> {
        let LanguageModel { runner, logits, .. } = &mut self.model;
        runner.run()?;
        runner.head(0..rows, logits)?;
        self.draw(rows)?;
        self.stats.steps += 1;
        let context = self.model.decoder().limits().context;
        let mut at = 0;
        while at < self.running.len() {
            let stream = &mut self.running[at];
            let (prefilled, decoded, row) = stream.run();
            if prefilled + decoded > 0 {
                stream.publish(self.model.cache())?;
            }
            self.stats.prefilled += prefilled as u64;
            self.stats.decoded += decoded as u64;
            let Some(row) = row else {
                at += 1;
                continue;
            };
            let logits = &self.model.logits;
            let (drawn, logits) = (logits.drawn(row), logits.row(row));
            // All answers to a prompt read it once, and part here.
            let forks = match stream.forks(self.model.cache(), self.model.decoder().config()) {
                Ok(forks) => forks,
                Err(error) => {
                    self.running.remove(at).fail(&error.one_line(), &mut self.events);
                    continue;
                }
            };
            if stream.answer(drawn, logits, context, &mut self.events) {
                self.running.remove(at);
            } else {
                at += 1;
            }
            for mut fork in forks {
                if !fork.answer(None, logits, context, &mut self.events) {
                    self.running.insert(at, fork);
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// Has a device that draws itself draw for the sequences that want no more of it, and brings the logits to the host
    /// where others do.
    fn draw(&mut self, rows: usize) -> Result<()> {
        let LanguageModel { runner, logits, .. } = &mut self.model;
        logits.draw(runner.context(), rows, |asked| {
            let mut wanted = false;
            for stream in &mut self.running {
                if let Some(row) = stream.row() {
                    asked[row] = stream.ask();
                    wanted |= stream.wants_logits();
                }
            }
            wanted
        })
    }
}
