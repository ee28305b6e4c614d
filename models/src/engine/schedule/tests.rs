//! Steps that are put together, without a model to run them.

use std::sync::Arc;

use sinew_ops::Context;
use sinew_tensor::{DType, PagedLayout};

use super::*;
use crate::answering::GenerateOptions;
use crate::cache::{CacheShape, GroupShape};
use crate::engine::{Happening, Request};

const BLOCK_SIZE: usize = 4;
const CONTEXT: usize = 64;
/// Tokens of each answer.
const ANSWER: usize = 8;

/// A schedule of steps of up to 8 tokens, and what they are put together in.
struct Steps {
    schedule: Schedule,
    staging: Staging,
    events: Vec<Event>,
}

impl Steps {
    fn in_cache_of(blocks: usize) -> Self {
        let limits =
            Limits { max_rows: 8, max_sequences: 4, context: CONTEXT, block_size: BLOCK_SIZE, max_logits: None };
        let layout = PagedLayout::new(blocks, 1, BLOCK_SIZE, 2, DType::F32).expect("a small cache");
        let group = GroupShape { window: None, layout, is_old: false };
        let shape = CacheShape::of_groups(std::iter::once(Ok(group))).expect("one group");
        let ctx = Arc::new(Context::cpu().expect("the CPU is there"));
        let cache = KvCache::new(&ctx, shape).expect("a small cache");
        Self { schedule: Schedule::new(limits), staging: Staging::new(ctx, cache, &limits), events: Vec::new() }
    }

    /// Has a prompt of so many tokens wait, which begins as no other does.
    fn add(&mut self, id: u32, tokens: u32, priority: i32) {
        let options = GenerateOptions { max_new_tokens: ANSWER, ignore_eos: true, ..GenerateOptions::default() };
        let prompt = (1000 * id..1000 * id + tokens).collect();
        let request = Request { options, priority, ..Request::new(prompt) };
        let rank = Rank::new(self.schedule.stats().steps, priority, 256, RequestId(id.into()));
        self.schedule.add(Job::new(rank, None, &[], request, self.staging.cache()).expect("a job"));
    }

    /// A step in which each that has logits gets one more token: its size, and how many tokens the cache has of each that
    /// runs then.
    fn step(&mut self) -> (StepSize, Vec<(u64, usize)>) {
        let Self { schedule, staging, events } = self;
        let planned = schedule.next_step(staging, events).expect("nothing fails");
        if planned.tokens > 0 {
            let answer = |job: &mut Job, _, _: &mut Vec<Job>| job.answer(Some(7), &[], CONTEXT, events);
            schedule.advance(staging.cache(), answer).expect("nothing fails");
        }
        (planned, schedule.running.iter().map(|job| (job.rank().request().0, job.sequence.len())).collect())
    }
}

#[test]
fn the_first_prompt_has_half_of_what_answers_leave_and_the_shortest_the_rest() {
    let mut steps = Steps::in_cache_of(32);
    steps.add(0, 20, 0);
    steps.add(1, 3, 0);
    assert_eq!(steps.step(), (StepSize { tokens: 8, rows: 1 }, vec![(0, 5), (1, 3)]));
    assert_eq!(steps.step(), (StepSize { tokens: 8, rows: 1 }, vec![(0, 12), (1, 4)]));
    steps.add(2, 9, 0);
    assert_eq!(steps.step(), (StepSize { tokens: 8, rows: 1 }, vec![(0, 16), (1, 5), (2, 3)]));
    assert_eq!(steps.step(), (StepSize { tokens: 8, rows: 2 }, vec![(0, 20), (1, 6), (2, 6)]));
}

#[test]
fn who_outranks_takes_the_place_of_who_runs_and_both_are_answered() {
    let mut steps = Steps::in_cache_of(6);
    steps.add(0, 12, 0);
    steps.step();
    assert_eq!(steps.step().1, [(0, 12)]);
    steps.add(1, 16, 1);
    assert_eq!(steps.step(), (StepSize { tokens: 8, rows: 0 }, vec![(1, 8)]));
    let stats = steps.schedule.stats();
    assert_eq!((stats.waiting, stats.running, stats.preemptions), (1, 1, 1));
    while steps.schedule.stats().waiting + steps.schedule.stats().running > 0 {
        steps.step();
    }
    let of = |id: u64| steps.events.iter().filter(move |event| event.request == RequestId(id));
    for id in [0, 1] {
        assert_eq!(of(id).filter(|event| matches!(event.what, Happening::Token { .. })).count(), ANSWER, "{id}");
        assert!(matches!(of(id).next_back().expect("an event").what, Happening::Finished { .. }), "{id}");
    }
}

#[test]
fn an_answer_that_fills_the_whole_cache_fails() {
    let mut steps = Steps::in_cache_of(2);
    steps.add(0, 6, 0);
    for tokens in [6, 7, 8] {
        assert_eq!(steps.step().1, [(0, tokens)]);
    }
    assert_eq!(steps.step(), (StepSize::default(), Vec::new()));
    let Some(Event { what: Happening::Failed(error), .. }) = steps.events.last() else { panic!("{:?}", steps.events) };
    assert!(error.to_string().contains("the cache of 8 tokens is full"), "{error}");
}
