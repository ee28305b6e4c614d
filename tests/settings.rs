//! Settings of the command: files, variables and arguments, and that they decide.

use std::path::Path;

use serde_json::Value;
use sinew::models::settings::FIELDS;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, refused, run, sinew, stdout};
use fixtures::fixture;

/// A text that is no value of any setting but those that take any.
const NONSENSE: &str = "no such value";
/// Settings that take any text, or any list of it.
const ANY: [&str; 8] =
    ["device", "kernels", "tuning_cache", "device_cache", "kernel_cache", "hub_cache", "hub_endpoint", "hub_token"];

fn settings(arguments: &[&str], variables: &[(&str, &str)]) -> Vec<Value> {
    let mut command = command();
    command.args(["settings", "--json"]).args(arguments).envs(variables.iter().copied());
    let report: Value = serde_json::from_str(&stdout(&run(&mut command, ""))).expect("JSON");
    report["settings"].as_array().expect("a list").clone()
}

/// The value of a setting, and what decided it.
fn setting(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (String, String) {
    let all = settings(arguments, variables);
    let found = all.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let text = |of: &str| found[of].as_str().expect("a text").to_owned();
    (text("value"), text("source"))
}

#[test]
fn every_setting_is_listed_with_what_it_means_and_read_from_variables_and_arguments() {
    let all = settings(&[], &[]);
    for field in FIELDS {
        let listed = all.iter().find(|setting| setting["name"] == field.name).expect(field.name);
        assert_eq!(listed["doc"], field.doc());
        // That it is read shows in that nonsense is refused, by both.
        if !ANY.contains(&field.name) {
            let variable = run(command().arg("settings").env(field.variable(), NONSENSE), "");
            refused(&variable, &[&field.variable(), NONSENSE]);
            let set = run(command().args(["settings", "--set", &format!("{}={NONSENSE}", field.name)]), "");
            refused(&set, &["--set", NONSENSE]);
        }
    }
    // Each argument is one of some command, with the same words.
    let commands: &[&[&str]] = &[&[], &["generate"], &["plan"], &["chat"], &["inspect"], &["bench"], &["replay"]];
    let help: Vec<String> = commands
        .iter()
        .map(|words| {
            stdout(&run(command().args(*words).arg("--help"), "")).split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect();
    for field in FIELDS {
        let Some(argument) = field.argument else { continue };
        let doc = field.doc();
        let words = doc.trim_end_matches('.').split_whitespace().collect::<Vec<_>>().join(" ");
        let found = help.iter().any(|text| text.contains(&format!("--{argument}")) && text.contains(&words));
        assert!(found, "--{argument} is no argument that says: {words}");
    }
}

#[test]
fn a_file_decides_before_defaults_and_arguments_before_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.toml");
    std::fs::write(&file, "# mine\nthreads = 1\nkv_dtype = \"int8\"\nkernels = [\"gemm.cpu.portable\"]\n")
        .expect("written");
    let path = file.to_str().expect("UTF-8");
    let from_file = (("1".to_owned(), format!("{path}:2")), ("int8".to_owned(), format!("{path}:3")));
    assert_eq!(setting("threads", &["--settings", path], &[]), from_file.0);
    assert_eq!(setting("kv_dtype", &[], &[("SINEW_SETTINGS", path)]), from_file.1);
    let is = |(value, source): (String, String), expected: (&str, &str)| assert_eq!((&*value, &*source), expected);
    let named = [("SINEW_SETTINGS", path), ("SINEW_THREADS", "2")];
    is(setting("threads", &[], &named), ("2", "SINEW_THREADS"));
    is(setting("threads", &["--threads", "3"], &named), ("3", "--threads"));
    is(setting("threads", &["--set", "threads=4"], &named), ("4", "--set threads"));
    is(setting("threads", &["--set", "threads=4", "--threads", "3"], &named), ("3", "--threads"));
    is(setting("kernels", &[], &named), ("gemm.cpu.portable", &format!("{path}:4")));
    is(setting("pin", &["--set", "pin=true", "--pin=false"], &[]), ("false", "--pin"));
    std::fs::write(&file, "thread = 1\n").expect("written");
    refused(&run(command().args(["settings", "--settings", path]), ""), &["settings.toml:1", "threads"]);
    refused(&run(command().args(["settings", "--settings", "/nowhere/x"]), ""), &["/nowhere/x"]);
}

#[test]
fn what_is_printed_as_toml_says_the_same_when_it_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.toml");
    let given = ["--threads", "2", "--set", "dtype=int4", "--set", "kv_old=fp8", "--set", "hub_offline=true"];
    let printed = stdout(&run(command().args(["settings", "--toml"]).args(given), ""));
    std::fs::write(&file, &printed).expect("written");
    let values = |arguments: &[&str]| {
        settings(arguments, &[]).iter().map(|setting| setting["value"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(values(&["--settings", file.to_str().expect("UTF-8")]), values(&given));
}

#[test]
fn what_is_set_is_what_a_model_is_loaded_with() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let plan = |arguments: &[&str], variables: &[(&str, &str)]| -> Value {
        let mut command = command();
        command.args(["plan", "--json"]).args(arguments).arg(&model).envs(variables.iter().copied());
        serde_json::from_str(&stdout(&run(&mut command, ""))).expect("JSON")
    };
    let usual = plan(&[], &[]);
    let of_token = |report: &Value| report["kv_bytes_per_token"].as_u64().expect("a number");
    let int8 = plan(&["--kv-dtype", "int8"], &[]);
    assert!(of_token(&int8) < of_token(&usual));
    assert_eq!(plan(&[], &[("SINEW_KV_DTYPE", "int8")])["kv_bytes_per_token"], int8["kv_bytes_per_token"]);
    assert_eq!(plan(&["--set", "kv_dtype=int8"], &[])["kv_bytes_per_token"], int8["kv_bytes_per_token"]);
    assert_eq!(plan(&[], &[("SINEW_CONTEXT", "64")])["context"], 64);
    let limited = plan(&[], &[("SINEW_MEMORY_LIMIT", "500MB")]);
    assert_eq!(
        (&limited["limit_bytes"], &limited["limit_source"]),
        (&500_000_000.into(), &"SINEW_MEMORY_LIMIT".into())
    );
    let generate = |limit: &str| {
        let arguments = ["generate", "--prompt", "add 417+85=", "--max-new-tokens", "8", "--memory-limit", limit];
        run(command().args(arguments).arg("--model").arg(&model), "")
    };
    assert_eq!(stdout(&generate("100MiB")).trim(), "502");
    refused(&generate("2MiB"), &["weights", "are free on cpu"]);
}

/// What serves the largest products of a run.
fn product_kernel(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = command();
    command.args(["explain", "gemm", "--m", "64", "--n", "512", "--k", "512", "--dtype", "f32", "--json"]);
    command.env_remove("SINEW_SIMD").args(arguments).envs(variables.iter().copied());
    let report: Value = serde_json::from_str(&stdout(&run(&mut command, ""))).expect("JSON");
    let chosen = report["candidates"].as_array().expect("a list").iter().find(|candidate| candidate["chosen"] == true);
    chosen.expect("one is chosen")["kernel"].as_str().expect("a name").to_owned()
}

#[test]
fn the_level_is_taken_back_by_an_argument_also_on_the_device() {
    let usual = product_kernel(&[], &[]);
    let capped = [("SINEW_SIMD", "portable")];
    assert_eq!(product_kernel(&["--simd", "portable"], &[]), product_kernel(&[], &capped));
    for back in [&["--simd", "auto"][..], &["--set", "simd=auto"], &["--simd", "auto", "--pin"]] {
        assert_eq!(product_kernel(back, &capped), usual, "{back:?}");
        let device = stdout(&run(command().arg("devices").args(back).envs(capped), ""));
        assert_eq!(device.contains("SIMD portable"), usual.contains("portable"), "{device}");
        if !back.contains(&"--pin") {
            assert_eq!(setting("simd", back, &capped).0, setting("simd", back, &[]).0);
        }
    }
    let device = stdout(&run(command().args(["devices", "--simd", "portable"]), ""));
    assert!(device.contains("SIMD portable"), "{device}");
}

/// What is refused, with what is said of it.
type Refused<'a> = (&'a [&'a str], &'a [&'a str]);

#[test]
fn arguments_that_decide_nothing_are_refused_and_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out").into_os_string().into_string().expect("UTF-8");
    let file = fixture("bert_hd20_f32_wordpiece/model.safetensors");
    let [encoder, embedding, decoder] =
        ["bert_hd20_f32_wordpiece", "qwen3_embedding_no_prefix_gqa3_hd20_bf16", "llama3_rope_gqa3_hd20_bf16_tied_bpe"]
            .map(fixture);
    let check = |command: &[&str], (arguments, words): Refused<'_>| {
        refused(&sinew(&[command, arguments].concat()), words);
    };
    // What is for models that generate, of those that embed texts.
    let stepping: [Refused<'_>; 6] = [
        (&["--kv-dtype", "int8"], &["--kv-dtype", "embeds texts"]),
        (&["--kv-old", "int8", "--kv-recent", "7"], &["--kv-old", "embeds texts"]),
        (&["--block-size", "8"], &["--block-size", "embeds texts"]),
        (&["--prefill-chunk", "8"], &["--prefill-chunk", "embeds texts"]),
        (&["--set", "block_size=8"], &["--set block_size", "embeds texts"]),
        (&["--set", "kv_dtype=int8"], &["--set kv_dtype", "embeds texts"]),
    ];
    for model in [&*encoder, &embedding] {
        for command in [
            &["bench", "--model", model, "--prompt-tokens", "4"][..],
            &["tune", "--model", model, "--budget", "0.1"],
            &["explain", "--model", model, "--prompt-tokens", "4"],
            &["logits", "--model", model, "--tokens", "1", "--output", &output],
            &["plan", model],
            &["inspect", model],
        ] {
            stepping.iter().for_each(|refused| check(command, *refused));
        }
        check(&["plan", model], (&["--batch", "2"], &["--batch", "embeds texts"]));
        check(&["plan", model], (&["--cache-tokens", "64"], &["--cache-tokens", "embeds texts"]));
        check(&["embed", "--model", model, "a text"], (stepping[5].0, &["--set kv_dtype", "`sinew embed`"]));
    }
    // A head that is kept, of models that have none.
    for model in [&*encoder, &embedding] {
        for command in [
            &["embed", "--model", model, "a text"][..],
            &["quality", "--model", model],
            &["logits", "--model", model, "--tokens", "1", "--output", &output],
            &["plan", model],
            &["inspect", model],
            &["quantize", "--model", model, "--output", &output],
        ] {
            check(&[command, &["--dtype", "int8"]].concat(), (&["--keep-head"], &["--keep-head", "embeds texts"]));
        }
    }
    // Of quantizing, where nothing is quantized.
    for command in [
        &["generate", "--model", &decoder, "--tokens", "1"][..],
        &["plan", &decoder],
        &["inspect", &decoder, "--dtype", "f32"],
        &["embed", "--model", &encoder, "a text"],
        &["explain", "gemm", "--n", "64", "--k", "64"],
        &["explain", "grouped_gemm", "--n", "64", "--k", "64", "--dtype", "f16"],
        &["explain", "embedding"],
        &[],
    ] {
        check(command, (&["--set", "group_size=64"], &["--set group_size", "--dtype int8, int4 or fp8"]));
        check(command, (&["--set", "zero_points=true"], &["--set zero_points", "--dtype int8 or int4"]));
    }
    check(&["plan", &decoder], (&["--group-size", "64"], &["--group-size", "quantized"]));
    check(&["plan", &decoder], (&["--keep-head"], &["--keep-head", "quantized"]));
    // Integers that products read are for weights that are integers, and so are zero points.
    for command in [
        &["plan", &decoder, "--dtype", "fp8"][..],
        &["plan", &fixture("quantized/fp8_tensor_weight_scale_llama_bf16")],
        &["plan", &decoder],
        &["inspect", &decoder],
        &["embed", "--model", &encoder, "a text", "--dtype", "fp8"],
        &["tune", "--budget", "0.1", "--dtype", "fp8"],
        &["explain", "gemm", "--n", "64", "--k", "64", "--dtype", "fp8"],
        &["generate", "--model", &decoder, "--tokens", "1", "--dtype", "fp8"],
        &["generate", "--model", &decoder, "--tokens", "1"],
    ] {
        check(command, (&["--activations", "int8"], &["--activations", "integers", "int8 or int4"]));
    }
    let in_fp8 = ["generate", "--model", &decoder, "--tokens", "1", "--dtype", "fp8"];
    check(&in_fp8, (&["--zero-points"], &["--zero-points", "int8 and int4"]));
    let to_fp8 = ["quantize", "--model", &decoder, "--output", &output, "--dtype", "fp8"];
    check(&to_fp8, (&["--zero-points"], &["--zero-points", "int8 and int4"]));
    check(&to_fp8, (&["--set", "zero_points=true"], &["--set zero_points", "int8 and int4"]));
    check(&["plan", &decoder], (&["--activations", "bf16"], &["--activations", "quantized"]));
    // What a command has by another name, or not at all.
    let quantize = ["quantize", "--model", &decoder, "--output", &output, "--dtype", "int8"];
    for (command, refused) in [
        (&["plan", &decoder][..], (&["--set", "max_sequences=64"][..], &["--set max_sequences", "--batch"][..])),
        (&["bench", "--model", &decoder], (&["--set", "max_sequences=64"], &["--set max_sequences", "--batch"])),
        (&["bench", "--model", &decoder], (&["--set", "context=64"], &["--set context", "`sinew bench`"])),
        (&quantize, (&["--set", "dtype=int4"], &["--set dtype", "`sinew quantize`", "--dtype"])),
        (&quantize, (&["--set", "group_size=64"], &["groups of 64", "channel"])),
        (&quantize, (&["--memory-limit", "1GiB"], &["--memory-limit", "models that are run"])),
        (&quantize, (&["--set", "memory_limit=1GiB"], &["--set memory_limit", "models that are run"])),
        (&quantize, (&["--deterministic", "true"], &["--deterministic", "of a model"])),
        (&quantize, (&["--set", "tuning=false"], &["--set tuning", "of a model"])),
        (&["explain", "softmax"], (&["--set", "dtype=f16"], &["--set dtype", "`sinew explain softmax`", "--dtype"])),
        (&["explain", "--support"], (&["--set", "dtype=f16"], &["--set dtype", "--support"])),
        (&["trace"], (&["--set", "dtype=f16"], &["--set dtype", "`sinew trace`"])),
        (&["devices"], (&["--set", "load=mmap"], &["--set load", "`sinew devices`"])),
        (&["devices"], (&["--memory-limit", "1GiB"], &["--memory-limit", "for models"])),
        (&["devices"], (&["--tuning=false"], &["--tuning", "of a model"])),
        (&["devices"], (&["--set", "deterministic=true"], &["--set deterministic", "of a model"])),
        (&["explain", "softmax"], (&["--memory-limit", "1GiB"], &["--memory-limit", "is for models"])),
        (&["explain", "--support"], (&["--memory-limit", "1GiB"], &["--memory-limit", "--support"])),
        (&["explain", "--support"], (&["--kernel", "gemm.cpu.portable"], &["--kernel", "--support"])),
        (&["explain", "--support"], (&["--threads", "1"], &["--threads", "--support"])),
        (&["explain", "--support"], (&["--pin"], &["--pin", "--support"])),
        (&["explain", "attention", "--dense"], (&["--block-size", "32"], &["--block-size", "--dense"])),
        (&["explain", "norm"], (&["--kernel", "gemm.cpu.avx2"], &["--kernel", "gemm.cpu.avx2", "norm"])),
        (&["explain", "gemm", "--n", "64", "--k", "64"], (&["--kernel", "norm.cpu.avx2"], &["norm.cpu.avx2"])),
        (&["explain", "norm"], (&["--kernel", "norm.wgpu"], &["--kernel", "norm.wgpu", "cpu"])),
        (
            &["explain", "norm"],
            (&["--set", "kernels=norm.cpu.portable,gemm.cpu.avx2"], &["--set kernels", "gemm.cpu.avx2"]),
        ),
        (&["devices"], (&["--device", "cpu"], &["--device", "all"])),
        (&["devices", "--measure"], (&["--device", "cpu"], &["--device", "all"])),
        (&["devices", "--measure"], (&["--set", "device=cpu"], &["--set device", "all"])),
        (&["inspect", &file], (&["--dtype", "f16"], &["--dtype", "config.json"])),
        (&["tune", "--budget", "0.1"], (&["--load", "mmap"], &["--load", "bundled"])),
        (&[], (&["--set", "load=mmap"], &["--set load", "`sinew`"])),
        (&["explain", "gemm", "--n", "64", "--k", "64", "--dtype", "int8"], (&["--keep-head"], &["--keep-head"])),
        (
            &["explain", "grouped_gemm", "--n", "64", "--k", "64", "--dtype", "int8"],
            (&["--keep-head"], &["--keep-head"]),
        ),
        (&["explain", "embedding", "--dtype", "int8"], (&["--keep-head"], &["--keep-head"])),
        (&["explain", "embedding", "--dtype", "int8"], (&["--activations", "int8"], &["--activations"])),
        (
            &["explain", "gemm", "--n", "64", "--k", "64", "--dtype", "int8"],
            (&["--set", "keep_head=true"], &["--set keep_head", "`sinew explain gemm`"]),
        ),
        (
            &["explain", "embedding", "--dtype", "int8"],
            (&["--set", "activations=int8"], &["--set activations", "`sinew explain embedding`"]),
        ),
        (&["bench", "--model", &encoder], (&["--new-tokens", "4"], &["--new-tokens", "models that generate"])),
        (&["tune", "--budget", "0.1"], (&["--offline"], &["--model"])),
        (
            &["generate", "--model", &decoder, "--prompt", "x"],
            (&["--set", "max_sequences=4"], &["--set max_sequences", "many prompts"]),
        ),
    ] {
        check(command, refused);
    }
    assert!(folder.path().read_dir().expect("a folder").next().is_none(), "a file was written");
}

#[test]
fn what_files_and_variables_say_serves_other_commands_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.toml");
    let all = "kv_dtype = \"int8\"\nblock_size = 0x8\nmax_sequences = 4\ncontext = 64\ngroup_size = 64\n\
               zero_points = true\nkeep_head = true\nload = \"mmap\"\nkv_recent = 7\n";
    std::fs::write(&file, all).expect("written");
    let [encoder, decoder] = ["bert_hd20_f32_wordpiece", "llama3_rope_gqa3_hd20_bf16_tied_bpe"].map(fixture);
    let [output, prompts, tuning] = ["logits", "prompts", "tuning"].map(|name| folder.path().join(name));
    std::fs::write(&prompts, "add 1+1=\ncopy a=\n").expect("written");
    let [output, prompts, tuning] = [&output, &prompts, &tuning].map(|path| path.to_str().expect("UTF-8"));
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo").into_os_string().into_string().expect("UTF-8");
    let in_fp8 = fixture("quantized/fp8_tensor_weight_scale_llama_bf16");
    let quick = [
        &[][..],
        &["plan", &encoder],
        &["plan", &decoder],
        &["plan", &encoder, "--dtype", "int8"],
        &["plan", &decoder, "--dtype", "fp8", "--kv-dtype", "fp8"],
        &["plan", &in_fp8],
        &["inspect", &encoder],
        &["inspect", &decoder],
        &["embed", "--model", &encoder, "a text"],
        &["logits", "--model", &encoder, "--tokens", "1", "--output", output],
        &["logits", "--model", &decoder, "--tokens", "1", "--output", output],
        &["generate", "--model", &decoder, "--tokens", "1", "--max-new-tokens", "1"],
        &["generate", "--model", &decoder, "--tokens", "1", "--max-new-tokens", "1", "--kv-dtype", "int8"],
        &["generate", "--model", &in_fp8, "--tokens", "1", "--max-new-tokens", "1"],
        &["generate", "--model", &bundled, "--prompts-file", prompts, "--max-new-tokens", "2", "--dtype", "fp8"],
        &["explain", "gemm", "--n", "64", "--k", "64"],
        &["explain", "gemm", "--n", "64", "--k", "64", "--dtype", "fp8"],
        &["explain", "grouped_gemm", "--n", "64", "--k", "64", "--dtype", "int8"],
        &["explain", "embedding", "--dtype", "int8"],
        &["trace", "--requests", "1"],
        &["settings"],
    ];
    // Those that measure the machine.
    let slow = [
        &["bench", "--model", &encoder, "--prompt-tokens", "4", "--repeat", "1"][..],
        &["bench", "--model", &decoder, "--prompt-tokens", "4", "--new-tokens", "2", "--repeat", "1"],
        &["explain", "--model", &encoder, "--prompt-tokens", "4", "--repeat", "1"],
        &["explain", "--model", &decoder, "--prompt-tokens", "4", "--repeat", "1"],
        &["tune", "--budget", "0.1", "--tuning-cache", tuning],
    ];
    let all = [("SINEW_SWAP_TOKENS", "64"), ("SINEW_ACTIVATIONS", "int8"), ("SINEW_KV_OLD", "int8")];
    for arguments in quick.iter().chain(&slow) {
        let mut command = command();
        command.args(*arguments).env("SINEW_SETTINGS", &file).envs(all).env("SINEW_CONTEXT", "1000000");
        stdout(&run(&mut command, ""));
    }
    for (name, value) in [
        ("SINEW_ACTIVATIONS", "int8"),
        ("SINEW_ACTIVATIONS", "bf16"),
        ("SINEW_ZERO_POINTS", "true"),
        ("SINEW_KEEP_HEAD", "true"),
        ("SINEW_KV_OLD", "int8"),
        ("SINEW_CONTEXT", "1000000"),
    ] {
        for arguments in quick {
            println!("{name}={value}");
            stdout(&run(command().args(arguments).env(name, value), ""));
        }
    }
}

#[test]
fn a_default_context_beyond_a_model_is_the_models_and_an_argument_is_refused() {
    let decoder = fixture("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let plan = |variable: &str| -> Value {
        let output = run(command().args(["plan", "--json", &decoder]).env("SINEW_CONTEXT", variable), "");
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    assert_eq!(plan("1000000")["context"], 256);
    assert_eq!(plan("255")["context"], 255);
    for arguments in [&["--context", "1000000"][..], &["--set", "context=1000000"]] {
        let source = arguments.join(" ").replace("=1000000", "").replace(" 1000000", "");
        refused(&sinew(&[&["plan", &decoder], arguments].concat()), &[&source, "1000000", "256 positions"]);
    }
}

#[test]
fn errors_name_what_said_so() {
    let decoder = fixture("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let with = |arguments: &[&str], variables: &[(&str, &str)]| {
        run(command().args(arguments).envs(variables.iter().copied()), "")
    };
    let kv_is_int8 = [("SINEW_KV_DTYPE", "int8")];
    refused(
        &with(&["plan", &decoder, "--kv-old", "int8"], &kv_is_int8),
        &["--kv-old is for", "SINEW_KV_DTYPE is int8"],
    );
    let old_is_int8 = [("SINEW_KV_OLD", "int8")];
    let recent = ["plan", &decoder, "--kv-dtype", "fp8", "--kv-recent", "7"];
    refused(&with(&recent, &old_is_int8), &["--kv-recent is for", "--kv-dtype is fp8"]);
    let unpacked = ["explain", "gemm", "--n", "64", "--k", "64", "--unpacked"];
    refused(&with(&unpacked, &[("SINEW_DTYPE", "int4")]), &["--unpacked", "SINEW_DTYPE is int4"]);
    let (folder, mut arguments) = (tempfile::tempdir().expect("a folder"), unpacked.to_vec());
    let file = folder.path().join("settings.toml");
    std::fs::write(&file, "dtype = \"int4\"").expect("written");
    arguments.extend(["--settings", file.to_str().expect("UTF-8")]);
    refused(&sinew(&arguments), &["--unpacked", "dtype in", "settings.toml:1 is int4"]);
    let full = stdout(&with(&["plan", &decoder], &[("SINEW_CACHE_TOKENS", "256")]));
    assert!(
        full.contains("SINEW_CACHE_TOKENS is 256, which has room for no more") && !full.contains("--cache-tokens"),
        "{full}"
    );
}

#[test]
fn what_a_gpu_does_not_take_is_named_by_who_asked_and_what_is_for_cpus_alone_yields() {
    let devices: Value = serde_json::from_str(&stdout(&sinew(&["devices", "--json"]))).expect("JSON");
    let has = |device: &Value| device["kind"] == "wgpu" && device.get("none").is_none();
    if !devices["devices"].as_array().expect("a list").iter().any(has) {
        assert_ne!(std::env::var("SINEW_REQUIRE_WGPU").as_deref(), Ok("1"), "{devices}");
        println!("skipped: it needs a wgpu adapter");
        return;
    }
    let (decoder, folder) = (fixture("llama3_rope_gqa3_hd20_bf16_tied_bpe"), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("settings.toml");
    let on_gpu = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = command();
        command.args(arguments).env("SINEW_DEVICE", "wgpu").envs(variables.iter().copied());
        run(&mut command, "")
    };
    let generate = ["generate", "--model", &decoder, "--tokens", "1", "--max-new-tokens", "1"];
    for variable in
        [("SINEW_PIN", "true"), ("SINEW_THREADS", "2"), ("SINEW_KV_OLD", "int8"), ("SINEW_ACTIVATIONS", "int8")]
    {
        stdout(&on_gpu(&["plan", &decoder], &[variable]));
        stdout(&on_gpu(&generate, &[variable]));
    }
    stdout(&on_gpu(&["explain", "--support"], &[("SINEW_PIN", "true")]));
    refused(
        &on_gpu(&["plan", &decoder, "--kv-old", "int8"], &[]),
        &["--kv-old is not for wgpu:0, which keeps all tokens alike"],
    );
    for argument in [&["--pin"][..], &["--threads", "2"], &["--simd", "portable"]] {
        let refusal = format!("{} is for the CPU, not for wgpu", argument[0]);
        refused(&on_gpu(&[&["plan", &decoder], argument].concat(), &[]), &[&refusal]);
    }
    for (name, value) in [("dtype", "int8"), ("kv_dtype", "int8")] {
        let (variable, dashed) = (format!("SINEW_{}", name.to_uppercase()), format!("--{}", name.replace('_', "-")));
        std::fs::write(&file, format!("# mine\n{name} = \"{value}\"\n")).expect("written");
        let path = file.to_str().expect("UTF-8");
        for (arguments, variables, source) in [
            (&[][..], &[(&*variable, value)][..], &*variable),
            (&["--settings", path], &[], "settings.toml:2"),
            (&[&dashed, value], &[], &dashed),
        ] {
            let output = on_gpu(&[&["plan", &decoder], arguments].concat(), variables);
            refused(&output, &[source, "on wgpu:0"]);
            let line = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(line.contains("--"), source == dashed, "{line}");
        }
    }
}

#[test]
fn variables_that_are_almost_settings_are_warned_of_and_others_are_not() {
    let with = |name: &str| {
        let output = run(command().args(["trace", "--requests", "1"]).env(name, "1"), "");
        stdout(&output);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (name, meant) in [
        ("SINEW_THREAD", "SINEW_THREADS"),
        ("SINEW_KVDTYPE", "SINEW_KV_DTYPE"),
        ("SINEW_KERNEL", "SINEW_KERNELS"),
        ("SINEW_SETTING", "SINEW_SETTINGS"),
        ("SINEW_BLOCK_SIZ\u{1b}", "SINEW_BLOCK_SIZE"),
    ] {
        let warned = with(name);
        assert_eq!(warned.lines().count(), 1, "{warned}");
        assert!(warned.starts_with("warning: SINEW_") && warned.contains(&format!("is {meant}")), "{warned}");
        assert!(!warned.trim_end().contains(char::is_control), "{warned:?}");
    }
    for name in ["SINEW_SOMETHING", "SINEW_DEPTH", "SINEW_REQUIRE_WGPU", "SINEW_THREADS", "SINEWTHREAD"] {
        assert_eq!(with(name), "", "{name}");
    }
}

#[test]
fn control_characters_of_values_do_not_reach_the_terminal() {
    let set = ["settings", "--set", "hub_endpoint=http://a\u{1b}[31m"];
    let shown = stdout(&sinew(&set));
    let line = shown.lines().find(|line| line.starts_with("hub_endpoint")).expect("it is listed");
    assert!(line.contains(r"http://a\u{1b}[31m") && !line.contains('\u{1b}'), "{line:?}");
    let file = stdout(&sinew(&[&set[..], &["--toml"]].concat()));
    assert!(!file.contains('\u{1b}'), "{file:?}");
}

#[test]
fn names_that_there_are_not_are_refused_by_every_command() {
    let [model, file] =
        ["llama3_rope_gqa3_hd20_bf16_tied_bpe", "bert_hd20_f32_wordpiece/model.safetensors"].map(fixture);
    for arguments in [
        &["inspect", &model][..],
        &["inspect", &file],
        &["explain", "--support"],
        &["trace", "--requests", "1"],
        &["devices"],
        &["settings"],
        &["plan", &model],
        &[],
    ] {
        for (name, value) in [("kernels", "gemm.abacus"), ("device", "abacus")] {
            let set = format!("{name}={value}");
            let source = format!("--set {name}");
            refused(&sinew(&[arguments, &["--set", &set]].concat()), &[&source, value]);
            let variable = format!("SINEW_{}", name.to_uppercase());
            refused(&run(command().args(arguments).env(&variable, value), ""), &[&variable, value]);
        }
    }
    // Where nothing is asked of a device, it need not be there.
    stdout(&sinew(&["trace", "--requests", "1", "--device", "cuda:99"]));
    // What is supported is asked of the device that is named, by whatever.
    let support: Value = serde_json::from_str(&stdout(&run(
        command().args(["explain", "--support", "--json"]).env("SINEW_DEVICE", "cpu"),
        "",
    )))
    .expect("JSON");
    assert_eq!((&support["absent"], support["devices"].as_array().map(Vec::len)), (&Value::Array(vec![]), Some(1)));
}

#[test]
fn a_device_that_cannot_be_opened_is_named_by_who_asked_and_what_lists_lists_all_the_same() {
    /// More adapters and GPUs than any machine has.
    const NONE: [&str; 3] = ["cuda:7000", "wgpu:7000", "cuda:99999999999"];
    let model = fixture("llama3_rope_gqa3_hd20_bf16_tied_bpe");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("settings.toml");
    let path = file.to_str().expect("UTF-8");
    let stderr = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    for device in NONE {
        std::fs::write(&file, format!("# mine\ndevice = \"{device}\"\n")).expect("written");
        for (arguments, variables, source) in [
            (&[][..], &[("SINEW_DEVICE", device)][..], "SINEW_DEVICE"),
            (&["--settings", path], &[], "settings.toml:2"),
            (&["--device", device], &[], "--device"),
        ] {
            let with = |words: &[&str]| run(command().args(words).args(arguments).envs(variables.iter().copied()), "");
            let settings = with(&["settings"]);
            let said = stderr(&settings);
            assert!(!settings.status.success() && said.lines().count() == 1, "{said}");
            assert!(said.contains(&format!("{source}: ")) && said.contains(device), "{said}");
            let table = text(&settings);
            let line = table.lines().find(|line| line.starts_with("device ")).expect("the device");
            assert!(line.contains(device) && line.contains(&format!("{source};")), "{line}");
            assert!(table.lines().count() >= FIELDS.len(), "{table}");
            let all: Value = serde_json::from_str(&text(&with(&["settings", "--json"]))).expect("JSON");
            assert_eq!(all["settings"].as_array().map(Vec::len), Some(FIELDS.len()));
            assert!(text(&with(&["settings", "--toml"])).contains(&format!("device = \"{device}\"")));
            for words in [&["plan", &model][..], &["explain", "softmax"], &["tune", "--budget", "0.1"], &[]] {
                refused(&with(words), &[&format!("{source}: "), device]);
            }
            let (devices, support) = (with(&["devices"]), with(&["explain", "--support"]));
            if source == "--device" {
                refused(&devices, &["--device", "all"]);
                refused(&support, &["--device: ", device]);
                continue;
            }
            assert!(stdout(&devices).starts_with("cpu: "), "{devices:?}");
            assert!(stdout(&support).lines().any(|line| line.starts_with("attention ")), "{support:?}");
            let warned = stderr(&support);
            assert!(warned.starts_with("warning: ") && warned.contains(&format!("{source}: ")), "{warned}");
        }
    }
    // And so is what threads cannot be.
    let many = run(command().args(["explain", "softmax"]).env("SINEW_THREADS", "99999"), "");
    refused(&many, &["SINEW_THREADS: ", "99999"]);
    let support = run(command().args(["explain", "--support"]).env("SINEW_THREADS", "99999"), "");
    assert!(stdout(&support).contains("attention "), "{support:?}");
}

#[test]
fn what_says_where_a_cache_is_is_said() {
    let source = |name: &str, caches: &str, home: &str| {
        let mut command = command();
        command.args(["settings", "--json"]).env("XDG_CACHE_HOME", caches).env("HOME", home);
        let report: Value = serde_json::from_str(&stdout(&run(&mut command, ""))).expect("JSON");
        let all = report["settings"].as_array().expect("a list");
        let found = all.iter().find(|setting| setting["name"] == name).expect(name);
        ["value", "source"].map(|of| found[of].as_str().expect("a text").to_owned())
    };
    for (name, own) in [("hub_cache", "huggingface/hub"), ("device_cache", "sinew/devices")] {
        assert_eq!(source(name, "/x", "/y"), [&format!("/x/{own}"), "XDG_CACHE_HOME"]);
        assert_eq!(source(name, "", "/y"), [&format!("/y/.cache/{own}"), "HOME"]);
        assert_eq!(source(name, "", ""), ["none", "default"]);
    }
    // The hub's, as Python's libraries have it; Sinew's own are nowhere that depends on where the process is.
    assert_eq!(source("hub_cache", "x", "/y"), ["x/huggingface/hub", "XDG_CACHE_HOME"]);
    assert_eq!(source("device_cache", "x", "/y"), ["/y/.cache/sinew/devices", "HOME"]);
}

#[test]
fn a_value_that_is_refused_is_named_with_its_setting_and_what_it_may_be() {
    let set = |text: &str, words: &[&str]| refused(&sinew(&["settings", "--set", text]), words);
    set("block_size=0", &["--set block_size", "`0`", "whole numbers from 1 on"]);
    set("kv_recent=0", &["--set kv_recent", "`0`", "whole numbers from 1 on"]);
    set("kv_recent=5", &["--set kv_recent", "--kv-old int8 or fp8"]);
    set("kv_dtype=int9", &["--set kv_dtype", "`int9`", "fp8"]);
    set("blocksize=8", &["blocksize", "block_size"]);
    set("threads", &["--set threads", "name=value"]);
    refused(&sinew(&["settings", "--kv-recent", "5"]), &["--kv-recent", "--kv-old int8 or fp8"]);
    assert_eq!(setting("kv_recent", &["--kv-old", "int8", "--set", "kv_recent=5"], &[]).1, "--set kv_recent");
}

#[test]
fn the_bundled_model_obeys_settings() {
    let bare = |arguments: &[&str], variables: &[(&str, &str)]| {
        run(command().env_remove("SINEW_SIMD").args(arguments).envs(variables.iter().copied()), "")
    };
    let usual = stdout(&bare(&[], &[]));
    let line = |text: &str, word: &str| text.lines().find(|line| line.starts_with(word)).expect(word).to_owned();
    let (weights, products) = (line(&usual, "memory "), line(&usual, "kernel "));
    let portable = stdout(&bare(&["--simd", "portable"], &[]));
    assert!(
        portable.lines().filter(|line| line.starts_with("kernel ")).all(|line| !line.contains("avx")),
        "{portable}"
    );
    let int8 = stdout(&bare(&["--set", "dtype=int8"], &[]));
    assert_ne!((line(&int8, "memory "), line(&int8, "kernel ")), (weights.clone(), products));
    let cache = |text: &str| line(text, "memory ").split(", ").nth(1).expect("the cache").to_owned();
    let half = stdout(&bare(&[], &[("SINEW_KV_DTYPE", "int8")]));
    assert_ne!(cache(&half), cache(&usual));
    assert_eq!(cache(&stdout(&bare(&["--set", "kv_dtype=int8"], &[]))), cache(&half));
    refused(&bare(&["--set", "memory_limit=1MiB"], &[]), &["weights", "are free on cpu"]);
    assert_ne!(cache(&stdout(&bare(&["--set", "context=64"], &[]))), cache(&usual));
}

#[test]
fn what_a_model_holds_is_reported_by_what_it_is_for_and_nothing_is_left() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let arguments = ["generate", "--prompt", "add 417+85=", "--max-new-tokens", "8", "--memory-report"];
    let output = run(command().args(arguments).arg("--model").arg(model), "");
    assert_eq!(stdout(&output).trim(), "502");
    let report = String::from_utf8_lossy(&output.stderr);
    for tag in ["weights", "kv cache", "activations", "rotary tables", "logits", "workspace", "fragmentation"] {
        assert!(report.contains(tag), "no {tag} in {report}");
    }
    assert!(!report.contains("untagged") && !report.contains("warning"), "{report}");
}
