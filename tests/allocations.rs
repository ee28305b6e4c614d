//! A steady step of a model allocates nothing on the host.

use std::sync::atomic::Ordering;

use sinew::models::{LanguageModel, LoadOptions};

#[path = "common/counting.rs"]
mod counting;
#[path = "common/fixtures.rs"]
mod fixtures;

use counting::ALLOCATIONS;
use fixtures::fixture_path;

const SEQUENCES: usize = 3;
const STEPS: usize = 60;
/// Tokens of the longest prompt; GPT-2's fixture has 32 positions.
const LONGEST: usize = 20;

// One test alone in its file: a second would be counted too.
#[test]
fn a_steady_decode_step_allocates_nothing() {
    for fixture in [
        "llama3_rope_gqa3_hd20_bf16_tied_bpe",
        "qwen3_gqa3_hd20_f32_untied_biases_old_config",
        "gemma2_gqa3_hd20_bf16",
        "gpt2_hd12_bf16_scaled_by_layer",
        "gpt_neox_parallel_quarter_rotary_hd16_bf16",
        "mixtral_5experts_window_gqa3_hd20_bf16",
        "olmo3_yarn_on_full_layers_mha3_hd12_f32_old_config",
    ] {
        let options = LoadOptions { max_sequences: SEQUENCES, ..LoadOptions::default() };
        let mut model = LanguageModel::load(fixture_path(fixture), &options).expect("the fixture loads");
        let mut sequences: Vec<_> = (0..SEQUENCES).map(|_| model.sequence()).collect();
        let steps = STEPS.min(model.decoder().limits().context - LONGEST);
        for (i, sequence) in sequences.iter_mut().enumerate() {
            model.prefill(sequence, &vec![7; LONGEST - 9 * i]).expect("a valid prompt");
        }
        let mut counted = vec![0; steps];
        for count in &mut counted {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            model.decode(&mut sequences, &[5; SEQUENCES]).expect("valid tokens");
            *count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        assert_eq!(counted, vec![0; steps], "{fixture}");
    }
}
