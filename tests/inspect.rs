//! `sinew inspect` and `sinew settings`.

use std::path::Path;
use std::process::Output;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use sinew::models::{Load, Tensors};

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, run, stdout};
use fixtures::{copy, fixture};

const DECODER: &str = "qwen2_gqa3_hd12_f16_untied_3shards";

fn sinew(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    run(command().env_remove("SINEW_SIMD").envs(variables.iter().copied()).args(arguments), "")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("the output is one JSON value and nothing else")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a whole number")
}

#[test]
fn inspect_says_what_the_files_hold_and_what_the_model_needs() {
    let model = fixture(DECODER);
    let value = json(&sinew(&["inspect", &model, "--json"], &[]));
    let tensors = value["tensors"].as_array().expect("tensors");
    let elements =
        |tensor: &Value| -> u64 { tensor["shape"].as_array().expect("a shape").iter().map(number).product() };
    let bytes: u64 = tensors.iter().map(|tensor| number(&tensor["bytes"])).sum();
    assert_eq!(bytes, tensors.iter().map(|tensor| 2 * elements(tensor)).sum::<u64>());
    assert_eq!(value["totals"]["F16"]["bytes"], bytes);
    assert_eq!(value["totals"]["F16"]["tensors"], tensors.len());
    assert_eq!(value["architecture"], "qwen2");
    assert!(value["refused"].is_null());
    let shards = ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"];
    assert!(shards.iter().all(|shard| tensors.iter().any(|tensor| tensor["shard"] == *shard)));

    let config: Value = serde_json::from_str(
        &std::fs::read_to_string(Path::new(&model).join("config.json")).expect("the fixture has a config"),
    )
    .expect("valid JSON");
    let heads = number(&config["num_attention_heads"]);
    let head_dim = number(&config["hidden_size"]) / heads;
    let kv = 2 * number(&config["num_hidden_layers"]) * number(&config["num_key_value_heads"]) * head_dim;
    let needs = |more: &[&str]| json(&sinew(&[&["inspect", &model, "--json"], more].concat(), &[]))["needs"].clone();
    assert_eq!(needs(&[])["kv_bytes_per_token"], 2 * kv);
    let wide = needs(&["--dtype", "f32", "--context", "10"]);
    // Ten tokens take one block of 16.
    assert_eq!((number(&wide["kv_bytes_per_token"]), number(&wide["kv_bytes"])), (4 * kv, 16 * 4 * kv));
    let scales = 4 * kv / head_dim;
    for dtype in ["int8", "fp8"] {
        let scaled = needs(&["--kv-dtype", dtype, "--context", "10"]);
        assert_eq!(number(&scaled["kv_bytes_per_token"]), kv + scales, "{dtype}");
        assert_eq!(number(&scaled["kv_bytes"]), 16 * (kv + scales), "{dtype}");
    }
    // All weights at their width in memory, whatever they have in the files, in panels that are filled up.
    let weights = number(&wide["weight_bytes"]);
    assert!(weights >= 2 * bytes && weights < 3 * bytes, "{weights} for {bytes} in the files");
    let parts = ["weight_bytes", "kv_bytes", "activation_bytes", "table_bytes", "logit_bytes"];
    assert_eq!(number(&wide["total_bytes"]), parts.iter().map(|part| number(&wide[part])).sum::<u64>());
    let longer = needs(&["--dtype", "f32", "--context", "26"]);
    assert_eq!(number(&longer["kv_bytes"]), 2 * number(&wide["kv_bytes"]));
    assert_eq!(number(&longer["table_bytes"]) * 10, number(&wide["table_bytes"]) * 26);

    let text = stdout(&sinew(&["inspect", &model], &[]));
    for words in ["architecture  qwen2, a decoder", "model.norm.weight", "F16", "KV cache", "bytes per token", "needs"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn inspect_plans_what_embeds_for_embedding() {
    let encoder = fixture("bert_hd20_f16");
    let text = stdout(&sinew(&["inspect", &encoder], &[]));
    assert!(text.contains("architecture  bert, an encoder: "), "{text}");
    let needs = json(&sinew(&["inspect", &encoder, "--json"], &[]))["needs"].clone();
    assert!(needs["context"].is_null() && number(&needs["kv_bytes"]) == 0 && number(&needs["logit_bytes"]) == 0);
    assert!(number(&needs["activation_bytes"]) > 0, "{needs}");
    let decoder = fixture("qwen3_embedding_no_prefix_gqa3_hd20_bf16");
    let needs = json(&sinew(&["inspect", &decoder, "--json"], &[]))["needs"].clone();
    assert!(needs["context"].is_null() && number(&needs["kv_bytes"]) > 0 && number(&needs["logit_bytes"]) == 0);
    let output = sinew(&["inspect", &encoder, "--context", "10"], &[]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("--context"));
}

#[test]
fn inspect_shows_the_tensors_of_a_model_that_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = "model.safetensors";
    let from = Path::new(&fixture("qwen3_gqa3_hd20_f32_untied_biases_old_config")).join(weights);
    std::fs::copy(from, folder.path().join(weights)).expect("copied");
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "mamba"}"#).expect("written");
    let path = folder.path().to_str().expect("the path is UTF-8");
    let output = sinew(&["inspect", path, "--json"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let (value, stderr) = (json(&output), String::from_utf8_lossy(&output.stderr));
    assert!(value["refused"].as_str().is_some_and(|why| why.contains("mamba")), "{value}");
    assert!(!value["tensors"].as_array().expect("tensors").is_empty() && value["needs"].is_null());
    assert!(stderr.contains("mamba") && stderr.lines().count() == 1, "{stderr}");
    // A file by itself has no config, and that is no error.
    let file = folder.path().join(weights);
    let output = sinew(&["inspect", file.to_str().expect("the path is UTF-8")], &[]);
    assert!(stdout(&output).contains("no config.json"));
}

/// What of a model's tensor is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Missing,
    Shape,
    DType,
}

/// Rewrites a file with one of its tensors damaged.
fn damage(file: &Path, name: &str, damage: Damage) {
    let bytes = std::fs::read(file).expect("the fixture is there");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid");
    let damaged = tensors.tensors().into_iter().filter_map(|(other, view)| {
        let (mut dtype, mut shape) = (view.dtype(), view.shape().to_vec());
        match damage {
            _ if other != name => {}
            Damage::Missing => return None,
            Damage::Shape => shape.insert(0, 1),
            Damage::DType => dtype = if dtype == Dtype::F32 { Dtype::I32 } else { Dtype::I16 },
        }
        let start = view.data().as_ptr().addr() - bytes.as_ptr().addr();
        let view = TensorView::new(dtype, shape, &bytes[start..start + view.data().len()]).expect("as large as before");
        Some((other, view))
    });
    let damaged = safetensors::serialize(damaged.collect::<Vec<_>>(), None).expect("a file");
    std::fs::write(file, damaged).expect("written");
}

#[test]
fn inspect_refuses_the_tensors_that_loading_refuses_in_the_same_words() {
    let generate = &["generate", "--tokens", "1", "--max-new-tokens", "1"][..];
    let embed = &["embed", "a text"][..];
    for (model, command, spare) in [
        ("llama3_rope_gqa3_hd20_bf16_tied_bpe", generate, "none"),
        ("mixtral_5experts_window_gqa3_hd20_bf16", generate, "none"),
        ("gpt2_no_prefix_hd12_f32_with_masks_old_config", generate, ".attn.bias"),
        ("bert_hd20_f32_wordpiece", embed, "pooler.dense"),
        ("qwen3_embedding_no_prefix_gqa3_hd20_bf16", embed, "none"),
    ] {
        let file = "model.safetensors";
        let all = Tensors::open(fixture(model), Load::Read).expect("the fixture opens");
        let mut checked = 0;
        for name in all.names().filter(|name| !name.contains(spare)) {
            // The parts of the first layer stand for those of the others.
            if name.contains(".1.") {
                continue;
            }
            for how in [Damage::Missing, Damage::Shape, Damage::DType] {
                let folder = copy(model);
                damage(&folder.path().join(file), name, how);
                let path = folder.path().to_str().expect("the path is UTF-8");
                let inspected = sinew(&["inspect", path, "--json"], &[]);
                let loaded = sinew(&[command, &["--model", path]].concat(), &[]);
                let line = |output: &Output| {
                    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                    let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
                    errors.concat()
                };
                let (value, error) = (json(&inspected), line(&loaded));
                let what = format!("{model}, {name}, {how:?}: {error}");
                assert_eq!(line(&inspected), error, "{what}");
                assert_eq!(inspected.status.code(), loaded.status.code(), "{what}");
                assert_eq!(
                    value["refused"].as_str().map(|line| format!("error: {line}")),
                    Some(error.clone()),
                    "{what}"
                );
                let (stem, _) = name.rsplit_once('.').expect("a weight or a bias");
                assert!(error.contains(stem), "{what}");
                assert!(
                    value["needs"].is_null() && !value["tensors"].as_array().expect("tensors").is_empty(),
                    "{what}"
                );
                let text = String::from_utf8_lossy(&sinew(&["inspect", path], &[]).stdout).into_owned();
                assert!(text.contains(&error.replace("error: ", "refused       ")), "{what}: {text}");
                checked += 1;
            }
        }
        assert!(checked >= 30, "{model}: {checked}");
    }
}

#[test]
fn settings_name_what_decided() {
    let setting = |arguments: &[&str], variables: &[(&str, &str)], name: &str| {
        let value = json(&sinew(&[&["settings", "--json"], arguments].concat(), variables));
        let all = value["settings"].as_array().expect("settings").clone();
        let found = all.iter().find(|setting| setting["name"] == name).expect(name).clone();
        let text = |field: &str| found[field].as_str().expect("a text").to_owned();
        (text("value"), text("source"))
    };
    let is = |(value, source): (String, String), expected: (&str, &str)| assert_eq!((&*value, &*source), expected);
    is(setting(&[], &[], "device"), ("cpu", "default"));
    is(setting(&["--threads", "1"], &[], "threads"), ("1", "--threads"));
    is(setting(&[], &[], "pin"), ("false", "default"));
    for cpu in ["cpu", "cpu:0"] {
        is(setting(&["--pin", "--device", cpu], &[], "pin"), ("true", "--pin"));
    }
    is(setting(&[], &[("SINEW_SIMD", "portable")], "simd"), ("portable", "SINEW_SIMD"));
    is(setting(&[], &[("HF_HOME", "/a")], "hub_cache"), ("/a/hub", "HF_HOME"));
    is(setting(&[], &[("HF_HOME", "/a"), ("HF_HUB_CACHE", "/b")], "hub_cache"), ("/b", "HF_HUB_CACHE"));
    is(setting(&[], &[("HF_HUB_OFFLINE", "1")], "hub_offline"), ("true", "HF_HUB_OFFLINE"));
    is(setting(&[], &[("TRANSFORMERS_OFFLINE", "1")], "hub_offline"), ("true", "TRANSFORMERS_OFFLINE"));
    let both = [("TRANSFORMERS_OFFLINE", "1"), ("HF_HUB_OFFLINE", "0")];
    is(setting(&[], &both, "hub_offline"), ("false", "HF_HUB_OFFLINE"));
    is(setting(&[], &[("HOME", "/me"), ("HF_HOME", "~/a")], "hub_cache"), ("/me/a/hub", "HF_HOME"));
    is(setting(&[], &[("HF_TOKEN", "secret")], "hub_token"), ("set", "HF_TOKEN"));
    let output = sinew(&["settings"], &[("HF_TOKEN", "secret")]);
    assert!(stdout(&output).contains("HF_TOKEN") && !stdout(&output).contains("secret"));
    assert!(!sinew(&["settings"], &[("SINEW_SIMD", "nonsense")]).status.success());
}

#[test]
fn tensors_that_a_model_does_not_use_are_a_warning() {
    let warnings = |model: &str, arguments: &[&str]| {
        let output = sinew(&[arguments, &["--model", &fixture(model)]].concat(), &[]);
        stdout(&output);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let generate = ["generate", "--tokens", "1", "--max-new-tokens", "1"];
    let stderr = warnings("gemma3_with_images_gqa3_hd20_bf16_old_config", &generate);
    assert!(stderr.starts_with("warning: 34 of ") && stderr.contains("multi_modal_projector"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    // A pooler that only tasks use that are not here, and masks that every model of the kind computes.
    assert_eq!(warnings("bert_hd20_f32_wordpiece", &["embed", "a text"]), "");
    let stderr = warnings("gpt2_no_prefix_hd12_f32_with_masks_old_config", &generate);
    assert!(!stderr.contains("not used"), "{stderr}");
}
