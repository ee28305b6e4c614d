//! Files that lie, through the command: each is one clear line and an exit code, in no time and little memory.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use safetensors::Dtype;
use serde_json::{Value, json};

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;
#[path = "common/llama.rs"]
mod llama;

use command::command;
use fixtures::{copy, fixture, fixture_path, with_field, with_tensors};
use llama::{Llama, Stored};

const DECODER: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";
const ENCODER: &str = "bert_hd20_f32_wordpiece";
const SHARDED_DECODER: &str = "qwen2_gqa3_hd12_f16_untied_3shards";
const SHARDED_ENCODER: &str = "bert_masked_lm_prefix_hd12_bf16_3shards";

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What an error may take. Of the time that of the processor counts; most take a tenth of a second, a MiB of text about one,
/// and what goes on for ever is to be told from a machine that is slow.
const MAX_TIME: Duration = Duration::from_secs(10);
const MAX_BYTES: usize = 200 << 20;

/// What a command did.
struct Outcome {
    code: Option<i32>,
    stderr: String,
    stdout: String,
    time: Duration,
    peak_bytes: usize,
}

/// Runs the command and watches its memory.
fn run(arguments: &[&str], stdin: Stdio, stdout: Option<File>) -> Outcome {
    let [mut out, mut err] = [(); 2].map(|()| tempfile::tempfile().expect("a file"));
    let start = Instant::now();
    let mut child = command()
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1")
        .stdin(stdin)
        .stdout(stdout.unwrap_or_else(|| out.try_clone().expect("a file")))
        .stderr(err.try_clone().expect("a file"))
        .spawn()
        .expect("the command starts");
    let tests = std::env::current_exe().expect("these tests have a path");
    let (mut peak_bytes, mut time) = (0, Duration::ZERO);
    let status = loop {
        // Both only rise: what is missed is what the last millisecond adds.
        let of = |file| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap_or_default();
        // Until it is another program, a child has the memory that these tests take.
        let started = fs::read_link(format!("/proc/{}/exe", child.id())).is_ok_and(|exe| exe != tests);
        let (status, stat) = if started { (of("status"), of("stat")) } else { Default::default() };
        // User's and system's time, in hundredths of a second, are the 12th and 13th after the name.
        let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        time = time.max(Duration::from_millis(ticks.filter_map(|n| n.parse::<u64>().ok()).sum::<u64>() * 10));
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak_bytes = peak_bytes.max(peak.and_then(|kib| kib.trim().parse().ok()).unwrap_or(0) << 10);
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().expect("the child is ours");
            panic!("{arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("the file is readable");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Outcome { code: status.code(), stderr: text(&mut err), stdout: text(&mut out), time, peak_bytes }
}

/// The command fails as it should; `what` is for messages.
fn refused(what: &str, arguments: &[&str], words: &[&str]) {
    refused_into(what, arguments, None, words);
}

fn refused_into(what: &str, arguments: &[&str], stdout: Option<File>, words: &[&str]) {
    refused_outcome(what, arguments, run(arguments, Stdio::null(), stdout), words);
}

/// The command fails over what comes from its standard input.
fn refused_from(what: &str, arguments: &[&str], input: &str, words: &[&str]) {
    let mut stdin = tempfile::tempfile().expect("a file");
    stdin.write_all(input.as_bytes()).and_then(|()| stdin.seek(SeekFrom::Start(0))).expect("written");
    refused_outcome(what, arguments, run(arguments, stdin.into(), None), words);
}

fn refused_outcome(what: &str, arguments: &[&str], outcome: Outcome, words: &[&str]) {
    let Outcome { code, stderr, stdout, time, peak_bytes } = outcome;
    assert!(stderr.lines().all(|line| line.len() < 1000), "{what}: a line of standard error is long");
    // Tensors that a model does not use are no error.
    let stderr: String = stderr.lines().filter(|line| !line.starts_with("warning: ")).collect::<Vec<_>>().join("\n");
    let shown = arguments.first().unwrap_or(&"");
    let start: String = stderr.chars().take(600).collect();
    assert_eq!(code, Some(1), "{what}, {shown}: {start}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{what}, {shown}: {start}");
    assert!(stderr.len() < 1000, "{what}, {shown}: {} bytes of error: {start}", stderr.len());
    for word in words {
        assert!(stderr.contains(word), "{what}, {shown}: `{word}` is not in: {start}");
    }
    assert!(*shown == "inspect" || stdout.is_empty(), "{what}, {shown} wrote to standard output");
    assert!(time < MAX_TIME, "{what}, {shown}: {time:?}");
    assert!(peak_bytes < MAX_BYTES, "{what}, {shown}: {} MiB", peak_bytes >> 20);
}

const LOGITS: &[&str] = &["logits", "--tokens", "1,2", "--output", "/tmp/never-written.safetensors"];
const GENERATE: &[&str] = &["generate", "--tokens", "1,2", "--max-new-tokens", "1"];
const EMBED: &[&str] = &["embed", "a text"];

/// Every command that takes such a model refuses it, mapped and read.
fn refused_by(what: &str, folder: &Path, commands: &[&[&str]], words: &[&str]) {
    let path = folder.to_str().expect("the path is UTF-8");
    for command in commands {
        match command {
            ["inspect", ..] => refused(what, &[*command, &[path]].concat(), words),
            _ => {
                for load in ["mmap", "read"] {
                    refused(what, &[*command, &["--model", path, "--load", load]].concat(), words);
                }
            }
        }
    }
}

/// A decoder and an encoder with the same damage are refused by all commands that take them.
fn both_refused(what: &str, fixtures: [&str; 2], damage: impl Fn(&Path), words: &[&str]) {
    let [decoder, encoder] = fixtures.map(copy);
    damage(decoder.path());
    damage(encoder.path());
    refused_by(what, decoder.path(), &[&["inspect"], GENERATE, LOGITS], words);
    refused_by(what, encoder.path(), &[&["inspect"], EMBED], words);
}

/// A safetensors file with a header of our own.
fn raw(header: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(folder.join(name), bytes).expect("written");
}

fn set_len(folder: &Path, name: &str, len: u64) {
    let file = File::options().write(true).open(folder.join(name)).expect("opened");
    file.set_len(len).expect("the file system has sparse files");
}

/// Something in the place of a file.
fn replace(folder: &Path, name: &str, put: impl Fn(&Path)) {
    fs::remove_file(folder.join(name)).expect("removed");
    put(&folder.join(name));
}

fn nested(depth: usize) -> String {
    format!("{{\"a\":{}", "[".repeat(depth))
}

#[test]
fn weights_that_are_damaged() {
    let refused = |what: &str, bytes: Vec<u8>, words: &[&str]| {
        let words = [&[WEIGHTS], words].concat();
        both_refused(what, [DECODER, ENCODER], |folder| write(folder, WEIGHTS, &bytes), &words);
    };
    refused("empty", Vec::new(), &["0 bytes"]);
    refused("a part of the length", vec![0; 7], &["7 bytes"]);
    refused("text", b"not a checkpoint".to_vec(), &["header"]);
    for (what, length) in [("2^63", 1 << 63), ("4 GiB", 1 << 32), ("2^64 - 1", u64::MAX), ("what is not there", 1000)] {
        let mut bytes = u64::to_le_bytes(length).to_vec();
        bytes.extend(b"{}");
        refused(&format!("a header length of {what}"), bytes, &["header"]);
    }
    refused("deep JSON", raw(nested(1_000_000).as_bytes(), 0), &["header"]);
    refused("a long header of nothing", raw(&vec![b' '; 15 << 20], 0), &["header"]);
    refused("no UTF-8", raw(b"{\"\xff\xff\":1}", 0), &["header"]);
    let tensor = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let a = tensor("a", "U8", "[4]", "[0,4]");
    for (what, tensors, data, words) in [
        ("one name twice", [a.clone(), a.clone()].join(","), 4, &["`a`", "twice"][..]),
        ("one field twice", a.replace("\"shape\"", r#""dtype":"U8","shape""#), 4, &["dtype"]),
        ("overlapping", [a.clone(), tensor("b", "U8", "[4]", "[2,6]")].join(","), 6, &[]),
        ("a gap", [a.clone(), tensor("b", "U8", "[4]", "[6,10]")].join(","), 10, &[]),
        ("out of range", tensor("a", "U8", "[400]", "[0,400]"), 4, &["truncated"]),
        ("bytes of nobody", a.clone(), 400, &["belong to no tensor"]),
        ("backwards", tensor("a", "U8", "[4]", "[4,0]"), 4, &[]),
        ("overflowing offsets", tensor("a", "U8", "[4]", "[0,18446744073709551615]"), 4, &[]),
        ("larger numbers", tensor("a", "U8", "[4]", "[0,184467440737095516150]"), 4, &[]),
        ("an overflowing shape", tensor("a", "F32", "[4294967296,4294967296]", "[0,0]"), 0, &[]),
        ("negative", tensor("a", "U8", "[-4]", "[0,4]"), 4, &[]),
        ("an unknown dtype", tensor("a", "Q4_K", "[4]", "[0,4]"), 4, &["Q4_K"]),
        ("a wrong shape", tensor("a", "F32", "[4]", "[0,4]"), 4, &[]),
        ("no object", r#""a":5"#.to_owned(), 0, &[]),
    ] {
        refused(what, raw(format!("{{{tensors}}}").as_bytes(), data), words);
    }
    // As many tensors as a header may have.
    let many: Vec<String> =
        (0..230_000).map(|i| tensor(&format!("{i}"), "U8", "[1]", &format!("[{i},{}]", i + 1))).collect();
    refused("many tensors", raw(format!("{{{}}}", many.join(",")).as_bytes(), 1), &["truncated"]);
    let long = tensor(&"n".repeat(10 << 20), "U8", "[4]", "[0,4]");
    refused("a long name", raw(format!("{{{long}, {long}}}").as_bytes(), 4), &[]);
}

#[test]
fn weights_that_are_cut_or_grown() {
    for name in [DECODER, ENCODER] {
        let whole = fs::metadata(fixture_path(name).join(WEIGHTS)).expect("the file is there").len();
        for len in [3, 20, 500, whole - 1, whole + 1, 1 << 40] {
            let folder = copy(name);
            set_len(folder.path(), WEIGHTS, len);
            let commands = if name == DECODER { [GENERATE, LOGITS] } else { [EMBED, &["inspect"]] };
            refused_by(&format!("{len} of {whole} bytes"), folder.path(), &commands, &[WEIGHTS]);
        }
    }
}

#[test]
fn weights_that_are_no_file() {
    let refused = |what: &str, put: fn(&Path), words: &[&str]| {
        both_refused(what, [DECODER, ENCODER], |folder| replace(folder, WEIGHTS, put), words);
    };
    refused("none", |_| (), &[WEIGHTS]);
    refused("a folder", |path| fs::create_dir(path).expect("created"), &[WEIGHTS, "not a regular file"]);
    refused("a link to nothing", |path| symlink("nothing", path).expect("linked"), &[WEIGHTS]);
    refused("a link to itself", |path| symlink(WEIGHTS, path).expect("linked"), &[WEIGHTS]);
    refused("an endless device", |path| symlink("/dev/zero", path).expect("linked"), &["outside the model's folder"]);
    refused("a link outside", |path| symlink("/etc/passwd", path).expect("linked"), &["outside the model's folder"]);
    refused(
        "a pipe",
        |path| assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success()),
        &[WEIGHTS, "not a regular file"],
    );
    refused(
        "sparse zeros",
        |path| File::create(path).and_then(|file| file.set_len(1 << 40)).expect("made"),
        &[WEIGHTS],
    );
    refused(
        "a pickle",
        |path| fs::write(path.with_file_name("pytorch_model.bin"), "x").expect("written"),
        &["pytorch_model.bin", WEIGHTS],
    );
}

#[test]
fn indices_that_lie() {
    let fixtures = [SHARDED_DECODER, SHARDED_ENCODER];
    let changed = |what: &str, change: &dyn Fn(&mut Value), words: &[&str]| {
        both_refused(
            what,
            fixtures,
            |folder| {
                let text = fs::read_to_string(folder.join(INDEX)).expect("an index");
                let mut index: Value = serde_json::from_str(&text).expect("valid JSON");
                change(&mut index);
                write(folder, INDEX, index.to_string());
            },
            words,
        );
    };
    for outside in ["../x.safetensors", "/etc/passwd", "a/../../x", "", "..\\x"] {
        changed("a path outside", &|index| index["weight_map"]["zz"] = outside.into(), &["outside the model's folder"]);
    }
    changed("a shard that is not there", &|index| index["weight_map"]["zz"] = "zz".into(), &["zz", "No such file"]);
    changed("the folder itself", &|index| index["weight_map"]["zz"] = ".".into(), &["not a regular file"]);
    changed("a number", &|index| index["weight_map"]["zz"] = 5.into(), &["integer `5`", INDEX]);
    changed("a list", &|index| index["weight_map"] = json!([1]), &["sequence", INDEX]);
    changed("nothing", &|index| index["weight_map"] = Value::Null, &["`weight_map` is missing"]);
    let written = |what: &str, text: &[u8], words: &[&str]| {
        both_refused(what, fixtures, |folder| write(folder, INDEX, text), &[&[INDEX], words].concat());
    };
    written("empty", b"", &["EOF"]);
    written("no UTF-8", b"\xff\xfe", &["UTF-8"]);
    written("deep JSON", nested(1_000_000).as_bytes(), &["EOF"]);
    written("one name twice", br#"{"weight_map":{"a":"x","a":"y"}}"#, &["`a`", "twice"]);
    both_refused("a huge file", fixtures, |folder| set_len(folder, INDEX, 1 << 40), &["larger than"]);
    both_refused(
        "a missing shard",
        fixtures,
        |folder| fs::remove_file(folder.join("model-00002-of-00003.safetensors")).expect("removed"),
        &["model-00002-of-00003.safetensors", "No such file"],
    );
    both_refused(
        "a cut shard",
        fixtures,
        |folder| set_len(folder, "model-00002-of-00003.safetensors", 100),
        &["model-00002-of-00003.safetensors"],
    );
}

/// The index of a folder, changed.
fn with_index(folder: &Path, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(folder.join(INDEX)).expect("an index");
    let mut index: Value = serde_json::from_str(&text).expect("valid JSON");
    change(&mut index);
    write(folder, INDEX, index.to_string());
}

/// Runs the command, which must succeed.
fn answered(arguments: &[&str]) -> String {
    let outcome = run(arguments, Stdio::null(), None);
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {}", outcome.stderr);
    outcome.stdout
}

#[test]
fn indices_may_name_tensors_that_nobody_needs() {
    // transformers reads the shards and asks the index for nothing else.
    let folder = copy(SHARDED_DECODER);
    let path = folder.path().to_str().expect("the path is UTF-8");
    let generate = ["generate", "--tokens", "1,2", "--max-new-tokens", "3", "--model", path];
    let expected = answered(&generate);
    let first = "model-00001-of-00003.safetensors";
    with_index(folder.path(), |index| {
        index["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = first.into()
    });
    assert_eq!(answered(&generate), expected);
    answered(&["inspect", path]);
    answered(&["plan", path]);
    // Each tensor in another shard than the index says.
    with_index(folder.path(), |index| {
        let map = index["weight_map"].as_object_mut().expect("an object");
        for shard in map.values_mut() {
            *shard = match shard.as_str() {
                Some("model-00001-of-00003.safetensors") => "model-00002-of-00003.safetensors",
                Some("model-00002-of-00003.safetensors") => "model-00003-of-00003.safetensors",
                _ => first,
            }
            .into();
        }
    });
    assert_eq!(answered(&generate), expected);
    // One that the model needs is not in the shard either.
    let mut norm = String::new();
    with_index(folder.path(), |index| {
        norm = index["weight_map"]["model.norm.weight"].as_str().expect("a shard").to_owned();
        index["weight_map"]["model.norm.bias"] = "model-00001-of-00003.safetensors".into();
    });
    for shard in 1..=3 {
        let file = format!("model-0000{shard}-of-00003.safetensors");
        let bytes = fs::read(folder.path().join(&file)).expect("a shard");
        let renamed = bytes.windows(17).position(|window| window == b"model.norm.weight");
        if let Some(at) = renamed {
            let mut bytes = bytes;
            bytes[at..at + 17].copy_from_slice(b"model.norm.weighs");
            write(folder.path(), &file, bytes);
        }
    }
    let words = [INDEX, "`model.norm.weight`", &norm, "no such tensor"];
    refused_by("a tensor that is needed", folder.path(), &[&["inspect"], GENERATE, LOGITS], &words);
}

#[test]
fn folders_of_other_formats_say_what_they_are() {
    let with = |files: &[&str], config: bool| {
        let folder = copy(DECODER);
        fs::remove_file(folder.path().join(WEIGHTS)).expect("removed");
        if !config {
            fs::remove_file(folder.path().join("config.json")).expect("removed");
        }
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, r#"{"base_model_name_or_path": "owner/base", "peft_type": "LORA"}"#).expect("written");
        }
        folder
    };
    for (files, words) in [
        (&["adapter_config.json", "adapter_model.safetensors"][..], &["a LoRA adapter", "owner/base", "merge"][..]),
        (&["model-q4_0.gguf"], &["model-q4_0.gguf", "GGUF"]),
        (&["pytorch_model.bin"], &["pytorch_model.bin", "pickles of PyTorch", "save_pretrained"]),
        (&["onnx/model.onnx"], &["onnx/model.onnx", "ONNX"]),
    ] {
        for config in [true, false] {
            let folder = with(files, config);
            let missing = if config { "has neither model.safetensors" } else { "has no config.json" };
            refused_by(files[0], folder.path(), &[GENERATE], &[&[missing][..], words].concat());
            // Its first question is for the weights.
            refused_by(files[0], folder.path(), &[&["inspect"]], words);
        }
    }
    let mlx = copy(DECODER);
    with_field(mlx.path(), "quantization", &json!({ "group_size": 64, "bits": 4 }));
    refused_by(
        "MLX",
        mlx.path(),
        &[&["inspect"], GENERATE, LOGITS],
        &["config.json: `quantization` of MLX", "group_size 64", "bits 4"],
    );
    let both = copy(ENCODER);
    with_field(both.path(), "quantization_config", &json!({ "group_size": 64, "bits": 4 }));
    refused_by("MLX", both.path(), &[&["inspect"], EMBED], &["MLX", "`quantization_config`"]);
}

#[test]
fn tokenizers_of_other_kinds_are_named() {
    const TEXT: &[&str] = &["generate", "--prompt", "a text", "--max-new-tokens", "1"];
    for (name, commands) in [(DECODER, &[TEXT, &["chat"][..]][..]), (ENCODER, &[EMBED])] {
        let folder = copy(name);
        fs::remove_file(folder.path().join("tokenizer.json")).expect("removed");
        write(folder.path(), "tokenizer.model", "x");
        let words = ["no tokenizer.json", "tokenizer.model", "SentencePiece", "AutoTokenizer.from_pretrained"];
        refused_by("SentencePiece", folder.path(), commands, &words);
    }
}

#[test]
fn configs_with_absurd_fields() {
    let sizes = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"];
    let absurd = [
        json!(0),
        json!(-1),
        json!(1_000_000_000_000u64),
        json!(u64::MAX),
        json!(1e300),
        json!(1.5),
        json!("12"),
        json!([12]),
        json!({"a": 12}),
        json!(true),
        Value::Null,
    ];
    for field in sizes {
        for value in &absurd {
            // Python's class has defaults for encoders; a decoder says its sizes.
            let folder = copy(DECODER);
            with_field(folder.path(), field, value);
            refused_by(&format!("{field} {value}"), folder.path(), &[&["inspect"], GENERATE], &[field]);
            if !value.is_null() {
                let folder = copy(ENCODER);
                with_field(folder.path(), field, value);
                refused_by(&format!("{field} {value}"), folder.path(), &[EMBED], &[field]);
            }
        }
    }
    for (field, value, words) in [
        ("num_key_value_heads", json!(4), &["num_key_value_heads"][..]),
        ("num_key_value_heads", json!(0), &["num_key_value_heads"]),
        ("num_hidden_layers", json!(1_000_000_000), &["num_hidden_layers"]),
        // Within what is read, and more than the files hold.
        ("num_hidden_layers", json!(60_000), &["model.layers."]),
        ("hidden_size", json!(2_000_000_000), &[]),
        ("vocab_size", json!(2_000_000_000), &[]),
        ("head_dim", json!(7), &["head_dim"]),
        ("rms_norm_eps", json!(-1), &["rms_norm_eps"]),
        ("rms_norm_eps", json!("1e-6"), &["rms_norm_eps"]),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 0}), &["rope_theta"]),
        ("max_position_embeddings", json!(0), &["max_position_embeddings"]),
        ("max_position_embeddings", json!(1), &["more than the 1 tokens", "context"]),
        ("model_type", json!("mamba"), &["mamba", "llama"]),
        ("model_type", json!(5), &["model_type"]),
        ("model_type", Value::Null, &["model_type", "missing"]),
        ("model_type", json!("x".repeat(100_000)), &["model_type"]),
        ("hidden_act", json!("tanh_of_doom"), &["tanh_of_doom"]),
        ("rope_scaling", json!({"rope_type": "spiral", "factor": 2.0}), &["spiral"]),
        ("quantization_config", json!({"quant_method": "own"}), &["own"]),
        ("eos_token_id", json!("end"), &["eos_token_id"]),
    ] {
        let folder = copy(DECODER);
        with_field(folder.path(), field, &value);
        let what: String = format!("{field} {value}").chars().take(80).collect();
        refused_by(&what, folder.path(), &[GENERATE, LOGITS], words);
    }
}

#[test]
fn expressions_of_configs_that_take_much_to_compile() {
    const COMPRESSED: &str = "quantized/ct_int4_g32_asym_untied_qwen2_bf16";
    const GPTQ: &str = "quantized/gptq_4bit_g128_llama_f16";
    // What each may be, and together nearly a gigabyte.
    let many = |start: &str| (0..1000).map(|i| format!("{start}x{i}.{{900}}")).collect::<Vec<String>>();
    // Some milliseconds for a module, each.
    let slow = |start: &str| (0..2000).map(|i| format!(r"{start}(.*)(.*)(.*)(.*)\1\2\3x{i}")).collect::<Vec<String>>();
    let keys = |all: Vec<String>| all.into_iter().map(|key| (key, json!({}))).collect::<serde_json::Map<_, _>>();
    let large = Some("more than 16 MiB");
    let looking = Some("at most 16 with look-around, references");
    for (fixture, list, value, words) in [
        (COMPRESSED, "ignore", json!(many("re:")), large),
        (GPTQ, "dynamic", json!(keys(many("+:"))), large),
        (GPTQ, "modules_to_not_convert", json!(many("re:")), large),
        (COMPRESSED, "ignore", json!(slow("re:")), looking),
        (GPTQ, "dynamic", json!(keys(slow("+:"))), looking),
        (GPTQ, "modules_to_not_convert", json!(slow("re:")), looking),
        // As few as may be, which are ended in the first module.
        (COMPRESSED, "ignore", json!(slow("re:")[..16]), None),
    ] {
        let folder = copy(fixture);
        let config: Value =
            serde_json::from_str(&fs::read_to_string(folder.path().join("config.json")).expect("a config"))
                .expect("valid JSON");
        let mut section = config["quantization_config"].clone();
        section[list] = value;
        with_field(folder.path(), "quantization_config", &section);
        refused_by(
            list,
            folder.path(),
            &[&["inspect"], LOGITS],
            &words.map_or(["for the module `model.", "few steps"], |words| [list, words]),
        );
    }
}

#[test]
fn tensors_that_may_change_a_quantized_module() {
    let folder = copy("quantized/gptq_4bit_g128_llama_f16");
    let name = "model.layers.0.mlp.up_proj.pre_quant_scale";
    with_tensors(folder.path(), |all| drop(all.insert(name.to_owned(), (Dtype::F16, vec![1], vec![0; 2]))));
    refused_by("a scale of inputs", folder.path(), &[&["inspect"], GENERATE, LOGITS], &[name]);
    refused("a scale of inputs", &["plan", folder.path().to_str().expect("the path is UTF-8")], &[name]);
}

/// As many experts as the largest published models have, each found at once and told from what is not there.
#[test]
fn the_last_of_many_quantized_experts_has_no_scale() {
    const LAYERS: usize = 48;
    const EXPERTS: usize = 128;
    let folder = copy(DECODER);
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16,
        "num_hidden_layers": LAYERS, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
        "num_experts": EXPERTS, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "vocab_size": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
        "tie_word_embeddings": true, "max_position_embeddings": 128,
        "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128] },
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let layer = |i: usize| format!("model.layers.{i}");
    let last = format!("{}.mlp.experts.{}.down_proj", layer(LAYERS - 1), EXPERTS - 1);
    with_tensors(folder.path(), |all| {
        all.clear();
        let mut plain = |name: String, shape: &[usize]| {
            all.insert(
                format!("{name}.weight"),
                (Dtype::BF16, shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()]),
            );
        };
        plain("model.embed_tokens".to_owned(), &[64, 16]);
        plain("model.norm".to_owned(), &[16]);
        for i in 0..LAYERS {
            for norm in ["self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"] {
                plain(format!("{}.{norm}", layer(i)), &[16]);
            }
            plain(format!("{}.mlp.gate", layer(i)), &[EXPERTS, 16]);
        }
        for i in 0..LAYERS {
            let of_expert = |e: usize| ["gate", "up", "down"].map(|name| format!("mlp.experts.{e}.{name}_proj"));
            let attention = ["q", "k", "v", "o"].map(|name| format!("self_attn.{name}_proj"));
            for module in (0..EXPERTS).flat_map(of_expert).chain(attention) {
                let name = format!("{}.{module}", layer(i));
                all.insert(format!("{name}.weight"), (Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]));
                all.insert(format!("{name}.weight_scale_inv"), (Dtype::F32, vec![1, 1], 1f32.to_le_bytes().to_vec()));
            }
        }
        all.remove(&format!("{last}.weight_scale_inv")).expect("it was there");
    });
    let words = [last.as_str(), "weight_scale"];
    refused_by("no scale", folder.path(), &[&["inspect"], LOGITS], &words);
    refused("no scale", &["plan", folder.path().to_str().expect("the path is UTF-8")], &words);
}

type Damage = fn(&Path);

#[test]
fn text_files_that_are_damaged() {
    let damages: [(&str, Damage); 11] = [
        ("empty", |path| fs::write(path, "").expect("written")),
        ("no JSON", |path| fs::write(path, "{\"a\": tru").expect("written")),
        ("no UTF-8", |path| fs::write(path, b"{\"a\": \"\xff\"}").expect("written")),
        ("another type", |path| fs::write(path, "[1, 2]").expect("written")),
        ("deep JSON", |path| fs::write(path, nested(1_000_000)).expect("written")),
        ("zeros without end", |path| File::create(path).and_then(|file| file.set_len(1 << 40)).expect("made")),
        ("a folder", |path| fs::create_dir(path).expect("created")),
        ("many values", |path| fs::write(path, format!("[{}0]", "0,".repeat(2_000_000))).expect("written")),
        ("many infinities", |path| fs::write(path, format!("[{}NaN]", "NaN,".repeat(1_000_000))).expect("written")),
        ("many halves of pairs", |path| {
            fs::write(path, format!(r#"[{}1]"#, r#""\ud800","#.repeat(400_000))).expect("written")
        }),
        ("an infinity before damage", |path| fs::write(path, r#"{"a": NaN, "b" 1}"#).expect("written")),
    ];
    for (what, damage) in damages {
        let refused = |fixture: &str, file: &str, commands: &[&[&str]]| {
            let folder = copy(fixture);
            let path = folder.path().join(file);
            let _ = fs::remove_file(&path);
            damage(&path);
            refused_by(&format!("{file}: {what}"), folder.path(), commands, &[file]);
        };
        refused(DECODER, "config.json", &[&["inspect"], GENERATE, LOGITS]);
        refused(ENCODER, "config.json", &[EMBED]);
        refused(DECODER, "generation_config.json", &[GENERATE]);
        refused(DECODER, "tokenizer.json", &[GENERATE]);
        refused(ENCODER, "tokenizer.json", &[EMBED]);
        refused(ENCODER, "tokenizer_config.json", &[EMBED]);
        refused(ENCODER, "sentence_bert_config.json", &[EMBED]);
        if what != "another type" && what != "many values" {
            refused(ENCODER, "modules.json", &[EMBED]);
        }
    }
}

#[test]
fn arguments_past_the_model() {
    let [decoder, encoder] = [DECODER, ENCODER].map(fixture);
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out");
    let [output, inside] = [&*output, folder.path()].map(|path| path.to_str().expect("the path is UTF-8"));
    let long = vec!["1"; 5000].join(",");
    let text = "word ".repeat(20_000);
    for (what, arguments, words) in [
        ("a token past the vocabulary", &["generate", "--tokens", "1,1003"][..], &["1003"][..]),
        ("the largest token", &["generate", "--tokens", "4294967295"], &["4294967295"]),
        ("no token", &["generate", "--tokens", ""], &["no token"]),
        ("tokens past the context", &["generate", "--tokens", &long], &["more than the", "context"]),
        ("a text past the context", &["generate", "--prompt", &text], &["tokens", "context"]),
        ("a token past the vocabulary", &["logits", "--tokens", "1003", "--output", output], &["1003"]),
        ("tokens past the context", &["logits", "--tokens", &long, "--output", output], &["more than the", "context"]),
        ("a file in no folder", &["logits", "--tokens", "1", "--output", "/nowhere/x"], &["/nowhere/x"]),
        ("a folder for a file", &["logits", "--tokens", "1", "--output", inside], &["regular file"]),
        ("a device for a file", &["logits", "--tokens", "1", "--output", "/dev/full"], &["regular file"]),
        ("a context past the model", &["inspect", "--context", "99999"], &["99999 tokens"]),
    ] {
        let model = if arguments[0] == "inspect" { &[decoder.as_str()][..] } else { &["--model", &decoder] };
        refused(what, &[arguments, model].concat(), words);
    }
    let tokens = ["logits", "--model", &encoder, "--tokens", "999999", "--output", output];
    refused("a token past the vocabulary", &tokens, &["999999"]);
    // A full disk, where the output is standard output.
    for arguments in [
        &["generate", "--model", &decoder, "--tokens", "1", "--max-new-tokens", "1"][..],
        &["embed", "--model", &encoder, "a text"],
        &["inspect", &decoder],
        &["inspect", &decoder, "--json"],
        &["settings"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        refused_into("a full disk", arguments, Some(full), &["No space left"]);
    }
    assert!(!folder.path().join("out").exists());
    let devices: Value = serde_json::from_str(&run(&["devices", "--json"], Stdio::null(), None).stdout).expect("JSON");
    let cuda = devices["devices"].as_array().expect("devices").iter().find(|device| device["kind"] == "cuda");
    if cuda.is_some_and(|cuda| cuda.get("none").is_some()) {
        let tokens = ["generate", "--model", &decoder, "--tokens", "1", "--device", "cuda"];
        refused("no driver", &tokens, &["cuda"]);
        refused("no driver", &["embed", "--model", &encoder, "x", "--device", "cuda"], &["cuda"]);
    }
}

#[test]
fn shards_whose_headers_are_long_together() {
    let folder = copy(DECODER);
    fs::remove_file(folder.path().join(WEIGHTS)).expect("removed");
    let mut shards = serde_json::Map::new();
    for shard in 0..4 {
        let name = |i: usize| format!("{shard}.{i}");
        let entry = |i| format!(r#""{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, name(i));
        let header = format!("{{{}}}", (0..170_000).map(entry).collect::<Vec<_>>().join(","));
        write(folder.path(), &format!("{shard}.safetensors"), raw(header.as_bytes(), 0));
        shards.insert(name(0), format!("{shard}.safetensors").into());
    }
    write(folder.path(), INDEX, json!({ "weight_map": shards }).to_string());
    refused_by("many tensors", folder.path(), &[&["inspect"], GENERATE], &["2.safetensors", "after others"]);
    // A shard lacks what the index says of it, which is told before the size of the others.
    shards["0.0"] = "1.safetensors".into();
    write(folder.path(), INDEX, json!({ "weight_map": shards }).to_string());
    refused_by("a lie", folder.path(), &[&["inspect"], GENERATE], &["`0.0` is in 1.safetensors"]);
}

/// A file of a folder, with other text in it.
fn with_text(folder: &Path, name: &str, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(folder.join(name)).expect("the file is there");
    write(folder, name, change(text));
}

#[test]
fn tokenizers_that_lie() {
    const PROMPT: &[&str] = &["generate", "--prompt", "a text", "--max-new-tokens", "1"];
    let repeated = |value: &Value, times: usize| format!("[{}{value}]", format!("{value},").repeat(times - 1));
    let steps =
        |list: &str, step: Value, times| format!(r#"{{"type":"Sequence","{list}":{}}}"#, repeated(&step, times));
    let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
    let token = json!({"id": 7, "content": "x", "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": true, "special": false});
    let added: Vec<Value> = (0..200_000)
        .map(|i| {
            let mut token = token.clone();
            token["content"] = format!("<{i}>").into();
            token
        })
        .collect();
    let template = format!(
        r#"{{"type":"TemplateProcessing","single":{},"pair":[],"special_tokens":{{"a":{{"id":"a","ids":{},"tokens":{}}}}}}}"#,
        repeated(&json!({"SpecialToken": {"id": "a", "type_id": 0}}), 100_000),
        repeated(&json!(0), 1000),
        repeated(&json!("a"), 1000)
    );
    let vocab: String = (0..600_000).map(|i| format!("\"{i}\":{i},")).collect();
    let merges = format!(r#"{{"type":"BPE","vocab":{{"a":0}},"merges":{}}}"#, repeated(&json!(0), 15_000_000));
    // As long as they may be, of digits: only the end is wrong.
    let mut longest = (0..10).map(|i| format!("\"{i}\":{i}")).collect::<Vec<_>>();
    let mut pairs = Vec::new();
    for i in 10..600_000 {
        longest.push(format!("\"{i}\":{i}"));
        pairs.push(format!("[\"{}\",\"{}\"]", i / 10, i % 10));
    }
    let [longest, pairs] = [longest, pairs].map(|parts| parts.join(","));
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    for (what, field, value, words) in [
        ("twelve replacements", "normalizer", steps("normalizers", replace("aaaa"), 12), "normalizer"),
        ("a long replacement", "normalizer", replace(&"b".repeat(127_000)).to_string(), "127000 bytes"),
        (
            "prefixes",
            "normalizer",
            steps("normalizers", json!({"type": "Prepend", "prepend": "x".repeat(1000)}), 5000),
            "a part",
        ),
        ("a long decoder", "decoder", replace(&"b".repeat(10 << 20)).to_string(), "10485760 bytes"),
        ("a template", "post_processor", template, "a part"),
        ("many added tokens", "added_tokens", json!(added).to_string(), "added_tokens"),
        ("a part of many values", "decoder", repeated(&json!({}), 10_000_000), "a part"),
        ("many merges", "model", merges, "expected"),
        (
            "a merge of tokens that there are not",
            "model",
            format!(r#"{{"type":"BPE","vocab":{{{longest}}},"merges":[{pairs},["1","é"]]}}"#),
            "which is not in its vocabulary",
        ),
        (
            "an option that is none",
            "model",
            format!(r#"{{"type":"BPE","vocab":{{{longest}}},"merges":[{pairs}],"dropout":2}}"#),
            "ropout",
        ),
        (
            "an unknown token that there is not",
            "model",
            format!(
                r###"{{"type":"WordPiece","vocab":{{{longest}}},"unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100}}"###
            ),
            "[UNK]",
        ),
        (
            "expressions that take long to compile",
            "pre_tokenizer",
            steps("pretokenizers", split(&r"(?=\w\w)\w|".repeat(300)), 20),
            "regular expressions",
        ),
        (
            "expressions that take long to match",
            "decoder",
            steps(
                "decoders",
                json!({"type": "Replace", "pattern": {"Regex": r"(?:.|..)+(?=\bqz)q"}, "content": "y"}),
                100,
            ),
            "too many ways",
        ),
        ("expressions of another syntax", "pre_tokenizer", split(r"(?m).+").to_string(), "Ruby's syntax"),
        (
            "pieces without one for what is unknown",
            "model",
            r#"{"type":"Unigram","unk_id":null,"vocab":[["a",0]]}"#.to_owned(),
            "no unk_id",
        ),
        (
            "a long vocabulary that is no JSON",
            "model",
            format!(r#"{{"type":"BPE","precompiled_charsmap":0,"vocab":{{{vocab}"#),
            "trailing comma",
        ),
    ] {
        let [decoder, encoder] = [DECODER, ENCODER].map(copy);
        for folder in [&decoder, &encoder] {
            with_text(folder.path(), "tokenizer.json", |text| {
                let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
                json[field] = "HERE".into();
                json.to_string().replace("\"HERE\"", &value)
            });
        }
        refused_by(what, decoder.path(), &[PROMPT], &["tokenizer.json", words]);
        refused_by(what, encoder.path(), &[EMBED], &["tokenizer.json", words]);
    }
    let normalized: Vec<&Value> = added.iter().take(100_000).collect();
    let lowercase = vec![json!({"type": "Lowercase"}); 1000];
    let decoder = copy(DECODER);
    with_text(decoder.path(), "tokenizer.json", |text| {
        let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
        json["added_tokens"] = json!(normalized);
        json["normalizer"] = json!({"type": "Sequence", "normalizers": lowercase});
        json.to_string()
    });
    refused_by("steps for each token", decoder.path(), &[PROMPT], &["tokenizer.json", "over the added_tokens"]);

    // What is soon read is looked at first: to read a long vocabulary takes most of a second.
    let [decoder, encoder] = [DECODER, ENCODER].map(copy);
    for folder in [&decoder, &encoder] {
        with_text(folder.path(), "tokenizer.json", |text| {
            let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
            json["model"] = "HERE".into();
            json.to_string()
                .replace("\"HERE\"", &format!(r#"{{"type":"BPE","vocab":{{{longest}}},"merges":[{pairs}]}}"#))
        });
        let config = fs::read_to_string(folder.path().join("tokenizer_config.json")).expect("a config");
        for (wrong, words) in [("{", "JSON"), (r#"{"added_tokens_decoder":{"x":{}}}"#, "`added_tokens_decoder`")] {
            write(folder.path(), "tokenizer_config.json", wrong);
            let arguments = if folder.path() == decoder.path() { PROMPT } else { EMBED };
            refused_by("its config", folder.path(), &[arguments], &["tokenizer_config.json", words]);
        }
        write(folder.path(), "tokenizer_config.json", config);
        let weights = fs::read(folder.path().join(WEIGHTS)).expect("weights");
        write(folder.path(), WEIGHTS, &weights[..weights.len() - 10]);
    }
    refused_by("cut weights", decoder.path(), &[&["inspect"], PROMPT, GENERATE, LOGITS], &[WEIGHTS, "truncated"]);
    refused_by("cut weights", encoder.path(), &[&["inspect"], EMBED], &[WEIGHTS, "truncated"]);
}

/// What is wrong with a request is said before a model is loaded: this one takes seconds, and two gigabytes.
#[test]
fn requests_of_a_large_model() {
    let folder = copy(DECODER);
    let model = Llama { hidden: 2048, width: 8192, layers: 16, vocab: 32_000 };
    write(folder.path(), "config.json", model.config().to_string());
    let (header, bytes) = model.header(Stored::Bf16);
    let weights = fs::File::create(folder.path().join(WEIGHTS)).expect("created");
    weights.set_len((header.len() + bytes) as u64).expect("a file of holes");
    weights.write_all_at(&header, 0).expect("written");
    write(folder.path(), "chat_template.jinja", "{% for x in %}");
    let by = |words: &[&str], command: &[&[&str]]| refused_by("a large model", folder.path(), command, words);
    by(
        &["99999", "32000 tokens"],
        &[&["generate", "--tokens", "1,99999"], &["logits", "--tokens", "99999", "--output", "x"]],
    );
    by(&["/nowhere"], &[&["logits", "--tokens", "1,2", "--output", "/nowhere/at/all"]]);
    by(&["stop"], &[&["generate", "--prompt", "a", "--stop", ""]]);
    by(&["chat_template.jinja"], &[&["chat"]]);
    write(
        folder.path(),
        "chat_template.jinja",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    );
    by(&["chat_template.jinja"], &[&["chat"]]);
}

#[test]
fn texts_that_are_long() {
    let [decoder, encoder] = [DECODER, ENCODER].map(fixture);
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        write(folder.path(), name, text);
        folder.path().join(name).into_os_string().into_string().expect("the path is UTF-8")
    };
    fn embed<'a>(model: &'a str, file: &'a str) -> [&'a str; 5] {
        ["embed", "--model", model, "--file", file]
    }
    let long = file("long", &"license ".repeat(1 << 19));
    for file in [&long, "/dev/zero"] {
        refused("a line without end", &embed(&encoder, file), &[file, "more than 1 MiB"]);
    }
    let bytes = file("bytes", "");
    write(folder.path(), "bytes", [b"text\n", [0xff; 4096].as_slice()].concat());
    refused("no text", &embed(&encoder, &bytes), &[&bytes, "UTF-8"]);
    // What fits into a line is taken, and no more of it tokenized than the model reads.
    for text in ["license ".repeat(1 << 17), "x".repeat(1 << 20), "漢".repeat((1 << 20) / 3)] {
        let fits = file("fits", text.trim_end());
        let outcome = run(&embed(&encoder, &fits), Stdio::null(), None);
        assert_eq!((outcome.code, outcome.stdout.lines().count()), (Some(0), 1), "{}", outcome.stderr);
        assert!(outcome.time < MAX_TIME, "{:?}", outcome.time);
        assert!(outcome.peak_bytes < MAX_BYTES, "{} MiB", outcome.peak_bytes >> 20);
    }
    let chat = ["chat", "--model", &decoder];
    refused_from("a message past the context", &chat, &"word ".repeat(800_000), &["context", "/reset"]);
    refused_from("a message without blanks", &chat, &"x".repeat(4_000_000), &["context", "/reset"]);
    refused_from("a message without end", &chat, &"x".repeat(5 << 20), &["more than 4 MiB"]);
    // The longest argument that Linux takes.
    let prompt = "x".repeat(131_000);
    refused("a prompt without blanks", &["generate", "--model", &decoder, "--prompt", &prompt], &["tokens", "context"]);
}

#[test]
fn warnings_are_no_longer_than_errors() {
    let folder = copy(DECODER);
    let path = folder.path().join(WEIGHTS);
    let bytes = fs::read(&path).expect("weights");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let header = str::from_utf8(header).expect("UTF-8").trim_end().strip_suffix('}').expect("an object");
    let (name, end) = ("n".repeat(180_000), data.len());
    let header = format!(r#"{header},"{name}":{{"dtype":"U8","shape":[0],"data_offsets":[{end},{end}]}}}}"#);
    write(folder.path(), WEIGHTS, [raw(header.as_bytes(), 0), data.to_vec()].concat());
    let model = folder.path().to_str().expect("the path is UTF-8");
    let outcome = run(&[GENERATE, &["--model", model]].concat(), Stdio::null(), None);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr.chars().take(600).collect::<String>());
    assert!(outcome.stderr.starts_with("warning: 1 of ") && outcome.stderr.contains("nnn"));
    assert!(outcome.stderr.len() < 1000, "{} bytes of warning", outcome.stderr.len());
}
