//! Settings of the command: files, variables and arguments, and that they decide.

use std::path::Path;

use serde_json::Value;
use sinew::models::settings::FIELDS;

#[path = "common/command.rs"]
mod command;

use command::{command, refused, run, stdout};

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
    is(setting("threads", &["--set", "threads=4"], &named), ("4", "--set"));
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
    assert_eq!(plan(&[], &[("SINEW_MEMORY_LIMIT", "500MB")])["limit_bytes"], 500_000_000);
    let generate = |limit: &str| {
        let arguments = ["generate", "--prompt", "add 417+85=", "--max-new-tokens", "8", "--memory-limit", limit];
        run(command().args(arguments).arg("--model").arg(&model), "")
    };
    assert_eq!(stdout(&generate("100MiB")).trim(), "502");
    refused(&generate("2MiB"), &["weights", "are free on cpu"]);
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
