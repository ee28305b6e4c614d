//! Commands that answer many requests at once.

use serde_json::Value;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{refused, sinew, stdout};
use fixtures::fixture;

const DECODER: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&sinew(arguments))).expect("the output is one JSON value and nothing else")
}

#[test]
fn a_file_of_prompts_is_answered_as_each_alone_and_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("prompts.txt");
    let prompts = ["Hello", "The quick brown fox jumps over the lazy dog", "One", "Hello there", "Two"];
    // Empty lines and other ends of lines are no prompts.
    std::fs::write(&file, prompts.join("\r\n\n")).expect("written");
    let (model, file) = (fixture(DECODER), file.to_str().expect("UTF-8").to_owned());
    let common = ["--model", &model, "--max-new-tokens", "9", "--temperature", "0.8", "--seed", "3", "--dtype", "f32"];
    let common = [&common[..], &["--kv-dtype", "int8"]].concat();
    let many = [&["generate", "--prompts-file", &file][..], &common, &["--max-sequences", "3"]].concat();
    let lines = stdout(&sinew(&[&many[..], &["--json", "--logprobs", "1"]].concat()));
    let plain = stdout(&sinew(&many));
    let mut expected = String::new();
    assert_eq!(lines.lines().count(), prompts.len());
    for (number, (line, prompt)) in lines.lines().zip(prompts).enumerate() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let alone = json(&[&["generate", "--prompt", prompt, "--json", "--logprobs", "1"][..], &common].concat());
        assert_eq!(line["prompt"], number);
        for key in ["text", "tokens", "finish_reason", "prompt_tokens", "logprobs"] {
            assert_eq!(line[key], alone[key], "{prompt}: {key}");
        }
        let text = alone["text"].as_str().expect("text");
        expected.push_str(&format!("--- {}\n{text}\n", number + 1));
    }
    assert_eq!(plain, expected);
    let generate = |arguments: &[&str]| sinew(&[&["generate", "--model", &model][..], arguments].concat());
    refused(&generate(&["--prompts-file", "/no/such/file"]), &["/no/such/file"]);
    let inside = folder.path().to_str().expect("UTF-8");
    refused(&generate(&["--prompts-file", inside]), &[inside]);
    // Which line cannot be answered is said before any is.
    let long = "word ".repeat(4000);
    std::fs::write(&file, format!("short\n\n{long}\n")).expect("written");
    refused(&generate(&["--prompts-file", &file]), &["line 3 of", &file]);
    std::fs::write(&file, b"short\n\xff\xfe\n").expect("written");
    refused(&generate(&["--prompts-file", &file]), &["UTF-8", &file]);
    std::fs::write(&file, "short\n\nThe quick brown fox jumps over the lazy dog and runs away\n").expect("written");
    refused(&generate(&["--prompts-file", &file, "--cache-tokens", "16"]), &["line 3 of", "room for 16"]);
    std::fs::write(&file, "short\n").expect("written");
    let told = generate(&["--prompts-file", &file, "--max-new-tokens", "2", "--memory-report"]);
    assert!(String::from_utf8_lossy(&told.stderr).contains("kv cache"), "{told:?}");
    // What is for many prompts is not taken in silence for one.
    for argument in ["--cache-tokens", "--max-sequences", "--swap-tokens"] {
        refused(&generate(&["--prompt", "short", argument, "64"]), &[argument]);
    }
}

#[test]
fn lines_of_other_lengths_do_not_change_the_rotary_embedding_of_one() {
    let words: serde_json::Map<String, Value> = (0..307).map(|id| (format!("w{id}"), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    });
    // Up to sixteen tokens, prompt and answer, both embeddings are as in training.
    let lengths = [3, 40, 7, 30, 40, 9];
    let lines = lengths.map(|len| (0..len).map(|i| format!("w{}", (i * 37 + len) % 307)).collect::<Vec<_>>().join(" "));
    for name in ["llama_longrope_beyond_gqa3_hd20_bf16", "llama_dynamic_rope_beyond_gqa3_hd20_bf16"] {
        let folder = fixtures::copy(name);
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
        let file = folder.path().join("prompts.txt");
        std::fs::write(&file, lines.join("\n")).expect("written");
        let (model, file) = (folder.path().to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        let common = ["--model", model, "--max-new-tokens", "7", "--dtype", "f32", "--json", "--logprobs", "1"];
        let many = stdout(&sinew(&[&["generate", "--prompts-file", file][..], &common].concat()));
        assert_eq!(many.lines().count(), lines.len());
        // A line that could never be answered is named before any is, also those of another embedding.
        let small = sinew(&[&["generate", "--prompts-file", file, "--cache-tokens", "32"][..], &common].concat());
        assert!(small.stdout.is_empty(), "{small:?}");
        refused(&small, &["line 2 of", "room for 32"]);
        for (number, (line, prompt)) in many.lines().zip(&lines).enumerate() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let alone = json(&[&["generate", "--prompt", prompt][..], &common].concat());
            assert_eq!(line["prompt"], number);
            for key in ["tokens", "logprobs"] {
                assert_eq!(line[key], alone[key], "{name}, line {number}: {key}");
            }
        }
    }
}

#[test]
fn a_trace_is_the_same_for_a_seed_and_is_replayed_whole() {
    let options = ["trace", "--requests", "12", "--rate", "1000", "--max-prompt", "40", "--max-new", "9"];
    let with_prefixes = [&options[..], &["--prefixes", "2", "--prefix-tokens", "64", "--seed"]].concat();
    let of_seed = |seed| stdout(&sinew(&[&with_prefixes[..], &[seed]].concat()));
    let trace = of_seed("5");
    assert_eq!(trace, of_seed("5"));
    assert_ne!(trace, of_seed("6"));
    let lines: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sum = |key: &str| lines.iter().map(|line| line[key].as_u64().expect("a number")).sum::<u64>();
    assert_eq!(lines.len(), 12);

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.jsonl");
    std::fs::write(&file, &trace).expect("written");
    let (model, file) = (fixture(DECODER), file.to_str().expect("UTF-8").to_owned());
    let replay = ["replay", &file, "--model", &model, "--max-sequences", "4", "--cache-tokens", "256", "--speed", "2"];
    let result = json(&[&replay[..], &["--kv-dtype", "fp8", "--json"]].concat());
    assert_eq!((&result["answered"], &result["failed"]), (&12.into(), &0.into()));
    assert_eq!(
        (&result["prompt_tokens"], &result["new_tokens"]),
        (&sum("prompt_tokens").into(), &sum("new_tokens").into())
    );
    // Two prefixes in four blocks each are run once, or again where they were evicted.
    assert!(result["hit_rate"].as_f64().is_some_and(|rate| rate > 0.2 && rate < 0.9), "{result}");
    for key in ["time_to_first_token_s", "time_between_tokens_s"] {
        let [p50, p95, p99] = ["p50", "p95", "p99"].map(|p| result[key][p].as_f64().expect("a time"));
        assert!(0.0 < p50 && p50 <= p95 && p95 <= p99, "{result}");
    }
    let report = stdout(&sinew(&replay));
    assert!(report.contains("12 answered, 0 failed") && report.contains("% of prompts found"), "{report}");
    // So slow that it would never end.
    refused(&sinew(&["replay", &file, "--model", &model, "--speed", "1e-310"]), &["times as fast"]);
    std::fs::write(&file, r#"{"arrival_s": 0, "prompt_tokens": 40, "new_tokens": 2}"#).expect("written");
    let small = ["replay", &file, "--model", &model, "--max-sequences", "1", "--cache-tokens", "16"];
    let output = sinew(&small);
    let (report, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && error.contains("no request was answered"), "{error}");
    assert!(report.contains("1 failed") && report.contains("first:"), "{report}");
}

#[test]
fn damaged_traces_are_one_line_that_names_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.jsonl");
    let (model, path) = (fixture(DECODER), file.to_str().expect("UTF-8").to_owned());
    let good = r#"{"arrival_s": 0, "prompt_tokens": 3, "new_tokens": 2}"#;
    for (bad, words) in [
        (r#"{"arrival_s": 0, "prompt_tokens": 3}"#, "new_tokens"),
        (r#"{"arrival_s": -1, "prompt_tokens": 3, "new_tokens": 2}"#, "line 2"),
        (r#"{"arrival_s": 0, "prompt_tokens": 0, "new_tokens": 2}"#, "at least 1 token"),
        (r#"{"arrival_s": 0, "prompt_tokens": 3, "new_tokens": 2, "prefix_tokens": 4}"#, "no prefix longer"),
        ("x", "line 2"),
    ] {
        std::fs::write(&file, format!("{good}\n{bad}\n")).expect("written");
        refused(&sinew(&["replay", &path, "--model", &model]), &[words]);
    }
    // One that is longer than the model takes fails, and the others are answered.
    for tokens in ["18446744073709551615", "255", "300"] {
        let long = format!(r#"{{"arrival_s": 0, "prompt_tokens": {tokens}, "new_tokens": 2}}"#);
        std::fs::write(&file, format!("\u{feff}{long}\n{good}\n")).expect("written");
        let result = json(&["replay", &path, "--model", &model, "--json"]);
        assert_eq!((&result["answered"], &result["failed"]), (&1.into(), &1.into()), "{result}");
        assert!(result["failure"].as_str().is_some_and(|why| why.contains("the model was loaded for 5")), "{result}");
    }
    std::fs::write(&file, r#"{"arrival_s": 0, "prompt_tokens": 300, "new_tokens": 2}"#).expect("written");
    refused(&sinew(&["replay", &path, "--model", &model]), &["no request", "256 tokens"]);
    std::fs::write(&file, "\n").expect("written");
    refused(&sinew(&["replay", &path, "--model", &model]), &["no requests"]);
    refused(&sinew(&["trace", "--rate", "0"]), &["0e0 requests a second"]);
    refused(&sinew(&["trace", "--min-prompt", "9", "--max-prompt", "8"]), &["from 9 to 8"]);
}

#[test]
fn a_batch_goes_through_the_scheduler_beside_the_plain_one() {
    let model = fixture(DECODER);
    let bench =
        ["bench", "--model", &model, "--prompt-tokens", "40", "--new-tokens", "6", "--batch", "3", "--repeat", "2"];
    let result = json(&[&bench[..], &["--shared-prefix", "32", "--json"]].concat());
    // Two of three find two whole blocks.
    assert_eq!(result["engine_found_tokens"], 64, "{result}");
    assert_eq!(json(&[&bench[..], &["--engine", "--json"]].concat())["engine_found_tokens"], 0);
    for key in ["engine_prefill_tokens_per_s", "engine_decode_tokens_per_s", "engine_decode_share_of_plain"] {
        assert!(result[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {result}");
    }
    assert!(json(&[&bench[..], &["--json"]].concat()).get("engine_decode_tokens_per_s").is_none());
    let encoder = fixture("bert_hd20_f16");
    refused(&sinew(&["bench", "--model", &encoder, "--shared-prefix", "8"]), &["models that generate"]);
    refused(&sinew(&[&bench[..], &["--shared-prefix", "4096"]].concat()), &["--shared-prefix 4096", "prompt tokens"]);
}
