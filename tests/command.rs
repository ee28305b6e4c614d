//! The command, run as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::Dtype;
use serde_json::{Value, json};
use sinew::models::precision::Activations;
use sinew::prelude::*;
use tempfile::TempDir;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

#[cfg(target_os = "linux")]
use command::interrupted;
use command::{command, sinew, stdout};
use fixtures::{copy, fixture, fixture_path, with_field, with_tensors};

const DECODER: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";
const NO_TOKENIZER: &str = "qwen3_gqa3_hd20_f32_untied_biases_old_config";
const EMBEDDING: &str = "qwen3_embedding_no_prefix_gqa3_hd20_bf16";
const ENCODER: &str = "bert_hd20_f32_wordpiece";

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&sinew(arguments))).expect("the output is one JSON value and nothing else")
}

fn refused(arguments: &[&str], words: &[&str]) {
    command::refused(&sinew(arguments), words);
}

#[test]
fn bare_sinew_answers_from_any_folder_and_says_what_served() {
    let output = command().current_dir(std::env::temp_dir()).output();
    let text = stdout(&output.expect("the command starts"));
    for (prompt, answer) in sinew::demo::PROMPTS {
        assert!(text.contains(&format!("{prompt} {answer}\n")), "{prompt}: {text}");
    }
    for word in ["device", "kernel", "memory", "tokens/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn generate_streams_text_or_prints_json() {
    let model = fixture(DECODER);
    let common = ["generate", "--model", &model, "--prompt", "Hello", "--max-new-tokens", "5", "--ignore-eos"];
    let text = stdout(&sinew(&common));
    let value = json(&[&common[..], &["--json"]].concat());
    assert_eq!(text, format!("{}\n", value["text"].as_str().expect("text")));
    assert_eq!(value["tokens"].as_array().map(Vec::len), Some(5));
    assert_eq!(value["finish_reason"], "length");
}

/// A copy of the decoder with this `generation_config.json`.
fn with_generation_config(config: &Value) -> TempDir {
    let folder = copy(DECODER);
    std::fs::write(folder.path().join("generation_config.json"), config.to_string()).expect("written");
    folder
}

fn generate(folder: &TempDir, tokens: &str, more: &[&str]) -> Output {
    let folder = folder.path().to_str().expect("the path is UTF-8");
    sinew(&[&["generate", "--model", folder, "--tokens", tokens, "--dtype", "f32", "--json"][..], more].concat())
}

#[test]
fn generation_config_changes_answers_as_in_transformers() {
    let cases = std::fs::read_to_string(fixture_path(DECODER).join("expected_generation.json")).expect("the cases");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("valid JSON");
    assert!(cases.len() > 15);
    for case in cases {
        let ids: Vec<String> = case["ids"].as_array().expect("a list").iter().map(Value::to_string).collect();
        let output = generate(&with_generation_config(&case["config"]), &ids.join(","), &[]);
        assert!(output.stderr.is_empty(), "{}: {}", case["config"], String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!((&answer["tokens"], &answer["finish_reason"]), (&case["tokens"], &case["finish"]), "{case}");
    }
}

#[test]
fn options_go_before_generation_config() {
    // Eight different tokens follow.
    const PROMPT: &str = "0,333,73,299,303,367,358";
    let tokens = |config: Value, more: &[&str]| -> Value {
        let output = generate(&with_generation_config(&config), PROMPT, &[more, &["--max-new-tokens", "8"]].concat());
        serde_json::from_str::<Value>(&stdout(&output)).expect("JSON")["tokens"].take()
    };
    let plain = tokens(json!({}), &[]);
    for (config, option) in [
        (json!({"no_repeat_ngram_size": 1}), ["--no-repeat-ngram-size", "0"]),
        (json!({"eos_token_id": plain[4], "min_new_tokens": 5}), ["--min-new-tokens", "4"]),
    ] {
        assert_ne!(tokens(config.clone(), &[]), plain, "{config}");
        let answer = tokens(config.clone(), &option);
        let answer = answer.as_array().expect("a list");
        assert_eq!(plain.as_array().map(|plain| &plain[..answer.len()]), Some(&answer[..]), "{config}");
        assert!(answer.len() == if config.get("eos_token_id").is_some() { 4 } else { 8 }, "{config}: {answer:?}");
    }
    // The option's texts are added to the file's.
    let stopped = tokens(json!({"stop_strings": ["never said"]}), &["--stop", "e"]);
    assert!(stopped.as_array().map(Vec::len) < plain.as_array().map(Vec::len), "{stopped}");
}

#[test]
fn what_generation_config_asks_for_in_vain_is_named_in_one_line() {
    let neutral = json!({
        "num_beams": 1, "typical_p": 1.0, "guidance_scale": null, "penalty_alpha": 0, "token_healing": false,
        "sequence_bias": [], "pad_token_id": 3, "use_cache": true, "transformers_version": "5.23.0",
        "_from_model_config": true, "cache_implementation": "static", "output_scores": true,
        "return_dict_in_generate": true, "made_up": 7, "early_stopping": true, "length_penalty": 2.0
    });
    let more = ["--max-new-tokens", "1"];
    assert!(generate(&with_generation_config(&neutral), "1,2", &more).stderr.is_empty());
    let mut asking = neutral;
    for (name, value) in [
        ("num_beams", json!(4)),
        ("typical_p", json!(0.9)),
        ("guidance_scale", json!(1.5)),
        ("penalty_alpha", json!(0.6)),
        ("forced_eos_token_id", json!(0)),
        ("sequence_bias", json!([[[1, 2], 3.0]])),
        ("dola_layers", json!("low")),
        ("watermarking_config", json!({"bias": 2.0})),
    ] {
        asking[name] = value;
    }
    let output = generate(&with_generation_config(&asking), "1,2", &more);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "warning: generation_config.json: not implemented and ignored: dola_layers, forced_eos_token_id, \
         guidance_scale, num_beams, penalty_alpha, sequence_bias, typical_p, watermarking_config\n"
    );
    assert!(output.status.success());
}

#[test]
fn stop_texts_of_a_model_without_a_tokenizer_are_refused() {
    let model = fixture(NO_TOKENIZER);
    refused(&["generate", "--model", &model, "--tokens", "1,2", "--stop", "x"], &["stop texts", "tokenizer"]);
}

#[test]
fn generate_repeats_itself_for_a_seed() {
    let model = fixture(DECODER);
    let run = |seed: &str| {
        json(&[
            "generate",
            "--model",
            &model,
            "--prompt",
            "Hello",
            "--temperature",
            "1",
            "--top-k",
            "50",
            "--top-p",
            "0.9",
            "--min-p",
            "0.01",
            "--seed",
            seed,
            "--max-new-tokens",
            "12",
            "--ignore-eos",
            "--json",
        ])["tokens"]
            .clone()
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn generate_ends_at_a_stop_string() {
    let model = fixture(DECODER);
    let run = |more: &[&str]| {
        let common = ["generate", "--model", &model, "--prompt", "Hello", "--max-new-tokens", "12", "--ignore-eos"];
        json(&[&common[..], more, &["--json"]].concat())
    };
    let whole = run(&[])["text"].as_str().expect("text").to_owned();
    let middle = whole.char_indices().nth(whole.chars().count() / 2).expect("some text").0;
    let stop: String = whole[middle..].chars().take(2).collect();
    let cut = run(&["--stop", &stop]);
    assert_eq!(cut["text"].as_str(), whole.find(&stop).map(|at| &whole[..at]));
    assert_eq!(cut["finish_reason"], "stop");
}

/// A copy of the decoder whose `tokenizer_config.json` names further special tokens.
fn with_special_tokens(tokens: &[&str]) -> TempDir {
    let folder = copy(DECODER);
    let path = folder.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a config")).expect("JSON");
    config["additional_special_tokens"] = json!(tokens);
    std::fs::write(path, config.to_string()).expect("written");
    folder
}

#[test]
fn stop_texts_are_searched_with_special_tokens() {
    // The tokens 358, 968, 148, 812 and 883 follow, of which the fourth is made a special one.
    const PROMPT: &str = "0,333,73,299,303,367,358";
    let vocab: Value =
        serde_json::from_slice(&std::fs::read(fixture_path(DECODER).join("tokenizer.json")).expect("a file"))
            .expect("JSON");
    let vocab = vocab["model"]["vocab"].as_object().expect("a vocabulary");
    let special = vocab.iter().find(|(_, id)| **id == json!(812)).expect("the token").0;
    let folder = with_special_tokens(&[special]);
    let of = |tokens: &str, more: &[&str]| -> Value {
        let output = generate(&folder, PROMPT, &[&["--max-new-tokens", tokens], more].concat());
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    let answer = |more: &[&str]| of("5", more);
    let whole = answer(&[]);
    assert_eq!(whole["tokens"], json!([358, 968, 148, 812, 883]));
    let shown = whole["text"].as_str().expect("text");
    let before = of("3", &[])["text"].as_str().expect("text").to_owned();
    let behind = shown.strip_prefix(&before).expect("it begins alike");

    let stopped = answer(&["--stop", special]);
    assert_eq!(stopped["tokens"], json!([358, 968, 148, 812]));
    assert_eq!((stopped["text"].as_str(), &stopped["finish_reason"]), (Some(&*before), &json!("stop")));
    // A stop text must not match across a token that is not shown.
    let joined = [before.chars().next_back().expect("text"), behind.chars().next().expect("text")];
    assert_eq!(answer(&["--stop", &joined.iter().collect::<String>()])["tokens"], whole["tokens"]);
    // An end token that is the stop text, and the checkpoint's own stop texts.
    let config = json!({"eos_token_id": 812, "stop_strings": [special]});
    std::fs::write(folder.path().join("generation_config.json"), config.to_string()).expect("written");
    let ended = answer(&[]);
    assert_eq!((&ended["tokens"], &ended["finish_reason"]), (&json!([358, 968, 148]), &json!("stop")));
    assert_eq!(answer(&["--ignore-eos"])["tokens"], json!([358, 968, 148, 812]));

    // Many prompts at once end at the same texts.
    let common = ["--dtype", "f32", "--max-new-tokens", "6", "--ignore-eos", "--json"];
    let hello = |folder: &TempDir, more: &[&str]| {
        let model = folder.path().to_str().expect("the path is UTF-8");
        json(&[&["generate", "--model", model][..], &common, more].concat())
    };
    let second = hello(&folder, &["--prompt", "Hello"])["tokens"][1].take();
    let second = vocab.iter().find(|(_, id)| **id == second).expect("the token").0;
    let folder = with_special_tokens(&[second]);
    let prompts = folder.path().join("prompts");
    std::fs::write(&prompts, "Hello\n").expect("written");
    let alone = hello(&folder, &["--prompt", "Hello", "--stop", second]);
    let prompts = prompts.to_str().expect("the path is UTF-8");
    let many = hello(&folder, &["--prompts-file", prompts, "--stop", second]);
    assert_eq!(alone["finish_reason"], "stop");
    for field in ["tokens", "text", "finish_reason"] {
        assert_eq!(many[field], alone[field], "{field}");
    }
}

#[test]
fn a_special_token_beyond_the_vocabulary_is_refused() {
    let folder = with_special_tokens(&["<new>"]);
    let model = folder.path().to_str().expect("the path is UTF-8");
    let common = ["generate", "--model", model, "--max-new-tokens", "1", "--prompt"];
    stdout(&sinew(&[&common[..], &["new"]].concat()));
    refused(&[&common[..], &["a <new>"]].concat(), &["1003", "vocabulary"]);
}

#[test]
fn a_class_that_contradicts_its_file_is_named() {
    let folder = copy(DECODER);
    let path = folder.path().join("tokenizer_config.json");
    let warnings = |config: Value| {
        std::fs::write(&path, config.to_string()).expect("written");
        let output = generate(&folder, "1", &["--max-new-tokens", "1"]);
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let end = json!({"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "<|begin|>", "eos_token": "<|end|>"});
    let told = warnings(end);
    assert!(
        told.contains("puts \"<|begin|>\" before a text") && told.contains("Sinew follows GPTNeoXTokenizer"),
        "{told}"
    );
    assert!(told.contains("which Sinew follows, differs from GPTNeoXTokenizer"), "{told}");
    assert!(told.lines().count() == 2, "{told}");
    let told = warnings(json!({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "bos_token": "<|begin|>"}));
    assert!(told.contains("has add_bos_token false, and tokenizer.json puts"), "{told}");
    assert!(told.lines().count() == 1, "{told}");
    assert_eq!(warnings(json!({"tokenizer_class": "TokenizersBackend", "bos_token": "<|begin|>"})), "");
}

#[test]
fn a_folder_without_a_tokenizer_serves_tokens() {
    let model = fixture(NO_TOKENIZER);
    let common = ["generate", "--model", &model, "--max-new-tokens", "3", "--ignore-eos"];
    let text = stdout(&sinew(&[&common[..], &["--tokens", "1,2,3"]].concat()));
    let tokens: Vec<u32> = text.trim().split(',').map(|t| t.parse().expect("a token id")).collect();
    assert_eq!(tokens.len(), 3);
    refused(&[&common[..], &["--prompt", "Hello"]].concat(), &["tokenizer.json", "--tokens"]);
}

/// Writes logits and returns the file's bytes, and what was printed.
fn logits(folder: &tempfile::TempDir, name: &str, arguments: &[&str]) -> (Vec<u8>, String) {
    let path: PathBuf = folder.path().join(name);
    let output = path.to_str().expect("the path is UTF-8");
    let printed = stdout(&sinew(&[&["logits", "--output", output], arguments].concat()));
    (std::fs::read(path).expect("the file was written"), printed)
}

/// A copy of a fixture whose config says something else.
fn changed(name: &str, field: &str, value: Value) -> tempfile::TempDir {
    let folder = copy(name);
    with_field(folder.path(), field, &value);
    folder
}

#[test]
fn logits_files_are_identical_for_chunks_threads_and_block_sizes() {
    // Longer than the default chunk and a group of 512 keys, at a length that nothing divides.
    const TOKENS: u32 = 613;
    let folder = tempfile::tempdir().expect("a folder for the files");
    // Rotary positions go on past those that the fixture's config allows.
    let model = changed(DECODER, "max_position_embeddings", Value::from(1024));
    let model = model.path().to_str().expect("the path is UTF-8");
    let tokens: Vec<String> = (0..TOKENS).map(|i| ((i * 31 + 5) % 1003).to_string()).collect();
    let tokens = tokens.join(",");
    for dtype in ["f32", "bf16"] {
        let common = ["--model", model, "--tokens", &tokens, "--dtype", dtype, "--kernels"];
        let (expected, printed) = logits(&folder, "expected", &common);
        assert!(printed.contains("steps: 2 of at most 512 tokens"), "{printed}");
        for (more, steps) in [
            (["--prefill-chunk", "1"], "613 of at most 1 "),
            (["--prefill-chunk", "7"], "88 of at most 7 "),
            (["--prefill-chunk", "64"], "10 of at most 64 "),
            (["--prefill-chunk", "10000"], "1 of at most 613 "),
            (["--threads", "1"], "2 of at most 512 "),
            (["--threads", "2"], "2 of at most 512 "),
            (["--threads", "5"], "2 of at most 512 "),
            (["--block-size", "8"], "2 of at most 512 "),
            (["--block-size", "64"], "2 of at most 512 "),
        ] {
            let (found, printed) = logits(&folder, "found", &[&common[..], &more].concat());
            assert!(printed.contains(&format!("steps: {steps}")), "{more:?}: {printed}");
            assert!(found == expected, "{dtype} {more:?}");
        }
    }
}

#[test]
fn a_cache_is_kept_in_the_dtype_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder for the files");
    let model = fixture(DECODER);
    let common = ["--model", &model, "--tokens", "1,2,3,4,5,6,7"];
    let kept = |kv: &str| logits(&folder, kv, &[&common[..], &["--kv-dtype", kv]].concat()).0;
    let all = ["f32", "f16", "bf16", "int8", "fp8"].map(kept);
    assert!((0..5).all(|i| (0..i).all(|j| all[i] != all[j])), "two dtypes give the same logits");
    assert!(all.contains(&kept("auto")));
    refused(
        &[&["logits", "--output", "none"], &common[..], &["--kv-dtype", "int4"]].concat(),
        &["f32", "int8 and fp8"],
    );
}

#[test]
fn old_tokens_are_kept_in_the_dtype_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder for the files");
    let model = fixture(DECODER);
    let tokens: Vec<String> = (0..140).map(|i| (i * 7 % 300).to_string()).collect();
    let tokens = tokens.join(",");
    let common = ["--model", &model, "--tokens", &tokens, "--kv-dtype", "f32"];
    let kept = |old: &[&str]| logits(&folder, "old", &[&common[..], old].concat()).0;
    let (full, int8) = (kept(&[]), kept(&["--kv-old", "int8", "--kv-recent", "40"]));
    assert!(full != int8 && int8 != kept(&["--kv-old", "fp8", "--kv-recent", "40"]));
    // Of so few tokens none is older than as many as are recent unless it is said.
    assert!(full == kept(&["--kv-old", "int8"]));
    let inspected = |more: &[&str]| json(&[&["inspect", &model, "--json", "--context", "240"], more].concat());
    let needs = |more: &[&str]| inspected(more)["needs"].clone();
    let old = needs(&["--kv-dtype", "f32", "--kv-old", "int8", "--kv-recent", "1"]);
    assert_eq!(old["kv_bytes_per_token"], needs(&["--kv-dtype", "int8"])["kv_bytes_per_token"]);
    let bytes = |needs: &Value| needs["kv_bytes"].as_u64().expect("a number");
    assert!(bytes(&old) > bytes(&needs(&["--kv-dtype", "int8"])), "{old}");
    for (more, words) in [
        (&["--kv-old", "bf16"][..], &["int8 and fp8"][..]),
        (&["--kv-recent", "40"], &["--kv-old"]),
        (&["--kv-old", "int8", "--kv-recent", "0"], &["--kv-recent"]),
    ] {
        refused(&[&["logits", "--output", "none"], &common[..], more].concat(), words);
    }
    let scaled = ["--model", &model, "--tokens", "1", "--kv-dtype", "fp8", "--kv-old", "int8"];
    let words = ["--kv-old is for a KV cache in f32, f16 or bf16", "--kv-dtype is fp8"];
    refused(&[&["logits", "--output", "none"], &scaled[..]].concat(), &words);
}

#[test]
fn logits_of_an_encoder_are_its_last_hidden_state() {
    let folder = tempfile::tempdir().expect("a folder for the file");
    let (bytes, _) = logits(&folder, "states", &["--model", &fixture(ENCODER), "--tokens", "1,2,3"]);
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("the file is valid");
    let states = file.tensor("last_hidden_state").expect("the tensor is there");
    assert_eq!(states.shape()[..2], [1, 3]);
    let output = folder.path().join("refused");
    let output = output.to_str().expect("the path is UTF-8");
    let model = fixture(ENCODER);
    let common = ["logits", "--model", &model, "--output", output];
    refused(
        &[&common[..], &["--tokens", "1", "--prefill-chunk", "0"]].concat(),
        &["--prefill-chunk", "whole numbers from 1 on"],
    );
    for length in [1000, 5000] {
        let tokens = vec!["1"; length].join(",");
        let length = format!("{length} tokens");
        refused(&[&common[..], &["--tokens", &tokens]].concat(), &[&length, "positions"]);
    }
}

#[test]
fn embed_prints_unit_vectors() {
    let value = json(&["embed", "--model", &fixture(ENCODER), "--json", "a text", ""]);
    let vectors = value["embeddings"].as_array().expect("vectors");
    assert_eq!(vectors.len(), 2);
    for vector in vectors {
        let norm: f64 = vector.as_array().expect("a vector").iter().filter_map(Value::as_f64).map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
}

#[test]
fn bench_prints_the_contract() {
    let model = fixture(NO_TOKENIZER);
    let value = json(&[
        "bench",
        "--model",
        &model,
        "--prompt-tokens",
        "32",
        "--new-tokens",
        "4",
        "--batch",
        "2",
        "--repeat",
        "1",
        "--json",
    ]);
    for key in [
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "prefill_share_of_limit",
        "decode_share_of_limit",
        "decode_bytes_per_token",
        "load_s",
        "time_to_first_token_s",
        "peak_rss_bytes",
        "kv_bytes_per_token",
        "threads",
    ] {
        assert!(value[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {value}");
    }
    assert_eq!(value["device"], "cpu");
    assert_eq!((&value["dtype"], &value["activations"]), (&json!("f32"), &json!("f32")));
    let quantized = ["bench", "--model", &model, "--prompt-tokens", "8", "--new-tokens", "2", "--repeat", "1"];
    let quantized = [&quantized[..], &["--dtype", "int8", "--group-size", "channel", "--activations", "int8"]].concat();
    assert_eq!(json(&[&quantized[..], &["--json"]].concat())["activations"], "int8");
    assert!(stdout(&sinew(&quantized)).contains(", activations int8\n"));
    // Of 20 values each with a scale, or of 80 bytes.
    let scaled = ["bench", "--model", &model, "--prompt-tokens", "8", "--new-tokens", "2", "--repeat", "1"];
    let scaled = json(&[&scaled[..], &["--kv-dtype", "int8", "--json"]].concat());
    let of_token = |value: &Value| value["kv_bytes_per_token"].as_u64().expect("a number");
    assert_eq!(80 * of_token(&scaled), 24 * of_token(&value));
}

#[test]
fn quality_prints_what_formats_and_activations_in_int8_cost() {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let bundled = bundled.to_str().expect("the path is UTF-8");
    let rows = |model: &str, more: &[&str]| -> Vec<Value> {
        let all = json(&[&["quality", "--json", "--model", model], more].concat());
        all["rows"].as_array().expect("rows").clone()
    };
    let tokens = ["--tokens", "1,5,9,17,33,20,41,8,30,62,7,77"];
    let cost = |row: &Value| row["kl_divergence"].as_f64().expect("a number");
    let every = rows(bundled, &tokens);
    let of = |activations: &str| every.iter().filter(|row| row["activations"] == activations).count();
    assert_eq!((of("bf16"), of("int8")), (10, 8));
    assert!(every.iter().all(|row| cost(row) > 0.0 && row["top1_agreement"].as_f64() <= Some(1.0)), "{every:?}");
    let int4 = rows(bundled, &[&tokens[..], &["--dtype", "int4"]].concat());
    assert_eq!(int4.iter().map(|row| &row["activations"]).collect::<Vec<_>>(), ["bf16", "int8"]);
    assert!(int4.iter().all(|row| row["weights"] == "int4, groups of 32" && row["bits"] == 4.5), "{int4:?}");
    assert_eq!(int4, every.iter().filter(|row| row["weights"] == "int4, groups of 32").cloned().collect::<Vec<_>>());
    let one = rows(bundled, &[&tokens[..], &["--dtype", "int4", "--activations", "int8"]].concat());
    assert_eq!(one, int4[1..]);
    // As it is stored nothing is rounded.
    let same = rows(bundled, &[&tokens[..], &["--dtype", "bf16"]].concat());
    assert!(same.len() == 1 && cost(&same[0]) == 0.0 && same[0]["top1_agreement"] == 1.0, "{same:?}");

    let published = rows(&fixture("quantized/gptq_4bit_g128_llama_f16"), &["--tokens", "1,2,3,4,5"]);
    let figures: Vec<_> = published.iter().map(|row| (&row["weights"], &row["activations"])).collect();
    assert_eq!(figures, [(&json!("GPTQ, 4 bits"), &json!("f32")), (&json!("GPTQ, 4 bits"), &json!("int8"))]);
    assert!(cost(&published[0]) < cost(&published[1]), "{published:?}");

    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "one\n\nanother text\n").expect("written");
    let file = file.path().to_str().expect("the path is UTF-8");
    let vectors = rows(&fixture(ENCODER), &["--file", file, "--dtype", "int8"]);
    let cosine = |row: &Value, which: &str| row[which].as_f64().expect("a number");
    for row in &vectors {
        assert!(
            cosine(row, "least_cosine") < 1.0 && cosine(row, "least_cosine") <= cosine(row, "mean_cosine"),
            "{row}"
        );
    }
    // Without a head none is kept.
    let all = rows(&fixture(ENCODER), &["--file", file]);
    assert_eq!(all.len(), 16);
    assert!(all.iter().all(|row| !row["weights"].as_str().expect("a name").contains("head")), "{all:?}");
    let text = stdout(&sinew(&["quality", "--model", &fixture(DECODER), "--file", file, "--dtype", "int8"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 4 && lines[0] == "beside the model in bf16:" && lines[1].ends_with("top-1"), "{text}");
    assert!(lines[2].starts_with("int8, groups of 32  8.50   bf16 ") && lines[3].contains(" int8 "), "{text}");

    refused(&["quality", "--model", bundled, "--activations", "int8"], &["--activations", "int8 or int4"]);
    refused(&["quality", "--model", &fixture(NO_TOKENIZER)], &["tokenizer.json", "--tokens"]);
    refused(&["quality", "--model", bundled, "--tokens", "1,100"], &["100"]);
    refused(&["quality", "--model", bundled, "--file", "/nowhere"], &["/nowhere"]);
    refused(&["quality", "--model", &fixture(ENCODER), "--kv-dtype", "int8"], &["--kv-dtype", "embeds texts"]);
}

#[test]
fn a_warning_of_a_model_that_is_loaded_often_is_said_once() {
    let folder = copy(DECODER);
    with_tensors(folder.path(), |tensors| drop(tensors.insert("spare".into(), (Dtype::F32, vec![1], vec![0; 4]))));
    let path = folder.path().to_str().expect("the path is UTF-8");
    let output = sinew(&["quality", "--model", path, "--tokens", "1,5,9", "--dtype", "int4"]);
    assert_eq!(stdout(&output).lines().count(), 4);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().count() == 1 && stderr.contains("are not used: spare"), "{stderr}");
}

#[test]
fn groups_that_no_kernel_takes_are_named_where_int8_activations_are_refused() {
    /// Groups of 16 of each that is stored.
    const GROUPS: usize = 128 / 16;
    let folder = copy("quantized/gptq_4bit_g128_llama_f16");
    let config = std::fs::read_to_string(folder.path().join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("valid JSON");
    config["quantization_config"]["group_size"] = json!(16);
    with_field(folder.path(), "quantization_config", &config["quantization_config"]);
    with_tensors(folder.path(), |tensors| {
        tensors.retain(|name, _| !name.ends_with(".g_idx"));
        let of_groups = |name: &String| name.ends_with(".scales") || name.ends_with(".qzeros");
        for (_, (_, shape, bytes)) in tensors.iter_mut().filter(|(name, _)| of_groups(name)) {
            let line = bytes.len() / shape[0];
            *bytes = bytes.chunks(line).flat_map(|line| line.repeat(GROUPS)).collect();
            shape[0] *= GROUPS;
        }
    });
    let model = folder.path().to_str().expect("the path is UTF-8");
    let generate = ["generate", "--model", model, "--tokens", "1,2", "--max-new-tokens", "1"];
    stdout(&sinew(&generate));
    for activations in ["int8", "bf16"] {
        let words = ["--activations", "groups of 16", "multiplied as floats", "quantizes them as they are loaded"];
        refused(&[&generate[..], &["--activations", activations]].concat(), &words);
    }
    stdout(&sinew(&[&generate[..], &["--activations", "int8", "--dtype", "int4"]].concat()));
    let weights = WeightOptions { activations: Some(Activations::Int8), ..WeightOptions::default() };
    let error = LanguageModel::load(folder.path(), &LoadOptions { weights, ..LoadOptions::default() });
    let error = error.expect_err("floats").to_string();
    assert!(error.contains("groups of 16") && error.contains("can be quantized again as they are loaded"), "{error}");
}

#[test]
fn quantized_weights_that_become_floats_are_named() {
    /// GPTQ with act-order, each weight with an order of its own.
    const OWN_ORDERS: &str = "quantized/gptq_4bit_g32_asym_desc_act_qwen2_f16_2layers";
    // With other groups of columns.
    let changed = |change: &dyn Fn(&str, &mut Vec<u8>)| {
        let folder = copy(OWN_ORDERS);
        with_tensors(folder.path(), |tensors| {
            for (name, (_, _, bytes)) in tensors.iter_mut().filter(|(name, _)| name.ends_with(".g_idx")) {
                change(name, bytes);
            }
        });
        folder
    };
    // What is said of a folder's first token.
    let run = |change: &dyn Fn(&str, &mut Vec<u8>), activations| {
        let folder = changed(change);
        let model = folder.path().to_str().expect("the path is UTF-8");
        let run = ["generate", "--model", model, "--tokens", "1,2", "--max-new-tokens", "1"];
        let output = sinew(&[&run[..], &["--activations", activations]].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // What is no part of a product with others has groups of unlike sizes, and so no product is left that reads activations
    // of either kind.
    let unlike = |name: &str, bytes: &mut Vec<u8>| {
        if name.contains("o_proj") || name.contains("down_proj") {
            bytes.fill(0);
        }
    };
    for activations in ["bf16", "int8"] {
        let (runs, said) = run(&|_, _| {}, activations);
        let words =
            ["10 quantized weights of products with parts in other orders of columns are held as f16", "_proj, …"];
        assert!(runs && said.lines().count() == 1 && words.iter().all(|word| said.contains(word)), "{said}");
        let in_order = |_: &str, bytes: &mut Vec<u8>| {
            let mut groups: Vec<[u8; 4]> = bytes.chunks_exact(4).map(|group| [group[0], 0, 0, 0]).collect();
            groups.sort_unstable();
            *bytes = groups.concat();
        };
        assert_eq!(run(&in_order, activations), (true, String::new()));
        let (runs, said) = run(&unlike, activations);
        assert!(!runs && said.contains("not for weights in groups of unlike sizes"), "{said}");
    }
    // Then they are not compared.
    let folder = changed(&unlike);
    let model = folder.path().to_str().expect("the path is UTF-8");
    let compared = stdout(&sinew(&["quality", "--model", model, "--tokens", "1,5,9"]));
    assert!(compared.lines().count() == 3 && compared.contains(" f32 "), "{compared}");
    let planned = stdout(&sinew(&["plan", &fixture(OWN_ORDERS)]));
    let line = planned.lines().find(|line| line.starts_with("dequantized")).expect("a line");
    assert!(line.contains("10 quantized weights of products"), "{line}");
}

#[test]
fn a_blank_group_index_is_told_once() {
    // Groups in order, whose index says so or is blank.
    const IN_ORDER: &str = "quantized/gptq_4bit_g128_llama_f16";
    let run = |index: Option<u8>, desc_act: bool| {
        let folder = copy(IN_ORDER);
        let config = std::fs::read_to_string(folder.path().join("config.json")).expect("a config");
        let mut section = serde_json::from_str::<Value>(&config).expect("valid JSON")["quantization_config"].clone();
        section["group_size"] = json!(32);
        section["desc_act"] = json!(desc_act);
        with_field(folder.path(), "quantization_config", &section);
        with_tensors(folder.path(), |tensors| {
            for (name, (_, shape, bytes)) in tensors.iter_mut() {
                // The number of scales stays, each repeated four times.
                if [".scales", ".qzeros"].iter().any(|end| name.ends_with(end)) {
                    let line = bytes.len() / shape[0];
                    *bytes = bytes.chunks(line).flat_map(|line| line.repeat(4)).collect();
                    shape[0] *= 4;
                }
                if name.ends_with(".g_idx") {
                    let of_column = |at: u32| index.map_or(at / 32, u32::from);
                    *bytes = (0..bytes.len() as u32 / 4).flat_map(|at| of_column(at).to_le_bytes()).collect();
                }
            }
        });
        let model = folder.path().to_str().expect("the path is UTF-8");
        let output = sinew(&["generate", "--model", model, "--tokens", "1,2,3", "--max-new-tokens", "8", "--json"]);
        let answer: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        (answer["tokens"].clone(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (expected, silent) = run(None, false);
    assert_eq!(silent, "");
    let (found, said) = run(Some(0), false);
    assert_eq!(found, expected);
    assert_eq!(said.lines().count(), 1, "{said}");
    for words in [".g_idx`", "is 0 for all inputs", "without `desc_act`", "ExLlamaV2", "in order"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (_, said) = run(Some(0), true);
    assert!(said.lines().any(|line| line.contains("g_idx") && line.contains("scales of group 0")), "{said}");
}

#[test]
fn a_plan_of_more_bytes_than_can_be_counted_says_so() {
    let batch = (usize::MAX / 2).to_string();
    let output = sinew(&["plan", &fixture(DECODER), "--batch", &batch]);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && error.starts_with("error: the model takes more than 16 EiB, "), "{error}");
    let cache = out.lines().find(|line| line.starts_with("KV cache")).expect("a line");
    assert!(cache.contains("more than 16 EiB") && !out.contains("16.0 EiB"), "{out}");
}

#[test]
fn the_help_of_a_command_lists_nothing_that_it_refuses() {
    const REFUSED: [&str; 5] = ["--memory-limit", "--kernel", "--deterministic", "--tuning", "--device"];
    for (command, refused) in [("devices", &REFUSED[..]), ("quantize", &REFUSED[..4])] {
        let help = stdout(&sinew(&[command, "--help"]));
        for refused in refused {
            assert!(!help.contains(refused), "{command} {refused}: {help}");
        }
        assert!(help.contains("--threads") && help.contains("--simd"), "{command}: {help}");
    }
    assert!(stdout(&sinew(&["generate", "--help"])).contains("--device"));
}

/// The command with as little address space as leaves no room to measure the machine.
#[cfg(target_os = "linux")]
fn in_little_memory(arguments: &[&str]) -> Output {
    /// Kilobytes: enough for a small model, and less than half of what is free.
    const LIMIT: &str = "500000";
    let inner = command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", LIMIT]).arg(inner.get_program()).args(arguments);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    command::run(&mut shell, "")
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_is_not_lost_where_the_limits_cannot_be_measured() {
    for (model, rate, share) in [
        (NO_TOKENIZER, "decode_tokens_per_s", "decode_share_of_limit"),
        (EMBEDDING, "encode_tokens_per_s", "encode_share_of_limit"),
    ] {
        let model = fixture(model);
        let bench =
            ["bench", "--model", &model, "--prompt-tokens", "8", "--repeat", "1", "--threads", "1", "--load", "read"];
        let generating: &[&str] = if share.starts_with("decode") { &["--new-tokens", "4"] } else { &[] };
        let bench = [&bench[..], generating].concat();
        let output = in_little_memory(&[&bench[..], &["--json"]].concat());
        let value: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert!(value[rate].as_f64().is_some_and(|rate| rate > 0.0), "{value}");
        assert!(value.get(share).is_some_and(Value::is_null), "{value}");
        assert!(value.get("limit_flops_per_s").is_some_and(Value::is_null), "{value}");
        let warning = String::from_utf8_lossy(&output.stderr);
        assert!(warning.starts_with("warning: no shares of limits") && warning.contains("out of memory"), "{warning}");
        assert!(stdout(&in_little_memory(&bench)).contains("    - % of - GFLOP/s"));
    }
}

#[test]
fn bench_past_the_context_says_prompt_and_new_tokens() {
    let model = fixture(NO_TOKENIZER);
    let bench = ["bench", "--model", &model, "--prompt-tokens", "20000", "--new-tokens", "30000"];
    refused(&bench, &["20000 prompt tokens and 30000 new tokens", "context"]);
}

#[test]
fn bench_of_a_model_that_embeds_texts_is_the_speed_of_embedding() {
    [ENCODER, EMBEDDING].into_iter().for_each(bench_embeds);
}

fn bench_embeds(model: &str) {
    let model = fixture(model);
    let common = ["bench", "--model", &model, "--prompt-tokens", "9", "--batch", "3", "--repeat", "1"];
    let value = json(&[&common[..], &["--json"]].concat());
    for key in ["encode_tokens_per_s", "encode_share_of_limit", "texts_per_s", "load_s", "peak_rss_bytes"] {
        assert!(value[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {value}");
    }
    assert!(stdout(&sinew(&common)).contains("texts/s"));
    let long = [&common[..4], &["99999"]].concat();
    refused(&long, &["99999 tokens", "positions"]);
    let most = usize::MAX.to_string();
    for batch in ["65537", "4294967296", &most] {
        let absurd = ["bench", "--model", &model, "--prompt-tokens", "8", "--batch", batch];
        refused(&absurd, &[&format!("--batch {batch}"), "at most 65536 texts of 8 tokens"]);
    }
}

#[test]
fn bench_without_new_tokens_has_no_decode_rate() {
    let model = fixture(NO_TOKENIZER);
    let common = ["bench", "--model", &model, "--prompt-tokens", "8", "--new-tokens", "0", "--repeat", "1"];
    let value = json(&[&common[..], &["--json"]].concat());
    assert!(value["prefill_tokens_per_s"].as_f64().is_some_and(|x| x > 0.0), "{value}");
    for key in ["decode_tokens_per_s", "decode_share_of_limit"] {
        assert!(value.get(key).is_some_and(Value::is_null), "{key}: {value}");
    }
    let text = stdout(&sinew(&common));
    let decode = text.lines().find(|line| line.starts_with("decode")).expect("a line about decoding");
    assert!(decode.contains("- tokens/s") && !decode.contains("inf") && !decode.contains("NaN"), "{decode}");
}

#[test]
fn devices_names_the_cpu_and_says_of_every_kind_what_there_is() {
    let value = json(&["devices", "--json"]);
    let kinds: Vec<&str> =
        value["devices"].as_array().expect("devices").iter().filter_map(|d| d["kind"].as_str()).collect();
    for kind in ["cpu", "cuda", "wgpu"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(stdout(&sinew(&["devices"])).contains("SIMD"));
    refused(&["devices", "--device", "nonsense"], &["nonsense"]);
    refused(&["devices", "--threads", "0"], &["threads"]);
    refused(&["devices", "--pin", "--threads", "4096"], &["4096 threads", "cores of their own"]);
    refused(&["devices", "--device", "cpu:7"], &["cpu:7"]);
    refused(&["explain", "softmax", "--pin", "--device", "wgpu"], &["--pin"]);
    refused(&["explain", "softmax", "--pin", "--device", "cpu:7"], &["cpu:7"]);
    refused(&["devices", "--kernel", "nope"], &["nope"]);
}

#[test]
fn explain_names_the_choice_and_why() {
    let value = json(&["explain", "gemm", "--m", "1", "--n", "4864", "--k", "896", "--dtype", "bf16", "--json"]);
    let candidates = value["candidates"].as_array().expect("candidates");
    assert_eq!(candidates.iter().filter(|c| c["chosen"] == true).count(), 1);
    assert!(candidates.len() >= 4);
    let text = stdout(&sinew(&["explain", "gemm", "--n", "64", "--k", "64", "--kernel", "gemm.cpu.portable"]));
    assert!(text.lines().any(|l| l.starts_with("* gemm.cpu.portable") && l.contains("preferred")), "{text}");
}

#[test]
fn wrong_input_is_one_clear_line() {
    let model = fixture(DECODER);
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().to_str().expect("the path is UTF-8");
    let output = folder.path().join("out");
    let output = output.to_str().expect("the path is UTF-8");
    let generate = |more: &[&'static str]| [&["generate", "--max-new-tokens", "1"], more].concat();
    let with_model = |arguments: &[&str]| -> Vec<String> {
        arguments.iter().map(|a| (*a).to_owned()).chain(["--model".to_owned(), model.clone()]).collect()
    };
    let refused_with_model = |arguments: &[&str], words: &[&str]| {
        let arguments = with_model(arguments);
        refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), words);
    };

    refused(&["generate", "--model", "/nowhere", "--prompt", "x"], &["/nowhere", "config.json"]);
    refused(&["generate", "--model", empty, "--prompt", "x"], &["config.json"]);
    let file = format!("{model}/model.safetensors");
    refused(&["generate", "--model", &file, "--prompt", "x"], &["model.safetensors is a file", "a folder"]);
    refused_with_model(&generate(&["--tokens", "1,1003"]), &["1003", "vocabulary"]);
    refused_with_model(&generate(&["--tokens", ""]), &["no token"]);
    let long = vec!["1"; 5000].join(",");
    refused_with_model(&["generate", "--tokens", &long], &["more than the 256 tokens", "context"]);
    refused_with_model(&["logits", "--tokens", &long, "--output", output], &["more than the 256 tokens", "context"]);
    refused_with_model(&["logits", "--tokens", "1,2", "--output", "/nowhere/x"], &["/nowhere/x"]);
    refused_with_model(&generate(&["--tokens", "1", "--temperature", "-1"]), &["temperature"]);
    refused_with_model(&generate(&["--tokens", "1", "--device", "cuda"]), &["cuda"]);
    refused_with_model(&generate(&["--tokens", "1", "--device", "wgpu:99"]), &["wgpu:99"]);
    refused_with_model(&generate(&["--tokens", "1", "--device", "tpu"]), &["tpu"]);
    refused_with_model(&generate(&["--tokens", "1", "--threads", "0"]), &["threads"]);
    refused_with_model(&generate(&["--tokens", "1", "--kernel", "gemm.nope"]), &["gemm.nope"]);
    refused_with_model(&["embed", "a text"], &["llama", "embed"]);
    refused(&["generate", "--model", &fixture(ENCODER), "--prompt", "x"], &["bert", "decoders"]);

    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "mamba"}"#).expect("the file is written");
    refused(&["generate", "--model", empty, "--tokens", "1"], &["mamba", "llama"]);
    let config = std::fs::read(Path::new(&model).join("config.json")).expect("the fixture has a config");
    std::fs::write(folder.path().join("config.json"), config).expect("the file is written");
    refused(&["generate", "--model", empty, "--tokens", "1"], &["model.safetensors"]);
    std::fs::write(folder.path().join("model.safetensors"), b"not a checkpoint").expect("the file is written");
    refused(&["generate", "--model", empty, "--tokens", "1"], &["model.safetensors"]);
    let other = Path::new(&fixture(NO_TOKENIZER)).join("model.safetensors");
    std::fs::copy(other, folder.path().join("model.safetensors")).expect("the file is copied");
    refused(&["generate", "--model", empty, "--tokens", "1"], &["shape"]);
}

#[test]
fn sizes_that_no_machine_has_are_refused_at_once() {
    let model = fixture(NO_TOKENIZER);
    let generate = |field: &str, value: u32, more: &[&str], words: &[&str]| {
        let folder = changed(NO_TOKENIZER, field, Value::from(value));
        let path = folder.path().to_str().expect("the path is UTF-8");
        refused(&[&["generate", "--model", path, "--tokens", "1"], more].concat(), words);
    };
    generate("head_dim", 2_147_483_646, &[], &["head_dim"]);
    let most = usize::MAX.to_string();
    let long = ["--max-new-tokens", &most];
    generate("max_position_embeddings", 2_147_483_647, &long, &["2147483647 tokens", "free"]);
    for batch in [&most, "1000000000000"] {
        let short = ["--prompt-tokens", "8", "--new-tokens", "8"];
        refused(&[&["bench", "--model", &model, "--batch", batch], &short[..]].concat(), &["sequences", "free"]);
    }
    refused(&["generate", "--model", &model, "--tokens", "1", "--block-size", &most], &["free"]);
}

#[test]
fn a_checkpoint_without_a_head_must_say_that_it_is_the_embedding() {
    let folder = changed(DECODER, "tie_word_embeddings", Value::from(false));
    let path = folder.path().to_str().expect("the path is UTF-8");
    refused(&["generate", "--model", path, "--tokens", "1"], &["lm_head.weight"]);
}

#[test]
fn a_reader_that_goes_away_is_an_error_and_no_panic() {
    let model = fixture(NO_TOKENIZER);
    let bench = ["bench", "--model", &model, "--prompt-tokens", "4", "--new-tokens", "1", "--repeat", "1"];
    for arguments in [&["devices"][..], &["explain", "gemm", "--n", "8", "--k", "8"], &bench, &[]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let Ok(full) = full else { continue };
        let output = command().args(arguments).stdout(full).output();
        let output = output.expect("the command starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.trim_end().lines().count()), (Some(1), 1), "{arguments:?}: {stderr}");
    }
}

#[test]
fn an_error_that_cannot_be_said_keeps_its_exit_code() {
    for (arguments, code) in [
        (&["generate", "--model", "/nowhere", "--prompt", "x"][..], 1),
        (&["devices", "--device", "nonsense"], 1),
        (&["nonsense"], 2),
        (&["explain"], 2),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let Ok(full) = full else { continue };
        let status = command().args(arguments).stdout(Stdio::null()).stderr(full).status();
        assert_eq!(status.expect("the command starts").code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Path::new(&fixture(NO_TOKENIZER)).join("config.json");
    std::fs::copy(config, folder.path().join("config.json")).expect("the file is copied");
    let value = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &[0; 4]).expect("a tensor");
    let names = ["model.embed_tokens.weigh\u{1b}[31m\u{9b}", "model.embed_tokens.weigh\u{7}\r\n"];
    let bytes = safetensors::serialize(names.map(|name| (name, &value)), None).expect("a checkpoint");
    std::fs::write(folder.path().join("model.safetensors"), bytes).expect("the file is written");
    let path = folder.path().to_str().expect("the path is UTF-8");
    let output = sinew(&["generate", "--model", path, "--tokens", "1"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(r"weigh\u{1b}[31m\u{9b}") && stderr.contains(r"weigh\u{7}"), "{stderr}");
    assert!(!stderr.trim_end_matches('\n').chars().any(char::is_control), "{stderr:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_after_the_running_chunk_and_leaves_no_file() {
    const LONG: u64 = 50_000;
    let model = changed(NO_TOKENIZER, "max_position_embeddings", Value::from(LONG));
    let model = model.path().to_str().expect("the path is UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out");
    let output = output.to_str().expect("the path is UTF-8");
    let tokens = vec!["1"; LONG as usize].join(",");
    let count = LONG.to_string();
    let chunk = ["--model", model, "--prefill-chunk", "1"];
    let logits = ["logits", "--tokens", &tokens, "--output", output];
    let bench = ["bench", "--prompt-tokens", &count, "--new-tokens", "0", "--repeat", "1"];
    for arguments in [&logits[..], &bench] {
        let (output, time) = interrupted(command().args(arguments).args(chunk));
        // All chunks take many times as long.
        let code = output.status.code();
        assert!(code == Some(130) && time.as_secs() < 10, "{}: {code:?} after {time:?}", arguments[0]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder is there").count(), 0);
}

#[test]
fn logits_go_to_regular_files_only_and_leave_nothing_half_written() {
    let model = fixture(NO_TOKENIZER);
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join("results");
    std::fs::create_dir(&inside).expect("the folder is made");
    let inside = inside.to_str().expect("the path is UTF-8");
    refused(&["logits", "--model", &model, "--tokens", "1", "--output", inside], &["regular file"]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder is there").count(), 1);
}
