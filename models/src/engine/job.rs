//! One answer on its way.

use std::sync::Arc;

use crate::answering::{Answering, Finish, GenerateOptions};
use crate::cache::{KvCache, Sequence};
use crate::engine::request::{Event, Happening, Request, RequestId};
use crate::sampling::{Asked, History};
use crate::steps::runner::Staging;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Whose turn comes first: the lower one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The step at which it counts as having come.
    came: i64,
    request: RequestId,
}

impl Rank {
    pub fn new(step: u64, priority: i32, patience: u32, request: RequestId) -> Self {
        // A run does not have 2^63 steps.
        Self { came: (step as i64).saturating_sub(i64::from(priority) * i64::from(patience)), request }
    }

    pub fn request(&self) -> RequestId {
        self.request
    }
}

/// Whose tokens a job waits for.
#[derive(Debug, Clone, Copy)]
struct Behind {
    leader: (Rank, usize),
    /// How many of them it begins with as well, in whole blocks.
    tokens: usize,
}

/// One answer on its way: of its tokens the first are in the cache, and the others are to be run.
#[derive(Debug)]
pub(super) struct Job {
    rank: Rank,
    sample: usize,
    /// Answers that part from it when the prompt is run, itself among them.
    samples: usize,
    /// Prompt and answer.
    tokens: Vec<u32>,
    prompt: usize,
    salt: u64,
    /// Whether it was in the cache before.
    was_in: bool,
    priority: i32,
    /// While it waits for what another is about to run: that one, and how many tokens they begin with alike.
    behind: Option<Behind>,
    /// Whether it has ever waited so.
    stood_back: bool,
    options: GenerateOptions,
    tokenizer: Option<Arc<Tokenizer>>,
    answering: Answering,
    /// In the cache, those of this step included.
    pub sequence: Sequence,
    staged: usize,
    /// The row of logits that this step gives it.
    row: Option<usize>,
}

impl Job {
    pub fn new(
        rank: Rank,
        tokenizer: Option<Arc<Tokenizer>>,
        eos: &[u32],
        request: Request,
        cache: &KvCache,
    ) -> Result<Self> {
        let Request { prompt: tokens, options, samples, salt, priority, .. } = request;
        let options = options.for_prompt(tokens.len())?;
        let answering = Answering::new(tokenizer.clone(), eos, &options)?;
        let (prompt, sequence) = (tokens.len(), cache.sequence(0));
        Ok(Self {
            rank,
            sample: 0,
            samples,
            tokens,
            prompt,
            salt,
            was_in: false,
            priority,
            behind: None,
            stood_back: false,
            options,
            tokenizer,
            answering,
            sequence,
            staged: 0,
            row: None,
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The place of its first answer among those of the request.
    pub fn sample(&self) -> usize {
        self.sample
    }

    /// Sequences that it is, or is going to be.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Whether no token is asked for.
    pub fn wants_nothing(&self) -> bool {
        self.options.max_new_tokens == 0
    }

    /// Tokens that are not in the cache.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.sequence.len()
    }

    /// Tokens that the cache may yet get of it beyond its pending ones: its answers', of which the last is never run.
    pub fn to_come(&self, context: usize) -> usize {
        let most = self.prompt.saturating_add(self.options.max_new_tokens).saturating_sub(1).min(context);
        most.saturating_sub(self.tokens.len())
    }

    /// Whether it answers: only its last token is to be run.
    pub fn decodes(&self) -> bool {
        self.tokens.len() > self.prompt && self.pending() == 1
    }

    /// What it could start with of what others have run. Its last token is to be run in any case.
    fn start(&self) -> &[u32] {
        let swapped = self.sequence.is_swapped();
        &self.tokens[..if swapped { self.sequence.len() } else { self.tokens.len() - 1 }]
    }

    /// How many of its tokens are in the cache already, of other sequences.
    pub fn known(&self, cache: &KvCache) -> usize {
        cache.known(self.salt, self.start())
    }

    /// Tokens that the cache is to have of it when its pending ones are run.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether one of `running` is about to run tokens, in whole blocks, that this one begins with as well. While that goes
    /// on, tokens are compared once.
    pub fn follows(&mut self, running: &[Self], cache: &KvCache, block_size: usize) -> bool {
        if let Some(behind) = &self.behind {
            let leader = running.iter().find(|leader| (leader.rank, leader.sample) == behind.leader);
            if leader.is_some_and(|leader| leader.pending() > 1 && leader.sequence.len() < behind.tokens) {
                return true;
            }
        }
        self.behind = running.iter().find_map(|leader| self.behind(leader, cache, block_size));
        self.stood_back |= self.behind.is_some();
        self.behind.is_some()
    }

    fn behind(&self, leader: &Self, cache: &KvCache, block_size: usize) -> Option<Behind> {
        if leader.salt != self.salt || leader.pending() == 1 || self.sequence.is_swapped() {
            return None;
        }
        let common = self.start().iter().zip(leader.start()).take_while(|(a, b)| a == b).count();
        let tokens = common / block_size * block_size;
        // What it has run and a window has left behind since, it does not run again.
        let waits = tokens > leader.sequence.len() && tokens > self.known(cache);
        waits.then_some(Behind { leader: (leader.rank, leader.sample), tokens })
    }

    /// Whether it may take the place of another that runs, which it outranks: not where that came in while this one stood
    /// back for what a third ran, unless its priority is higher.
    pub fn may_displace(&self, other: &Self) -> bool {
        !self.stood_back || self.priority > other.priority
    }

    /// What the cache has of a sequence that is not in it, which others have run, as one that grows without allocating on
    /// the host.
    ///
    /// # Errors
    /// None that a sequence that is not in the cache has.
    pub fn found(&mut self, cache: &KvCache, context: usize) -> Result<Sequence> {
        let most = self.tokens.len().saturating_add(self.options.max_new_tokens).min(context + 1);
        self.tokens.reserve(most.saturating_sub(self.tokens.len()));
        let mut found = cache.sequence(most);
        cache.start(&mut found, self.salt, self.start())?;
        Ok(found)
    }

    /// Takes its place in the cache, which has `found` of it, and returns how many of its tokens need not be run for that.
    ///
    /// # Errors
    /// No room for what was swapped out, or a failed device; it is as before.
    pub fn enter(&mut self, staging: &mut Staging, found: Sequence) -> Result<usize> {
        if self.sequence.is_swapped() {
            staging.swap_in(&mut self.sequence, found)?;
            return Ok(0);
        }
        self.sequence = found;
        Ok(self.sequence.len())
    }

    /// Notes that it is in the cache; the tokens of its prompt where that is for the first time.
    pub fn let_in(&mut self) -> Option<usize> {
        self.stood_back = false;
        (!std::mem::replace(&mut self.was_in, true)).then_some(self.prompt)
    }

    /// Leaves the cache: to the host where there is room and it answers already, else its tokens are run again. Says
    /// whether it is on the host.
    pub fn leave(&mut self, staging: &mut Staging) -> bool {
        let swapped = self.decodes() && staging.swap_out(&mut self.sequence).is_ok();
        if !swapped {
            self.sequence = staging.cache().sequence(0);
        }
        swapped
    }

    /// Lets others start with the whole blocks that it has run, and leaves behind what its windows have passed.
    pub fn publish(&mut self, cache: &KvCache) -> Result<()> {
        let run = self.sequence.len();
        cache.publish(&mut self.sequence, self.salt, &self.tokens[..run])?;
        self.sequence.release_unseen()
    }

    /// The sequence and the next `count` tokens that it is to run.
    pub fn next(&mut self, count: usize) -> (&mut Sequence, &[u32]) {
        let start = self.sequence.len();
        (&mut self.sequence, &self.tokens[start..start + count])
    }

    /// Notes that `count` tokens are part of the step, the last of which gives the logits of `row`.
    pub fn stage(&mut self, count: usize, row: Option<usize>) {
        (self.staged, self.row) = (count, row);
    }

    pub fn is_staged(&self) -> bool {
        self.staged > 0
    }

    /// Takes back what is staged: the step failed.
    pub fn unstage(&mut self) -> Result<()> {
        let before = self.sequence.len() - self.staged;
        self.stage(0, None);
        self.sequence.truncate(before)
    }

    /// Notes that the step was run; its tokens, those of prompts first, and its row of logits.
    pub fn run(&mut self) -> (usize, usize, Option<usize>) {
        let staged = std::mem::take(&mut self.staged);
        let decoded = usize::from(staged == 1 && self.tokens.len() > self.prompt && self.pending() == 0);
        (staged - decoded, decoded, self.row.take())
    }

    /// What is asked of a device that draws itself; nothing where the host has to see the logits, from which other answers
    /// part.
    pub fn ask(&mut self) -> Option<Asked> {
        if self.samples > 1 { None } else { self.answering.ask(self.tokens.len() - self.prompt) }
    }

    /// Whether the host has to see the logits in any case.
    pub fn wants_logits(&self) -> bool {
        self.answering.logprobs().is_some()
    }

    pub fn row(&self) -> Option<usize> {
        self.row
    }

    /// The other answers to its prompt, each with the tokens so far.
    pub fn forks(&mut self, cache: &KvCache, eos: &[u32]) -> Result<Vec<Self>> {
        let others = self.sample + 1..self.sample + self.samples;
        let forks = others
            .map(|sample| {
                let mut options = self.options.clone();
                options.sampling.seed = options.sampling.seed.wrapping_add(sample as u64);
                let mut tokens = Vec::with_capacity(self.tokens.capacity());
                tokens.extend_from_slice(&self.tokens);
                Ok(Self {
                    sample,
                    samples: 1,
                    tokens,
                    answering: Answering::new(self.tokenizer.clone(), eos, &options)?,
                    options,
                    tokenizer: self.tokenizer.clone(),
                    sequence: cache.fork(&self.sequence)?,
                    ..*self
                })
            })
            .collect::<Result<_>>()?;
        self.samples = 1;
        Ok(forks)
    }

    /// Draws the next token, unless a device has drawn it, and tells of it. Says whether the answer is whole.
    pub fn answer(&mut self, drawn: Option<u32>, logits: &[f32], context: usize, events: &mut Vec<Event>) -> bool {
        let (request, sample) = (self.rank.request, self.sample);
        let mut tell = |what| events.push(Event { request, sample, what });
        match self.next_token(drawn, logits, context, &mut tell) {
            Ok(ended) => ended,
            Err(error) => {
                tell(Happening::Failed(error));
                true
            }
        }
    }

    fn next_token(
        &mut self,
        drawn: Option<u32>,
        logits: &[f32],
        context: usize,
        tell: &mut impl FnMut(Happening),
    ) -> Result<bool> {
        let (prompt, generated) = self.tokens.split_at(self.prompt);
        let (token, logprobs) = self.answering.choose(drawn, logits, History { prompt, generated })?;
        let piece = self.answering.take(token, generated.len() + 1, self.sequence.len() >= context)?;
        let mut rest = piece.text;
        if piece.token {
            tell(Happening::Token { token, text: std::mem::take(&mut rest), logprobs });
            self.tokens.push(token);
        }
        if let Some(finish) = piece.finish {
            tell(Happening::Finished { finish, text: rest });
        }
        Ok(piece.finish.is_some())
    }

    /// Tells that it failed, and what would have parted from it.
    pub fn fail(&self, why: &str, events: &mut Vec<Event>) {
        self.end(|| Happening::Failed(Error::Engine(why.to_owned())), events);
    }

    /// Tells that it ended before the next token, and what would have parted from it.
    pub fn finish(&self, finish: Finish, events: &mut Vec<Event>) {
        self.end(|| Happening::Finished { finish, text: String::new() }, events);
    }

    fn end(&self, what: impl Fn() -> Happening, events: &mut Vec<Event>) {
        let samples = self.sample..self.sample + self.samples;
        events.extend(samples.map(|sample| Event { request: self.rank.request, sample, what: what() }));
    }
}
