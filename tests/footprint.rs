//! What `sinew plan` says of a model's memory is what a process then takes that runs it.
#![cfg(target_os = "linux")]

use std::path::Path;

use serde_json::Value;

#[path = "common/command.rs"]
mod command;
#[path = "common/llama.rs"]
mod llama;

use command::{command, run, stdout};
use llama::{Llama, Stored};

/// 230 MB in bf16, and 6 KiB of keys and values for a token.
const MODEL: Llama = Llama { hidden: 1024, width: 4096, layers: 6, vocab: 16_000 };
/// Tokens of its longest sequence.
const CONTEXT: usize = 128;
/// 270 MB in 4 bits.
const WIDE: Llama = Llama { hidden: 4096, width: 40_960, layers: 1, vocab: 512 };

/// A plan may be wrong by this share of the peak, or by so much.
const SHARE: f64 = 0.05;
const SPARE_BYTES: f64 = (64 << 20) as f64;

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

/// The peaks that are planned and measured, of a batch of sequences as long as the model takes.
fn peaks(folder: &Path, arguments: &[&str], batch: usize) -> [f64; 2] {
    let (batch, prompt) = (batch.to_string(), (CONTEXT - 4).to_string());
    let context = CONTEXT.to_string();
    let planned = plan(folder, &[&["--context", &context, "--batch", &batch], arguments].concat());
    let bench = ["bench", "--prompt-tokens", &prompt, "--new-tokens", "4", "--repeat", "1", "--batch", &batch];
    let measured = json(&[&bench[..], arguments].concat(), folder, "--model");
    let peaks = [number(&planned, "peak_bytes"), number(&measured, "peak_rss_bytes")];
    println!("{arguments:?}, {batch} at once: planned {:.1} MB, measured {:.1} MB", peaks[0] / 1e6, peaks[1] / 1e6);
    assert_eq!(number(&planned, "weight_bytes"), number(&measured, "weight_bytes"));
    assert!((peaks[0] - peaks[1]).abs() <= SPARE_BYTES.max(SHARE * peaks[1]), "{arguments:?}: {peaks:?}");
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
        &["--dtype", "f32", "--load", "read"],
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
    }
}

#[test]
fn the_bundled_model_takes_what_was_planned() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let planned = plan(&folder, &["--context", "64"]);
    let measured = json(&["generate", "--prompt", "add 417+85=", "--max-new-tokens", "8"], &folder, "--model");
    let peaks = [number(&planned, "peak_bytes"), number(&measured, "peak_rss_bytes")];
    println!("bundled: planned {:.1} MB, measured {:.1} MB", peaks[0] / 1e6, peaks[1] / 1e6);
    assert!((peaks[0] - peaks[1]).abs() <= SPARE_BYTES, "{peaks:?}");
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
    assert!(lines.contains("8 of 128 tokens, 4 of 256 tokens"), "{lines}");
}
