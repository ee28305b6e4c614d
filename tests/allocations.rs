//! A steady step of a model allocates nothing on the host.

use std::sync::atomic::Ordering;

use sinew::models::{Engine, EngineOptions, GenerateOptions, LanguageModel, LoadOptions, OldKv, Request};
use sinew::prelude::DType;

#[path = "common/counting.rs"]
mod counting;
#[path = "common/fixtures.rs"]
mod fixtures;

use counting::ALLOCATIONS;
use fixtures::fixture_path;

const SEQUENCES: usize = 8;
const STEPS: usize = 60;
/// Tokens of the longest prompt; GPT-2's fixture has 32 positions.
const LONGEST: usize = 20;

// One test alone in its file: a second would be counted too.
#[test]
fn a_steady_decode_step_allocates_nothing() {
    let old = Some(OldKv { dtype: DType::I8, recent: 1 });
    let full = |(fixture, kv)| (fixture, kv, None);
    let all = [
        ("llama3_rope_gqa3_hd20_bf16_tied_bpe", None),
        ("llama3_rope_gqa3_hd20_bf16_tied_bpe", Some(DType::I8)),
        ("qwen3_gqa3_hd20_f32_untied_biases_old_config", None),
        ("gemma2_gqa3_hd20_bf16", None),
        ("gemma2_gqa3_hd20_bf16", Some(DType::F8E4M3)),
        ("gpt2_hd12_bf16_scaled_by_layer", None),
        ("gpt_neox_parallel_quarter_rotary_hd16_bf16", None),
        ("mixtral_5experts_window_gqa3_hd20_bf16", None),
        ("olmo3_yarn_on_full_layers_mha3_hd12_f32_old_config", None),
        ("quantized/ct_int4_g32_asym_actorder_llama_f16", None),
    ];
    // Of 80 tokens the first 64 come to be old.
    let with_old = [("llama3_rope_gqa3_hd20_bf16_tied_bpe", None, old), ("gemma2_gqa3_hd20_bf16", None, old)];
    for (fixture, kv, old_kv) in all.map(full).into_iter().chain(with_old) {
        let options = LoadOptions { max_sequences: SEQUENCES, kv, old_kv, ..LoadOptions::default() };
        let mut model = LanguageModel::load(fixture_path(fixture), &options).expect("the fixture loads");
        let mut sequences: Vec<_> = (0..SEQUENCES).map(|_| model.sequence()).collect();
        let steps = STEPS.min(model.decoder().limits().context - LONGEST);
        for (i, sequence) in sequences.iter_mut().enumerate() {
            model.prefill(sequence, &vec![7; LONGEST - 2 * i]).expect("a valid prompt");
        }
        let mut counted = vec![0; steps];
        for count in &mut counted {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            model.decode(&mut sequences, &[5; SEQUENCES]).expect("valid tokens");
            *count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        assert_eq!(counted, vec![0; steps], "{fixture}, {kv:?}, {old_kv:?}");
    }
    for batch in [1, 8] {
        assert_eq!(engine_steps(batch), [0; STEPS], "an engine with {batch} sequences");
    }
}

/// The allocations of each step of an engine in which every sequence answers.
fn engine_steps(batch: usize) -> [usize; STEPS] {
    let options = LoadOptions { max_sequences: batch, ..LoadOptions::default() };
    let model = LanguageModel::load(fixture_path("llama3_rope_gqa3_hd20_bf16_tied_bpe"), &options);
    let mut engine = Engine::new(model.expect("the fixture loads"), EngineOptions::default());
    for i in 0..batch {
        let options = GenerateOptions { max_new_tokens: STEPS + 8, ignore_eos: true, ..GenerateOptions::default() };
        // Text is made of strings.
        let request = Request { options, text: false, ..Request::new(vec![7; 5 + 9 * i]) };
        engine.submit(request).expect("a valid request");
    }
    // Somebody waits for a place.
    engine.submit(Request { text: false, ..Request::new(vec![9; 40]) }).expect("a valid request");
    // Prompts that begin alike are run one after the other; rows for what follows are chosen in the step after.
    while engine.step().expect("a step").len() < batch {}
    engine.step().expect("a step");
    std::array::from_fn(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(engine.step().expect("a step").len(), batch);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    })
}
