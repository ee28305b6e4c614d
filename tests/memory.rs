//! What loading a model costs in memory: weights are read once, and never held twice.

use serde_json::Value;

#[path = "common/command.rs"]
mod command;
#[path = "common/llama.rs"]
mod llama;

use command::{command, run, stdout};
use llama::{Llama, Stored};

/// 230 MB in bf16.
const MODEL: Llama = Llama { hidden: 1024, width: 4096, layers: 6, vocab: 16_000 };
/// 270 MB in 4 bits, of which gate and up, which are packed together, are more than may be held beside packed weights.
const WIDE: Llama = Llama { hidden: 4096, width: 40_960, layers: 1, vocab: 512 };

/// Peak memory beyond the packed weights: a share of them, or this much.
const SHARE: f64 = 1.15;
const SPARE_BYTES: u64 = 128 << 20;

/// Loads and runs the model from files that are mapped, and from such that are read.
fn is_loaded_in_little_more_than_its_packed_weights(model: Llama, stored: Stored) {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = model.write(folder.path(), stored).expect("the checkpoint is written");
    for load in ["mmap", "read"] {
        let bench = ["bench", "--prompt-tokens", "32", "--new-tokens", "4", "--repeat", "1", "--json", "--load", load];
        let output = run(command().args(bench).arg("--model").arg(folder.path()), "");
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let (peak, weights) = (report["peak_rss_bytes"].as_u64(), report["weight_bytes"].as_u64());
        let (peak, weights) = (peak.expect("a peak"), weights.expect("packed weights"));
        println!(
            "{stored:?} --load {load}: file {bytes}, packed weights {weights}, peak {peak} bytes, load {} s",
            report["load_s"]
        );
        assert!(weights < bytes + bytes / 50, "packed weights take {weights} bytes for {bytes} in the file");
        let most = ((SHARE * weights as f64) as u64).max(weights + SPARE_BYTES);
        assert!(
            peak <= most,
            "--load {load}: the peak is {peak} bytes, at most {most} for {weights} of packed weights"
        );
    }
}

#[test]
fn a_model_is_loaded_and_run_in_little_more_memory_than_its_packed_weights() {
    is_loaded_in_little_more_than_its_packed_weights(MODEL, Stored::Bf16);
}

#[test]
fn a_weight_that_is_quantized_along_its_outputs_is_never_held_twice() {
    for stored in [Stored::Gptq, Stored::Awq] {
        is_loaded_in_little_more_than_its_packed_weights(WIDE, stored);
    }
}

/// One layer after another of the usual shape: `cargo test --test memory -- --ignored --nocapture` prints what it takes.
#[test]
#[ignore = "for its figures: it writes 300 MB, twice"]
fn three_layers_of_4096_by_11008_are_loaded_in_little_more_than_their_packed_weights() {
    let model = Llama { hidden: 4096, width: 11_008, layers: 3, vocab: 512 };
    for stored in [Stored::Gptq, Stored::ActOrder, Stored::Awq] {
        is_loaded_in_little_more_than_its_packed_weights(model, stored);
    }
}
