//! What `sinew plan` says of a model's memory is what a process then takes that runs it.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use sinew::memory::Bytes;

#[path = "common/command.rs"]
mod command;
#[path = "common/llama.rs"]
mod llama;

use command::{command, run, stdout};
use llama::{Llama, Neox, Stored};

/// 230 MB in bf16, and 6 KiB of keys and values for a token.
const MODEL: Llama = Llama { hidden: 1024, width: 4096, layers: 6, vocab: 16_000 };
/// Tokens of its longest sequence.
const CONTEXT: usize = 128;
/// 270 MB in 4 bits.
const WIDE: Llama = Llama { hidden: 4096, width: 40_960, layers: 1, vocab: 512 };

/// 39 MB in 4 bits, of which queries, keys and values are one tensor of so many bytes.
const FUSED: Neox = Neox(Llama { hidden: 4096, width: 256, layers: 1, vocab: 307 });
const FUSED_BYTES: f64 = (24 << 20) as f64;

/// A plan may be wrong by this share of the peak, or by so much.
const SHARE: f64 = 0.05;
const SPARE_BYTES: f64 = (64 << 20) as f64;
/// The same of models that take little beside the process, which is another in each profile: less than what is looked for.
const SMALL_SPARE_BYTES: f64 = (8 << 20) as f64;

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn json(arguments: &[&str], folder: &Path, before: &str) -> Value {
    let output = run(command().args(arguments).args(["--json", before]).arg(folder), "");
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

fn plan(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(command().args(["plan", "--json"]).args(arguments).arg(folder), "");
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Words as they are given, each option in the place of an earlier one of its name.
fn followed<'a>(arguments: &[&'a str], advice: &'a str) -> Vec<&'a str> {
    let mut options: Vec<Vec<&str>> = Vec::new();
    for word in arguments.iter().copied().chain(advice.split(' ')) {
        match options.last_mut() {
            Some(option) if !word.starts_with("--") => option.push(word),
            _ => {
                options.retain(|option| option[0] != word);
                options.push(vec![word]);
            }
        }
    }
    options.concat()
}

/// The advice to what does not fit, each of which was followed and then takes what it says.
fn advice(folder: &Path, arguments: &[&str]) -> Vec<(String, bool)> {
    let planned = |arguments: &[&str]| {
        let output = run(command().args(["plan", "--json"]).args(arguments).arg(folder), "");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {output:?}"))
    };
    let report = planned(arguments);
    assert_eq!(report["fits"], false, "{report}");
    let savings = report["to_save"].as_array().expect("a list");
    let follow = |saving: &Value| {
        let argument = saving["argument"].as_str().expect("an argument").to_owned();
        let then = planned(&followed(arguments, &argument));
        assert_eq!((&then["peak_bytes"], &then["fits"]), (&saving["peak_bytes"], &saving["fits"]), "{saving}");
        assert!(number(&then, "peak_bytes") < number(&report, "peak_bytes"), "{saving}");
        let fits = saving["fits"] == true;
        (argument, fits)
    };
    savings.iter().map(follow).collect()
}

/// The number that is advised for an option first of all, and is enough.
fn advised(folder: &Path, arguments: &[&str], option: &str) -> usize {
    let advice = advice(folder, arguments);
    let (argument, fits) = advice.first().expect("advice");
    assert!(fits, "{advice:?}");
    argument.strip_prefix(option).and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{advice:?}"))
}

/// The peaks that are planned and measured, of a batch of sequences as long as the model takes.
fn peaks(folder: &Path, arguments: &[&str], batch: usize) -> [f64; 2] {
    peaks_within(SPARE_BYTES, folder, arguments, batch)
}

fn peaks_within(spare: f64, folder: &Path, arguments: &[&str], batch: usize) -> [f64; 2] {
    let (batch, prompt) = (batch.to_string(), (CONTEXT - 4).to_string());
    let context = CONTEXT.to_string();
    let planned = plan(folder, &[&["--context", &context, "--batch", &batch], arguments].concat());
    let bench = ["bench", "--prompt-tokens", &prompt, "--new-tokens", "4", "--repeat", "1", "--batch", &batch];
    let measured = json(&[&bench[..], arguments].concat(), folder, "--model");
    let peaks = [number(&planned, "peak_bytes"), number(&measured, "peak_rss_bytes")];
    println!("{arguments:?}, {batch} at once: planned {:.1} MB, measured {:.1} MB", peaks[0] / 1e6, peaks[1] / 1e6);
    assert_eq!(number(&planned, "weight_bytes"), number(&measured, "weight_bytes"));
    assert!((peaks[0] - peaks[1]).abs() <= spare.max(SHARE * peaks[1]), "{arguments:?}: {peaks:?}");
    peaks
}

#[test]
fn a_process_takes_what_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    MODEL.write(folder.path(), Stored::Bf16).expect("the checkpoint is written");
    peaks(folder.path(), &[], 1);
    // With so many the peak is that of steps, not of loading.
    let few = peaks(folder.path(), &[], 16);
    let many = peaks(folder.path(), &[], 48);
    // Not by accident: what more sequences take is counted by itself.
    let [planned, measured] = [0, 1].map(|of| many[of] - few[of]);
    assert!(measured > 20e6 && (planned - measured).abs() < 0.2 * measured, "{planned} and {measured} more");
    let int8 = peaks(folder.path(), &["--kv-dtype", "int8"], 48);
    let [planned, measured] = [0, 1].map(|of| many[of] - int8[of]);
    assert!(measured > 14e6 && (planned - measured).abs() < 0.2 * measured, "{planned} and {measured} less");
    for arguments in [
        &["--dtype", "int4"][..],
        &["--dtype", "f32", "--load", "mmap"],
        &["--kv-old", "int8", "--kv-recent", "64", "--prefill-chunk", "64"],
    ] {
        peaks(folder.path(), arguments, 2);
    }
}

#[test]
fn a_quantized_checkpoint_takes_what_was_planned() {
    for stored in [Stored::Gptq, Stored::ActOrder] {
        let folder = tempfile::tempdir().expect("a folder");
        WIDE.write(folder.path(), stored).expect("the checkpoint is written");
        peaks(folder.path(), &[], 2);
        // Of a tensor that is read whole there is no second copy, for all its 192 parts.
        FUSED.write(folder.path(), stored).expect("the checkpoint is written");
        peaks_within(FUSED_BYTES, folder.path(), &[], 2);
    }
}

#[test]
fn the_bundled_model_takes_what_was_planned() {
    let folder = bundled();
    let threads = ["--threads", "2"];
    let planned = plan(&folder, &["--context", "64", "--threads", "2"]);
    let generate = ["generate", "--threads", "2", "--prompt", "add 417+85=", "--max-new-tokens", "8"];
    let measured = json(&generate, &folder, "--model");
    let [planned, measured] = [number(&planned, "peak_bytes"), number(&measured, "peak_rss_bytes")];
    println!("bundled: planned {:.1} MB, measured {:.1} MB", planned / 1e6, measured / 1e6);
    assert!((planned - measured).abs() <= SMALL_SPARE_BYTES, "{planned} and {measured}");
    // Neither nothing nor a plan without the cache would do.
    let cache = number(&plan(&folder, &["--context", "128", "--batch", "128"]), "kv_bytes");
    let [planned, measured] = peaks_within(SMALL_SPARE_BYTES, &folder, &threads, 128);
    assert!(measured > SMALL_SPARE_BYTES && measured - (planned - cache) > SMALL_SPARE_BYTES, "{planned}, {measured}");
    // The weights are less than what processes differ by, but two processes do not differ. A step is as large as a prompt,
    // so that all of what it works on is touched.
    let of = |dtype| {
        let arguments = ["--threads", "2", "--prefill-chunk", "124", "--kv-dtype", "bf16", "--dtype", dtype];
        let weights = number(&plan(&folder, &arguments), "weight_bytes");
        (weights, peaks_within(SMALL_SPARE_BYTES, &folder, &arguments, 32))
    };
    let ((wide, wide_peaks), (narrow, narrow_peaks)) = (of("f32"), of("bf16"));
    let [planned, measured] = [0, 1].map(|of| wide_peaks[of] - narrow_peaks[of]);
    assert!(wide > 1.9 * narrow && (planned - measured).abs() < 0.5 * (wide - narrow), "{planned} and {measured} more");
}

/// An encoder with a vocabulary of so many words: the small one's, with more of them.
fn encoder(folder: &Path, words: usize) {
    let from = fixture("bert_hd20_f32_wordpiece");
    for name in ["tokenizer_config.json", "sentence_bert_config.json"] {
        std::fs::copy(from.join(name), folder.join(name)).expect("copied");
    }
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let text = std::fs::read(from.join(name)).expect("readable");
        let mut value = serde_json::from_slice(&text).expect("JSON");
        change(&mut value);
        std::fs::write(folder.join(name), value.to_string()).expect("written");
    };
    edit("config.json", &|config| config["vocab_size"] = json!(words));
    edit("tokenizer.json", &|tokenizer| {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
        for id in vocab.len()..words {
            vocab.insert(format!("word{id}"), json!(id));
        }
    });
    let bytes = std::fs::read(from.join("model.safetensors")).expect("readable");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let table = tensors.tensor("embeddings.word_embeddings.weight").expect("a table");
    let row = table.data().len() / table.shape()[0];
    let wide: Vec<u8> = table.data().iter().copied().cycle().take(words * row).collect();
    let wide = TensorView::new(table.dtype(), vec![words, table.shape()[1]], &wide).expect("a tensor");
    let all = tensors.iter().map(|(name, tensor)| {
        let is_table = name == "embeddings.word_embeddings.weight";
        (name, if is_table { wide.clone() } else { tensor })
    });
    let bytes = safetensors::serialize(all, None).expect("safetensors");
    std::fs::write(folder.join("model.safetensors"), bytes).expect("written");
}

#[test]
fn an_encoder_and_its_tokenizer_take_what_was_planned() {
    /// Of a table, less of the checkpoint is at once than is planned.
    const SPARE: f64 = (16 << 20) as f64;
    let folder = tempfile::tempdir().expect("a folder");
    encoder(folder.path(), 300_000);
    let planned = plan(folder.path(), &["--threads", "2"]);
    let [peak, weights, tokenizer] =
        ["peak_bytes", "weight_bytes", "tokenizer_bytes"].map(|name| number(&planned, name));
    let mut embed = command();
    embed.args(["embed", "--threads", "2", "--json", "--file", "-", "--model"]).arg(folder.path());
    let mut child = embed.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command starts");
    let texts = "a text of some words\n".repeat(150);
    child.stdin.take().expect("a pipe").write_all(texts.as_bytes()).expect("it reads");
    // It waits with the rest of its answer, which is more than a pipe holds, until that is read.
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0]).expect("an answer");
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("its status");
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("an answer");
    assert!(child.wait().expect("it ends").success() && rest.len() > 1 << 17, "{} bytes", rest.len());
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let measured = kib.and_then(|kib| kib.parse::<f64>().ok()).expect("its peak") * 1024.0;
    println!("encoder: planned {:.1} MB, measured {:.1} MB", peak / 1e6, measured / 1e6);
    assert!((peak - measured).abs() <= SPARE, "{peak} and {measured}");
    // A plan without either would not do.
    for part in [weights, tokenizer] {
        assert!(measured - (peak - part) > SPARE, "{part} of {peak} and {measured}");
    }
}

#[test]
fn what_was_asked_for_beside_the_sequences_is_advised_against_where_it_does_not_fit() {
    let folder = bundled();
    for option in ["--cache-tokens", "--swap-tokens"] {
        let of = |tokens: usize| advised(&folder, &[option, &tokens.to_string(), "--budget", "1GiB"], option);
        let most = of(100_000_000);
        assert_eq!(most % 16, 0);
        // A little more is advised against as well: it has to be as much as fits.
        assert_eq!(of(most + most / 50), most);
    }
    assert_eq!(advised(&folder, &["--block-size", "1000000", "--budget", "500MB"], "--block-size"), 16);
    // Of blocks of their own size, and of both that are asked for.
    let blocks = ["--cache-tokens", "99999999", "--block-size", "48", "--budget", "100MB"];
    assert_eq!(advised(&folder, &blocks, "--cache-tokens") % 48, 0);
    let both = advice(&folder, &["--cache-tokens", "9000000", "--swap-tokens", "9000000", "--budget", "1GiB"]);
    for argument in ["--cache-tokens auto", "--swap-tokens 0"] {
        assert!(both.contains(&(argument.to_owned(), false)), "{both:?}");
    }
    // Room for all sequences is no more than they need.
    let none = advice(&folder, &["--cache-tokens", "256", "--budget", "1MiB"]);
    assert!(none.iter().all(|(argument, _)| !argument.starts_with("--cache-tokens")), "{none:?}");
    let text = run(command().args(["plan", "--cache-tokens", "100000000", "--budget", "1GiB"]).arg(&folder), "");
    let lines = String::from_utf8_lossy(&text.stdout);
    let line = lines.lines().find(|line| line.starts_with("to save")).unwrap_or_else(|| panic!("{lines}"));
    assert!(line.starts_with("to save        --cache-tokens ") && line.ends_with("which is enough"), "{line}");
    // How much less it is, and what it then is.
    let [before, after] = [100_000_000, most_of_cache(line)].map(|tokens: usize| {
        let arguments = ["plan", "--json", "--cache-tokens", &tokens.to_string(), "--budget", "1GiB"];
        let output = run(command().args(arguments).arg(&folder), "");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["peak_bytes"].as_u64().expect("a number") as usize
    });
    let words = format!(": {} less, a peak of {}, which", Bytes(before - after), Bytes(after));
    assert!(line.contains(&words), "{line} without {words}");
}

/// The tokens of a line that advises `--cache-tokens`.
fn most_of_cache(line: &str) -> usize {
    let tokens = line.split("--cache-tokens ").nth(1).and_then(|rest| rest.split(':').next());
    tokens.and_then(|tokens| tokens.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn a_cache_that_holds_no_sequence_is_said_with_what_would_hold_one() {
    let text = |arguments: &[&str]| {
        let output = run(command().args(["plan"]).args(arguments).arg(bundled()), "");
        stdout(&output).lines().find(|line| line.starts_with("sequences")).expect("a line").to_owned()
    };
    let none = text(&["--cache-tokens", "1"]);
    assert!(
        none.contains("none of 128 tokens, none of 256 tokens; --cache-tokens is 1, which has room for none of 256"),
        "{none}"
    );
    assert!(none.ends_with("one takes --cache-tokens 256"), "{none}");
    assert!(
        text(&["--cache-tokens", "256"])
            .ends_with("1 of 256 tokens; --cache-tokens is 256, which has room for no more")
    );
    // One that is half as long has room, and that is not what was asked for.
    let half = text(&["--cache-tokens", "255"]);
    assert!(
        half.contains("1 of 128 tokens, none of 256")
            && half.contains("room for none of 256 tokens: one takes --cache-tokens 256"),
        "{half}"
    );
    assert_eq!(plan(&bundled(), &["--cache-tokens", "1"])["cache_tokens"], 1);
    assert!(!text(&[]).contains("room"));
}

#[test]
fn weights_in_more_bits_than_they_are_stored_in_are_advised_against() {
    let dtypes = |folder: &Path, arguments: &[&str]| -> Vec<String> {
        let all = advice(folder, &[&["--budget", "1MiB"], arguments].concat());
        all.into_iter().filter_map(|(argument, _)| Some(argument.strip_prefix("--dtype ")?.to_owned())).collect()
    };
    let (int8, int4) = ("int8 --group-size 32", "int4 --group-size 32");
    assert_eq!(dtypes(&bundled(), &["--dtype", "f32"]), ["auto", int8, int4]);
    assert_eq!(dtypes(&bundled(), &[]), [int8, int4]);
    // Keys and values are kept in the dtype of the weights.
    let stored_in_f32 = fixture("llama2_mha3_hd12_f32_untied_minimal_config");
    assert_eq!(dtypes(&stored_in_f32, &["--batch", "2000"])[0], "bf16");
    assert_eq!(dtypes(&stored_in_f32, &["--batch", "2000", "--dtype", "f32"])[0], "bf16");
    let quantized = fixture("quantized/gptq_4bit_g128_llama_f16");
    assert_eq!(dtypes(&quantized, &["--batch", "2000", "--dtype", "f32"])[0], "auto");
}

#[test]
fn four_bits_are_advised_where_eight_are_too_many() {
    let budget = ["--budget", "1MiB"];
    for (asked, advised) in [
        (&["--dtype", "int8"][..], "--dtype int4"),
        (&["--dtype", "int8", "--group-size", "64", "--zero-points"], "--dtype int4"),
        (&["--dtype", "fp8", "--group-size", "32"], "--dtype int4"),
        // By rows, which int4 is not unless it is told to be.
        (&["--dtype", "fp8"], "--dtype int4 --group-size channel"),
    ] {
        let arguments = [&budget[..], asked].concat();
        assert_eq!(advice(&bundled(), &arguments), [(advised.to_owned(), false)], "{asked:?}");
    }
    let least = advice(&bundled(), &[&budget[..], &["--dtype", "int4"]].concat());
    assert_eq!(least, []);
}

#[test]
fn advice_that_is_enough_is_given_however_little_it_saves() {
    let smallest = ["--dtype", "int4", "--prefill-chunk", "64", "--kv-dtype", "int8"];
    let whole = number(&plan(&bundled(), &smallest), "pooled_bytes");
    let limit = format!("{}", whole as u64 - 60_000);
    let arguments = [&smallest[..], &["--memory-limit", &limit]].concat();
    let advice = advice(&bundled(), &arguments);
    assert!(advice.iter().any(|(argument, fits)| argument.starts_with("--context ") && *fits), "{advice:?}");
    // What takes recent tokens in full is taken back with what they are recent beside.
    let recent = ["--batch", "200", "--kv-old", "fp8", "--kv-recent", "7", "--budget", "1MiB"];
    let advice = self::advice(&bundled(), &recent);
    assert!(advice.iter().any(|(argument, _)| argument == "--kv-dtype int8 --kv-old none"), "{advice:?}");
    // Tokens that are all recent are held twice, for nothing.
    let all_recent = ["--batch", "200", "--kv-old", "int8", "--kv-recent", "100000", "--budget", "1MiB"];
    assert!(self::advice(&bundled(), &all_recent).iter().any(|(argument, _)| argument == "--kv-old none"));
}

#[test]
fn what_does_not_fit_is_said_with_what_would() {
    let folder = tempfile::tempdir().expect("a folder");
    MODEL.write(folder.path(), Stored::Bf16).expect("the checkpoint is written");
    let planned = |arguments: &[&str]| {
        let output =
            run(command().args(["plan", "--json", "--budget", "400MB"]).args(arguments).arg(folder.path()), "");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.code(), Some(i32::from(report["fits"] == false)), "{report}");
        report
    };
    let report = planned(&["--batch", "512"]);
    assert_eq!(report["fits"], false);
    let savings = report["to_save"].as_array().expect("a list");
    let find = |argument: &str| {
        let mut savings = savings.iter();
        savings.find(|saving| saving["argument"].as_str().is_some_and(|text| text.starts_with(argument)))
    };
    let batch = find("--batch").expect("fewer sequences fit");
    assert_eq!(batch["fits"], true);
    let argument = batch["argument"].as_str().expect("an argument");
    let most: usize = argument["--batch ".len()..].parse().expect("a number");
    let (fits, too_many) = (planned(&["--batch", &most.to_string()]), planned(&["--batch", &(most + 1).to_string()]));
    assert_eq!((&fits["fits"], &too_many["fits"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(fits["peak_bytes"], batch["peak_bytes"]);
    // And it is what is said to fit of sequences of that length.
    let same = |of: &&Value| of["context"] == report["context"];
    let fitting = report["fitting"].as_array().expect("a list").iter().find(same).expect("of the context");
    assert_eq!(fitting["batch"], most);
    for argument in ["--kv-dtype int8", "--dtype int4 --group-size 32"] {
        let saving = find(argument).unwrap_or_else(|| panic!("{argument} saves nothing: {report}"));
        let words: Vec<&str> = argument.split(' ').collect();
        let report = planned(&[&["--batch", "512"], &words[..]].concat());
        assert_eq!((&report["peak_bytes"], &report["fits"]), (&saving["peak_bytes"], &saving["fits"]));
    }
    let text = run(command().args(["plan", "--budget", "10MiB"]).arg(folder.path()), "");
    let (lines, error) = (String::from_utf8_lossy(&text.stdout), String::from_utf8_lossy(&text.stderr));
    assert!(
        lines.contains("none of 256 tokens") && lines.contains("to save        --dtype int4 --group-size 32"),
        "{lines}"
    );
    assert!(error.contains("more than 10.0 MiB") && error.lines().count() == 1, "{error}");
}

#[test]
fn a_limit_is_held_against_what_the_pool_is_asked_for_and_a_budget_against_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    MODEL.write(folder.path(), Stored::Bf16).expect("the checkpoint is written");
    let planned = |arguments: &[&str]| {
        let output = run(command().args(["plan", "--json"]).args(arguments).arg(folder.path()), "");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(output.status.code(), Some(i32::from(report["fits"] == false)), "{report}");
        (report, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (report, _) = planned(&[]);
    let (pooled, peak) = (number(&report, "pooled_bytes"), number(&report, "peak_bytes"));
    assert!(pooled < peak);
    let (enough, less) = (pooled.to_string(), (pooled - 1.0).to_string());
    assert_eq!(planned(&["--memory-limit", &enough]).0["fits"], true);
    let (refused, error) = planned(&["--memory-limit", &less]);
    assert!(refused["fits"] == false && error.contains("more than the limit of"), "{error}");
    // What is said to be more reads as more, however little it is.
    assert!(error.contains(&format!("takes {enough} B of")) && error.contains(&format!("of {less} B")), "{error}");
    let (all, too_little) = (peak.to_string(), (peak - 1.0).to_string());
    assert_eq!(planned(&["--budget", &all]).0["fits"], true);
    let output = run(command().args(["plan", "--budget", &too_little]).arg(folder.path()), "");
    let (lines, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(error.contains(&format!("takes {all} B, which is more than {too_little} B")), "{error}");
    assert!(lines.contains(&format!("{all} B  of {too_little} B on cpu")), "{lines}");
    // Whichever is less decides.
    assert_eq!(planned(&["--memory-limit", &enough, "--budget", "1TB"]).0["fits"], true);
    assert_eq!(planned(&["--memory-limit", &less, "--budget", "1TB"]).0["fits"], false);
    assert_eq!(planned(&["--memory-limit", &enough, "--budget", &enough]).0["fits"], false);
    for saving in refused["to_save"].as_array().expect("a list") {
        let words = saving["argument"].as_str().expect("arguments").split(' ');
        let (report, _) = planned(&["--memory-limit", &less].into_iter().chain(words).collect::<Vec<_>>());
        assert_eq!((&report["peak_bytes"], &report["fits"]), (&saving["peak_bytes"], &saving["fits"]), "{saving}");
    }
}

#[test]
fn what_a_plan_says_fits_a_limit_runs_within_it_and_takes_most_of_it() {
    let names = [
        "gemma2_gqa3_hd12_f32_old_config",
        "gpt2_hd10_bf16_scaled_by_layer_alone",
        "olmo3_yarn_on_full_layers_mha3_hd12_f32_old_config",
        "qwen3_moe_6experts_mlp_only_hd12_f16_untied",
        "quantized/awq_g128_qwen2_f16",
    ];
    let folders = names.map(fixture).into_iter().chain([bundled()]);
    for folder in folders {
        for options in [&[][..], &["--dtype", "int4"], &["--kv-dtype", "int8", "--threads", "1"]] {
            for (context, prompt, new) in [("20", 12, "8"), ("32", 24, "8")] {
                let limit =
                    number(&plan(&folder, &[options, &["--context", context]].concat()), "pooled_bytes").to_string();
                let tokens = vec!["1"; prompt].join(",");
                let asked = ["--tokens", &tokens, "--max-new-tokens", new, "--memory-limit", &limit];
                let output = run(command().arg("generate").arg("--model").arg(&folder).args(asked).args(options), "");
                assert!(output.status.success(), "{folder:?} {options:?} within {limit}: {output:?}");
            }
        }
    }
    let encoder = fixture("bert_hd20_f32_wordpiece");
    let limit = number(&plan(&encoder, &[]), "pooled_bytes").to_string();
    let output = run(command().arg("embed").arg("--model").arg(&encoder).args(["--memory-limit", &limit, "a"]), "");
    assert!(output.status.success(), "within {limit}: {output:?}");
    // What is far less is refused, by what the pages of its weights take.
    let folder = tempfile::tempdir().expect("a folder");
    MODEL.write(folder.path(), Stored::Bf16).expect("the checkpoint is written");
    let report = plan(folder.path(), &["--context", "64"]);
    let generated = |limit: f64| {
        let asked = ["--tokens", "1,2,3,4", "--max-new-tokens", "60", "--memory-limit", &limit.to_string()];
        run(command().arg("generate").arg("--model").arg(folder.path()).args(asked), "")
    };
    let pooled = number(&report, "pooled_bytes");
    let (within, beyond) = (generated(pooled), generated((0.94 * pooled).floor()));
    assert!(within.status.success() && !beyond.status.success(), "{report} {within:?} {beyond:?}");
}

#[test]
fn a_plan_says_what_it_is_held_against_and_what_says_so_where_it_fits_as_well() {
    let lines = |arguments: &[&str]| stdout(&run(command().arg("plan").args(arguments).arg(bundled()), ""));
    let given = ["--budget", "3GiB", "--memory-limit", "2GiB"];
    let report = plan(&bundled(), &given);
    let sources = ["budget_source", "limit_source"].map(|name| report[name].as_str());
    assert_eq!(sources, [Some("--budget"), Some("--memory-limit")]);
    assert_eq!(
        (number(&report, "budget_bytes"), number(&report, "limit_bytes")),
        (3.0 * 1024f64.powi(3), 2.0 * 1024f64.powi(3))
    );
    let held = format!(
        "limit             2.0 GiB  --memory-limit; it has to leave {}",
        Bytes(number(&report, "pooled_bytes") as usize)
    );
    let text = lines(&given);
    assert!(text.contains("budget            3.0 GiB  --budget\n") && text.contains(&held), "{text}");
    // Of neither the machine or its container says it.
    let report = plan(&bundled(), &[]);
    let words = match report["budget_source"].as_str() {
        Some("machine") => "what the machine has left",
        Some("cgroup") => "what the cgroup's limit leaves",
        other => panic!("{other:?}"),
    };
    let text = lines(&[]);
    assert!(text.lines().any(|line| line.starts_with("budget ") && line.ends_with(words)), "{text}");
    assert!(
        report["limit_bytes"].is_null() && report["limit_source"].is_null() && !text.contains("limit   "),
        "{text}"
    );
}

#[test]
fn advice_can_be_followed_beside_compressed_old_tokens_and_a_cache_of_so_many_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    MODEL.write(folder.path(), Stored::Bf16).expect("the checkpoint is written");
    let planned = |arguments: &[&str]| {
        let output =
            run(command().args(["plan", "--json", "--budget", "10MiB"]).args(arguments).arg(folder.path()), "");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {output:?}"))
    };
    let report = planned(&["--batch", "512", "--kv-old", "fp8"]);
    let advice = report["to_save"].as_array().expect("a list").iter().map(|saving| saving["argument"].as_str());
    let kv = advice.flatten().find(|argument| argument.starts_with("--kv-dtype")).expect("less for keys and values");
    let words: Vec<&str> = ["--batch", "512"].into_iter().chain(kv.split(' ')).collect();
    assert!(number(&planned(&words), "peak_bytes") < number(&report, "peak_bytes"));
    // Blocks for four of 256 tokens, however much memory is left.
    let output = run(command().args(["plan", "--cache-tokens", "1024"]).arg(folder.path()), "");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        lines.contains("8 of 128 tokens, 4 of 256 tokens; --cache-tokens is 1024, which has room for no more"),
        "{lines}"
    );
    let capped = planned(&["--cache-tokens", "1024", "--batch", "100000"]);
    assert_eq!(capped["fits"], false, "{capped}");
    let arguments = ["plan", "--budget", "1GiB", "--cache-tokens", "1024", "--batch", "10000000"];
    let lines = String::from_utf8_lossy(&run(command().args(arguments).arg(folder.path()), "").stdout).into_owned();
    let advice = lines.lines().find(|line| line.contains("--batch ")).unwrap_or_else(|| panic!("{lines}"));
    assert!(
        advice.contains("--batch 4: ") && advice.ends_with("--cache-tokens is 1024, which has room for no more"),
        "{advice}"
    );
    // Where memory is what ends it, nothing is said of the cache.
    let output =
        run(command().args(["plan", "--cache-tokens", "100000000", "--budget", "400MB"]).arg(folder.path()), "");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("room for no more"), "{output:?}");
}

#[test]
fn what_fits_is_as_many_as_the_plan_of_so_many_says() {
    let folder = fixture("qwen2_gqa3_hd20_bf16_tied_old_config");
    let fits = |batch: u64| {
        let arguments = ["plan", "--json", "--context", "128", "--budget", "1TB", "--batch", &batch.to_string()];
        let output = run(command().args(arguments).arg(&folder), "");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let of_context = |fitting: &&Value| fitting["context"] == 128;
        let fitting = report["fitting"].as_array().expect("a list").iter().find(of_context).expect("of the context");
        (report["fits"] == true, fitting["batch"].as_u64().expect("a number"))
    };
    let (one_fits, most) = fits(1);
    assert!(one_fits && most > 1 << 20, "{most}");
    assert_eq!([fits(most), fits(most + 1)], [(true, most), (false, most)]);
}

#[test]
fn more_sequences_than_can_be_counted_are_no_overflow() {
    let most = usize::MAX.to_string();
    for more in [&[][..], &["--context", "1"], &["--cache-tokens", &most], &["--swap-tokens", &most]] {
        let output = run(command().args(["plan", "--batch", &most]).args(more).arg(bundled()), "");
        let (lines, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{more:?}: {error}");
        assert!(error.starts_with("error: the model takes ") && error.lines().count() == 1, "{more:?}: {error}");
        assert!(lines.contains("--batch ") || !more.is_empty(), "{lines}");
    }
}
