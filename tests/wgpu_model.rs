//! Steps of the bundled model by wgpu are one submission each and let no buffer grow.

#![cfg(feature = "wgpu")]

mod common;

use std::ops::ControlFlow;

use sinew::demo;
use sinew::memory::webgpu::{Counters, WgpuStream};
use sinew::prelude::*;

const STEPS: usize = 1000;
/// Steps after which every buffer and bind group has been made.
const WARM: usize = 20;

#[test]
fn a_thousand_steps_are_as_many_submissions_and_grow_no_buffer() {
    common::on_wgpu(|ctx| {
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
        println!("{before:?} before {steps} steps, {after:?} after");
        assert_eq!(after.submissions - before.submissions, steps);
        assert!(after.dispatches > before.dispatches);
        let kept = |c: Counters| (c.pipelines, c.bind_groups, c.persistent_bytes);
        assert_eq!(kept(after), kept(before));
        assert_eq!(ctx.pool().stats().active_bytes, pooled.active_bytes);
    });
}
