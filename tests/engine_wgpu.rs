//! Many requests at once by wgpu: paged caches, windows, forks, and sequences that make room and come back.

mod common;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::{harness, on_wgpu};
use sinew::models::{Engine, EngineOptions, GenerateOptions, Happening, Request};
use sinew::ops::Policy;
use sinew::prelude::*;

#[path = "common/fixtures.rs"]
mod fixtures;

/// Tokens, and the bits of their log probabilities.
type Answer = Vec<(u32, u32)>;

fn model(ctx: &Arc<Context>, name: &str, options: LoadOptions) -> LanguageModel {
    let folder = Folder::new(fixtures::fixture_path(name));
    LanguageModel::load_on(ctx.clone(), &folder, &options, &mut |_, _| {}).expect("the fixture loads")
}

/// One whose log probabilities the host is to see, or else one of which only tokens come from the device.
fn request(seed: u32, len: usize, new: usize, logprobs: bool) -> Request {
    let mut options = GenerateOptions { max_new_tokens: new, ignore_eos: true, ..GenerateOptions::default() };
    options.logprobs = logprobs.then_some(0);
    options.sampling.temperature = if seed == 2 { 0.8 } else { 0.0 };
    options.sampling.seed = 11;
    let prompt = (0..len as u32).map(|i| (i * 7919 + seed * 104_729 + 3) % 307).collect();
    Request { options, text: false, ..Request::new(prompt) }
}

/// With rows whose bits do not depend on what else is in a step, an answer is the one that its request gets alone.
fn answers_are_those_of_requests_alone_whoever_makes_room() {
    on_wgpu(|shared| {
        let device = shared.device().clone();
        let policy = Policy { deterministic: true, ..Policy::of(device.id().kind) };
        let ctx = Context::on(device, policy).expect("a context");
        let ctx = Arc::new(ctx);
        for (name, logprobs) in [
            // In its steps the host sees logits of all, of some, and of none.
            ("llama3_rope_gqa3_hd20_bf16_tied_bpe", [true; 4]),
            ("llama3_rope_gqa3_hd20_bf16_tied_bpe", [false; 4]),
            ("gemma2_gqa3_hd20_bf16", [true, false, false, true]),
        ] {
            // The last two begin alike.
            let lengths = [(1, 30, 24), (2, 21, 24), (3, 40, 9), (3, 45, 9)];
            let mut which = logprobs.into_iter();
            let requests = lengths.map(|(seed, len, new)| request(seed, len, new, which.next().unwrap_or_default()));
            let mut solo = model(&ctx, name, LoadOptions::default());
            let expected = requests.each_ref().map(|request| -> Answer {
                let answer = solo
                    .generate(&request.prompt, &request.options, &mut |_| ControlFlow::Continue(()))
                    .expect("an answer");
                let bits = answer.logprobs.iter().map(|p| p.logprob.to_bits()).chain(std::iter::repeat(0));
                answer.tokens.into_iter().zip(bits).collect()
            });
            for swap_tokens in [0, 256] {
                let options = LoadOptions {
                    max_sequences: 3,
                    prefill_chunk: 24,
                    cache_tokens: Some(96),
                    swap_tokens,
                    ..LoadOptions::default()
                };
                let mut engine = Engine::new(model(&ctx, name, options), EngineOptions::default());
                let mut answers: HashMap<_, Answer> = HashMap::new();
                let ids = requests.each_ref().map(|request| engine.submit(request.clone()).expect("a valid request"));
                while !engine.is_idle() {
                    for event in engine.step().expect("a step") {
                        let answer = answers.entry(event.request).or_default();
                        match &event.what {
                            Happening::Token { token, logprobs, .. } => {
                                answer.push((*token, logprobs.as_ref().map_or(0, |p| p.logprob.to_bits())));
                            }
                            Happening::Finished { .. } => {}
                            Happening::Failed(error) => panic!("{error}"),
                        }
                    }
                }
                let stats = engine.stats();
                harness::show(format_args!("{name}, {swap_tokens} tokens on the host: {stats:?}"));
                assert!(stats.preemptions > 0 && stats.found > 0, "{name}: {stats:?}");
                assert_eq!(stats.swapped > 0, swap_tokens > 0, "{name}: {stats:?}");
                for (i, (id, expected)) in ids.iter().zip(&expected).enumerate() {
                    assert_eq!(&answers[id], expected, "{name}, {swap_tokens} tokens on the host: request {i}");
                }
                assert_eq!(engine.cache().stats().used, 0);
            }
        }
    });
}

fn main() -> std::process::ExitCode {
    harness::run(Vec::new(), harness::trials![answers_are_those_of_requests_alone_whoever_makes_room])
}
