//! The bundled model answers prompts that it never saw.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Deserialize;
use sinew::demo;
use sinew::prelude::*;

/// Share of held-out prompts that must be answered right.
const WANTED: f64 = 0.95;
const PROMPTS: usize = 200;

#[derive(Deserialize)]
struct HeldOut {
    task: String,
    prompt: String,
    answer: String,
}

fn answer(model: &mut LanguageModel, prompt: &str) -> String {
    let prompt = model.encode(prompt).expect("the prompt's characters are in the vocabulary");
    let options = GenerateOptions { max_new_tokens: 48, ..GenerateOptions::default() };
    model.generate(&prompt, &options, &mut |_| ControlFlow::Continue(())).expect("the prompt is answered").text
}

fn the_bundled_model_answers_held_out_prompts() {
    let held_out: Vec<HeldOut> =
        serde_json::from_str(include_str!("../src/demo/held_out.json")).expect("the prompts are valid JSON");
    assert_eq!(held_out.len(), PROMPTS);
    let mut model = demo::load(common::cpu(), &LoadOptions::default()).expect("the bundled model loads");
    let mut tasks: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for item in &held_out {
        let right = answer(&mut model, &item.prompt) == item.answer;
        let (answered, asked) = tasks.entry(&item.task).or_default();
        *answered += usize::from(right);
        *asked += 1;
    }
    for (task, (right, asked)) in &tasks {
        common::harness::show(format_args!("{task:<12} {right:>3} of {asked}"));
    }
    let right: usize = tasks.values().map(|(right, _)| right).sum();
    assert!(right as f64 >= WANTED * PROMPTS as f64, "{right} of {PROMPTS}: {tasks:?}");
}

fn the_prompts_that_the_command_shows_are_answered_right() {
    shown_prompts(&common::cpu());
}

fn the_prompts_that_the_command_shows_are_answered_right_by_wgpu() {
    common::on_wgpu(shown_prompts);
}

fn shown_prompts(ctx: &Arc<Context>) {
    let mut model = demo::load(ctx.clone(), &LoadOptions::default()).expect("the bundled model loads");
    assert!(!demo::PROMPTS.is_empty());
    for (prompt, expected) in demo::PROMPTS {
        assert_eq!(answer(&mut model, prompt), *expected, "{prompt}");
    }
}

fn greedy_steps_of_a_batch_choose_what_the_logits_say() {
    greedy_steps(&common::cpu());
}

fn greedy_steps_of_a_batch_choose_what_the_logits_say_by_wgpu() {
    common::on_wgpu(greedy_steps);
}

fn greedy_steps(ctx: &Arc<Context>) {
    let prompts = ["add 417+85=", "sort ", "a"];
    let options = LoadOptions { max_sequences: 2 * prompts.len(), context: Some(64), ..LoadOptions::default() };
    let mut model = demo::load(ctx.clone(), &options).expect("the bundled model loads");
    // Each prompt twice: one is asked for its logits, the other for tokens.
    let mut started = || -> Vec<_> {
        let start = |prompt| {
            let (tokens, mut sequence) = (model.encode(prompt).expect("the prompt encodes"), model.sequence());
            model.prefill(&mut sequence, &tokens).expect("it is read");
            sequence
        };
        prompts.into_iter().map(start).collect()
    };
    let (mut asked, mut chosen) = (started(), started());
    let vocab = model.decoder().config().vocab_size;
    let (mut tokens, mut seen) = (vec![1, 2, 3], Vec::<u32>::new());
    for _ in 0..12 {
        let logits = model.decode(&mut asked, &tokens).expect("a step");
        let largest = |row: &[f32]| (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
        let want: Vec<_> = logits.chunks(vocab).map(|row| largest(row).expect("a vocabulary") as u32).collect();
        assert_eq!(model.decode_greedy(&mut chosen, &tokens).expect("a step"), want);
        seen.extend(&want);
        tokens = want;
    }
    seen.dedup();
    assert!(seen.len() > prompts.len(), "{seen:?}");
    assert!(model.decode_greedy(&mut [], &[]).expect("nothing to do").is_empty());
}

#[cfg(feature = "wgpu")]
fn a_thousand_steps_by_wgpu_are_as_many_submissions_and_grow_no_buffer() {
    use sinew::memory::webgpu::{Counters, WgpuStream};

    const STEPS: usize = 1000;
    /// Steps after which every buffer and bind group has been made.
    const WARM: usize = 20;
    common::alone_on_wgpu(|ctx| {
        let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
        let mut model = demo::load(ctx.clone(), &options).expect("the bundled model loads");
        let stream = WgpuStream::of(ctx.stream()).expect("a stream of wgpu");
        let prompt = model.encode("add 417+85=").expect("the prompt encodes");
        let sampling = SamplingParams { temperature: 0.7, top_k: 5, seed: 3, ..SamplingParams::default() };
        let answer = |model: &mut LanguageModel, max_new_tokens: usize| {
            let sampling = sampling.clone();
            let options = GenerateOptions { max_new_tokens, sampling, ignore_eos: true, ..GenerateOptions::default() };
            let answer = model.generate(&prompt, &options, &mut |_| ControlFlow::Continue(())).expect("an answer");
            assert_eq!(answer.tokens.len(), max_new_tokens);
        };
        answer(&mut model, WARM);
        let (before, pooled) = (stream.counters(), ctx.pool().stats());
        let (each, mut steps) = (40, 0);
        while steps < STEPS {
            answer(&mut model, each);
            // The prompt's step gives the first token.
            steps += each;
        }
        let after = stream.counters();
        common::harness::show(format_args!("{before:?} before {steps} steps, {after:?} after"));
        assert_eq!(after.submissions - before.submissions, steps);
        assert_eq!(after.downloaded_bytes - before.downloaded_bytes, steps * size_of::<u32>(), "a token of each step");
        assert!(after.dispatches > before.dispatches);
        let kept = |c: Counters| (c.pipelines, c.bind_groups, c.persistent_bytes);
        assert_eq!(kept(after), kept(before));
        assert_eq!(ctx.pool().stats().active_bytes, pooled.active_bytes);
    });
}

fn main() -> std::process::ExitCode {
    common::harness::run(
        common::harness::trials![
            the_bundled_model_answers_held_out_prompts,
            the_prompts_that_the_command_shows_are_answered_right,
            greedy_steps_of_a_batch_choose_what_the_logits_say,
        ],
        common::harness::trials![
            the_prompts_that_the_command_shows_are_answered_right_by_wgpu,
            greedy_steps_of_a_batch_choose_what_the_logits_say_by_wgpu,
            #[cfg(feature = "wgpu")]
            a_thousand_steps_by_wgpu_are_as_many_submissions_and_grow_no_buffer,
        ],
    )
}
