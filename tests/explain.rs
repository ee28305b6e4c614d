//! `sinew explain`: of every operator, of models' steps and of what is supported; and the records that it is made of.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sinew::kernels::Registry;
use sinew::memory::DeviceKind;
use sinew::models::{Engine, EngineOptions, LoadOptions, Request};
use sinew::ops::Record;
use sinew::prelude::*;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{sinew, stdout};
use fixtures::fixture;

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&sinew(arguments))).expect("the output is one JSON value and nothing else")
}

fn refused(arguments: &[&str], words: &[&str]) {
    command::refused(&sinew(arguments), words);
}

fn list<'v>(value: &'v Value, field: &str) -> &'v Vec<Value> {
    value[field].as_array().unwrap_or_else(|| panic!("a list of {field}: {value}"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("a number of {field}: {value}"))
}

/// Whether the limits of memory and of arithmetic were measured.
fn measured(limits: &Value) -> [bool; 2] {
    ["memory_measured", "arithmetic_measured"]
        .map(|field| limits[field].as_bool().unwrap_or_else(|| panic!("{field}: {limits}")))
}

#[test]
fn every_operator_of_the_registry_is_explained_with_every_row_of_the_device() {
    for table in Registry::standard().tables() {
        let name = table.operator();
        let sizes: &[&str] = if name.ends_with("gemm") { &["--n", "96", "--k", "64"] } else { &[] };
        let value = json(&[&["explain", name, "--json"], sizes].concat());
        assert_eq!(value["operator"], name);
        let candidates = list(&value, "candidates");
        let mut explained: Vec<&str> = candidates.iter().filter_map(|c| c["kernel"].as_str()).collect();
        let on_cpu = table.row_names().into_iter().filter(|(_, kind, _)| *kind == DeviceKind::CPU);
        let mut rows: Vec<&str> = on_cpu.map(|(row, ..)| row).collect();
        explained.sort_unstable();
        rows.sort_unstable();
        assert_eq!(explained, rows, "{name}");
        let chosen: Vec<&Value> = candidates.iter().filter(|c| c["chosen"] == true).collect();
        assert_eq!(chosen.len(), 1, "{value}");
        assert!(chosen[0]["why"].as_str().is_some_and(|why| why.starts_with("chosen: ")), "{value}");
        for candidate in candidates {
            let refused = candidate["why"].as_str().is_some_and(|why| why.starts_with("refused: "));
            assert_eq!(candidate["predicted_s"].is_null(), refused, "{candidate}");
        }
        assert!(number(&value, "least_s") > 0.0 && number(&value, "share_of_limit") > 0.0, "{value}");
        assert!(["memory", "arithmetic"].contains(&value["bound"].as_str().unwrap_or_default()), "{value}");
    }
}

#[test]
fn nothing_is_predicted_to_be_faster_than_the_limits_are_estimated_to_allow() {
    // No cache: what was measured of this machine is not asked.
    let folder = tempfile::tempdir().expect("a folder");
    let share = |problem: &[&str]| {
        let mut command = command::command();
        command.env("XDG_CACHE_HOME", folder.path()).args(["explain", "--json"]).args(problem);
        let value: Value = serde_json::from_str(&stdout(&command::run(&mut command, ""))).expect("JSON");
        let limits = &value["limits"];
        assert_eq!(measured(limits), [false; 2]);
        number(&value, "share_of_limit")
    };
    for table in Registry::standard().tables() {
        let name = table.operator();
        let sizes: &[&str] = if name.ends_with("gemm") { &["--n", "96", "--k", "64"] } else { &[] };
        let share = share(&[&[name], sizes].concat());
        assert!(share > 0.0 && share <= 1.0, "{name}: {share}");
    }
    let large = ["gemm", "--m", "512", "--n", "4864", "--k", "896", "--dtype"];
    for form in [&["f32"][..], &["bf16"], &["int4"], &["int4", "--activations", "int8"], &["int8"], &["fp8"]] {
        let share = share(&[&large[..], form].concat());
        assert!(share > 0.0 && share <= 1.0, "{form:?}: {share}");
    }
    for (rows, context) in [("1", "4096"), ("512", "512")] {
        let share = share(&["attention", "--rows", rows, "--context", context, "--dtype", "bf16"]);
        assert!(share > 0.0 && share <= 1.0, "{rows} rows over {context}: {share}");
    }
}

#[test]
fn a_problem_is_described_in_the_words_of_its_field() {
    let decode = ["explain", "attention", "--rows", "1", "--context", "4096", "--heads", "14", "--kv-heads", "2"];
    let value = json(&[&decode[..], &["--head-dim", "64", "--kv-dtype", "int8", "--json"]].concat());
    let problem = value["problem"].as_str().expect("a problem");
    assert!(problem.starts_with("14/2 heads of 64") && problem.contains("kv i8"), "{problem}");
    assert!(problem.ends_with("1 sequence, 1 token, up to 1 query over 4096 keys"), "{problem}");
    let with_sinks = json(&[&decode[..], &["--sinks", "--json"]].concat());
    assert!(with_sinks["problem"].as_str().is_some_and(|problem| problem.contains(", sinks; 1 ")), "{with_sinks}");
    // Keys and values of two heads, each 64 codes and a scale of 4 bytes; queries in f32 and a result in bf16.
    assert_eq!(number(&value, "bytes"), (4096 * 2 * 2 * 68 + 14 * 64 * 6) as f64);
    let text = stdout(&sinew(&["explain", "norm", "--kind", "layer", "--rows", "3", "--width", "80"]));
    assert!(text.starts_with("norm: layer width 80 ") && text.contains("3 rows"), "{text}");
    assert!(text.contains("at least ") && text.contains("the choice reaches "), "{text}");
}

#[test]
fn no_share_of_memory_is_claimed_of_what_a_cache_holds() {
    for operator in
        [&["binary", "--elements", "65536"][..], &["unary", "--elements", "4096"], &["cast", "--elements", "4096"]]
    {
        let text = stdout(&sinew(&[&["explain"], operator, &["--measure"]].concat()));
        assert!(text.contains("by memory, unless a cache holds the operands"), "{text}");
        let last = text.lines().last().expect("a line");
        let share = last.strip_prefix("the choice reaches ").and_then(|rest| rest.split(' ').next());
        let share = share.map(|share| share.parse::<f64>().expect("a number"));
        assert_eq!(share.is_none(), last.ends_with("a cache holds its operands"), "{text}");
        assert!(share.is_none_or(|share| share <= 100.0), "{text}");
    }
}

#[test]
fn every_candidate_is_measured_where_that_is_asked_for() {
    let value = json(&["explain", "softmax", "--rows", "4", "--width", "300", "--measure", "--json"]);
    for candidate in list(&value, "candidates") {
        let [predicted, measured] = ["predicted_s", "measured_s"].map(|field| candidate[field].as_f64());
        assert_eq!(predicted.is_some(), measured.is_some_and(|seconds| seconds > 0.0), "{candidate}");
    }
    assert_eq!(measured(&value["limits"]), [true; 2]);
    let large = ["--rows", "1000000", "--width", "1000000"];
    refused(&[&["explain", "softmax", "--measure"][..], &large].concat(), &["softmax", "too many to measure"]);
    // Little work with operands that no machine holds, and much with small ones.
    let windowed = ["--context", "16777216", "--rows", "1", "--window", "16"];
    refused(&[&["explain", "attention", "--measure"][..], &windowed].concat(), &["operands of", "are not made"]);
    let long = ["--rows", "500000", "--context", "500000", "--heads", "1", "--kv-heads", "1", "--head-dim", "64"];
    refused(&[&["explain", "attention", "--measure"][..], &long].concat(), &["attention", "too many to measure"]);
    // Most of its weights are read by no row.
    for [groups, n, k] in [["1000000", "1024", "1024"], ["16777216", "1", "1"]] {
        let groups = ["explain", "grouped_gemm", "--measure", "--groups", groups, "--n", n, "--k", k];
        refused(&groups, &["operands of", "are not made"]);
    }
}

#[test]
fn what_is_no_problem_is_refused_with_what_would_be() {
    refused(&["explain", "attention", "--heads", "3", "--kv-heads", "2"], &["3 heads", "2 heads of keys"]);
    refused(&["explain", "attention", "--rows", "9", "--context", "8"], &["9 new tokens", "8 keys"]);
    refused(&["explain", "rotary", "--rotary-dim", "7"], &["7 of 128", "even"]);
    for cap in ["nan", "inf", "0", "-1"] {
        refused(&["explain", "attention", &format!("--softcap={cap}")], &["--softcap", "finite number above 0"]);
    }
    refused(&["explain", "softmax", "--scale", "nan"], &["--scale", "finite"]);
    refused(&["explain", "route", "--top-k", "9"], &["9 of 8", "--experts"]);
    refused(&["explain", "topk", "--k", "9", "--width", "8"], &["9 of 8", "--width"]);
    refused(&["explain", "softmax", "--width", "0"], &["from 1 to"]);
    refused(&["explain", "norm", "--rows", "99999999999999999999"], &["from 1 to"]);
    refused(&["explain", "unary", "--function", "squint"], &["squint", "sqrt"]);
    refused(&["explain", "--batch", "2"], &["--model"]);
    refused(&["explain", "--json"], &["gemm", "--model", "--support"]);
    refused(&["explain", "--support", "norm"], &["one of them"]);
    refused(&["explain", "--model", "/nowhere"], &["/nowhere"]);
    let demo = demo();
    refused(&["explain", "--model", &demo, "--prompt-tokens", "250"], &["at most 244"]);
    refused(&["explain", "--model", &demo, "--repeat", "0"], &["at least 1"]);
}

#[test]
fn what_is_not_defined_is_served_by_no_kernel() {
    for problem in [
        &["unary", "--function", "exp", "--dtype", "i64"][..],
        &["unary", "--function", "sign", "--dtype", "bool"],
        &["binary", "--dtype", "u32", "--other", "i32", "--function", "sub"],
        &["reduce", "--function", "mean", "--dtype", "f32", "--out", "bool"],
        &["reduce", "--function", "amax", "--dtype", "bool", "--out", "u8"],
        &["topk", "--width", "100", "--k", "3", "--indices", "f16"],
    ] {
        refused(&[&["explain"][..], problem].concat(), &[problem[0]]);
        refused(&[&["explain", "--measure"][..], problem].concat(), &[problem[0]]);
    }
    refused(&["explain", "gather", "--dim", "18446744073709551615"], &["--dim", "from 0 to 7"]);
    refused(&["explain", "gemm", "--n", "64", "--k", "64", "--dtype", "int4", "--unpacked"], &["--unpacked"]);
    refused(&["explain", "embedding", "--unpacked", "--dtype", "int8"], &["--unpacked"]);
    refused(&["explain", "gemm", "--n", "64", "--k", "64", "--activations", "int8"], &["--activations", "int4"]);
}

#[test]
fn the_choice_is_the_one_of_the_costs_that_are_shown() {
    for (width, k) in [("1000000", "500000"), ("724254", "107872"), ("151936", "50"), ("100", "3")] {
        let value = json(&["explain", "topk", "--width", width, "--k", k, "--json"]);
        let cost = |c: &Value| c["predicted_s"].as_f64();
        let least = list(&value, "candidates").iter().filter_map(cost).fold(f64::INFINITY, f64::min);
        let chosen = list(&value, "candidates").iter().find(|c| c["chosen"] == true).expect("one is chosen");
        assert!(cost(chosen).is_some_and(|chosen| chosen <= 1.15 * least), "{value}");
    }
}

#[test]
fn of_costs_that_are_equal_none_is_said_to_be_lower() {
    // All of a row is kept: no level has less to do.
    let value = json(&["explain", "topk", "--width", "16777216", "--k", "16777216", "--json"]);
    let able: Vec<&Value> = list(&value, "candidates").iter().filter(|c| c["predicted_s"].is_number()).collect();
    assert!(able.iter().all(|c| c["predicted_s"] == able[0]["predicted_s"]), "{value}");
    for (i, candidate) in able.iter().enumerate() {
        let expected = if i == 0 { "chosen: none is predicted to be faster" } else { "as fast by prediction" };
        assert_eq!(candidate["why"], if able.len() == 1 { "chosen: lowest predicted cost" } else { expected });
    }
}

#[test]
fn where_nothing_is_named_it_is_said_what_could_be() {
    for arguments in [&["explain"][..], &["explain", "--json"]] {
        refused(arguments, &["gemm", "--model", "--support"]);
    }
}

#[test]
fn a_product_is_described_with_what_comes_before_and_after_it() {
    let of = |flags: &[&str]| {
        let product = ["explain", "gemm", "--m", "3", "--n", "96", "--k", "64", "--simd", "portable", "--json"];
        let value = json(&[&product[..], flags].concat());
        value["problem"].as_str().expect("a problem").to_owned()
    };
    for (flags, words) in [
        (&["--batch", "2", "--unpacked", "--input", "f16"][..], &["f16·bf16→f32", "batch=2 m=3"][..]),
        (&["--gathered", "--activations", "int8", "--dtype", "int4"], &["bf16 gathered·packed(", "→f32 in int8"]),
        (&["--norm", "layer", "--bias", "bf16", "--activation", "gelu"], &["(layer width 64", "bias(bf16)", "gelu"]),
        (&["--gated", "silu", "--out", "f32"], &["→f32 in bf16 silu gated"]),
        (&["--alpha", "0.5", "--residual", "f16", "--beta", "2"], &["alpha=0.5", "residual(f16)", "beta=2"]),
    ] {
        let problem = of(flags);
        assert!(words.iter().all(|word| problem.contains(word)), "{flags:?}: {problem}");
    }
    let experts = ["--bias", "bf16", "--gated", "swigluoai", "--simd", "portable", "--json"];
    let experts = json(&[&["explain", "grouped_gemm", "--n", "96", "--k", "64"][..], &experts].concat());
    let problem = experts["problem"].as_str().expect("a problem");
    assert!(problem.contains("bias(bf16) swigluoai gated"), "{problem}");
    let product = ["explain", "gemm", "--n", "95", "--k", "64"];
    refused(&[&product[..], &["--gated", "silu"]].concat(), &["95 outputs", "gate and up"]);
    refused(&[&product[..], &["--residual", "input"]].concat(), &["--residual", "output, f32, f16, bf16"]);
    refused(&[&product[..], &["--gathered", "--unpacked"]].concat(), &["--gathered", "--unpacked"]);
    refused(&[&product[..], &["--beta", "2"]].concat(), &["--residual"]);
    refused(&[&product[..], &["--m", "16777216", "--batch", "2"]].concat(), &["rows", "more than 16777216"]);
}

#[test]
fn every_problem_of_a_models_step_is_one_that_flags_describe() {
    let demo = demo();
    let of_model = json(&["explain", "--model", &demo, "--prompt-tokens", "20", "--repeat", "1", "--json"]);
    let decode = list(&of_model, "steps").iter().find(|step| step["step"] == "decode step").expect("a decode step");
    let gemm = |n: &'static str, k: &'static str, flags: &[&'static str]| {
        [&["gemm", "--dtype", "bf16", "--n", n, "--k", k][..], flags].concat()
    };
    let head = ["--head-dim", "32"];
    let described: BTreeMap<String, String> = [
        gemm("320", "192", &["--norm", "rms"]),
        [&["rotary", "--heads", "6"][..], &head].concat(),
        [&["kv_append", "--kv-heads", "2", "--rotary-dim", "32"][..], &head].concat(),
        [&["attention", "--heads", "6", "--kv-heads", "2", "--context", "21"][..], &head].concat(),
        gemm("192", "192", &["--residual", "output"]),
        gemm("768", "192", &["--norm", "rms", "--gated", "silu"]),
        gemm("192", "384", &["--residual", "output"]),
        gemm("100", "192", &["--norm", "rms"]),
        ["embedding", "--vocab", "100", "--width", "192", "--out", "f32"].to_vec(),
        // The rows that logits are asked of, out of as many as the model was loaded for.
        ["embedding", "--vocab", "24", "--width", "192", "--dtype", "f32", "--out", "f32", "--unpacked"].to_vec(),
    ]
    .into_iter()
    .map(|flags| {
        let value = json(&[&["explain", "--json"], &flags[..]].concat());
        let chosen = list(&value, "candidates").iter().find(|candidate| candidate["chosen"] == true).expect("one");
        let words = |value: &Value| value.as_str().expect("words").to_owned();
        (words(&value["problem"]), words(&chosen["kernel"]))
    })
    .collect();
    for kernel in list(decode, "kernels") {
        let problem = kernel["problem"].as_str().expect("a problem");
        let found = described.iter().find(|(whole, _)| whole.starts_with(problem));
        let (_, chosen) = found.unwrap_or_else(|| panic!("{problem} is none of {described:#?}"));
        assert_eq!(kernel["kernel"], chosen.as_str(), "{problem}");
    }
}

/// The bundled model as a folder.
fn demo() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    folder.into_os_string().into_string().expect("the path is UTF-8")
}

/// Layers of the bundled model.
const LAYERS: u64 = 4;

/// Launches of each operator.
fn launches(step: &Value) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for kernel in list(step, "kernels") {
        let (operator, count) = (kernel["operator"].as_str(), kernel["launches"].as_u64());
        *counts.entry(operator.expect("an operator")).or_default() += count.expect("a number");
    }
    counts
}

/// What a step's table says of itself holds.
fn is_whole(step: &Value) {
    let kernels = list(step, "kernels");
    let sum: f64 = kernels.iter().map(|kernel| number(kernel, "measured_s")).sum();
    let [all, between, whole] = ["kernels_s", "between_kernels_s", "recorded_step_s"].map(|field| number(step, field));
    assert!((sum - all).abs() <= 1e-9 * all, "{step}");
    assert!(between >= 0.0 && (all + between - whole).abs() <= 1e-9 * whole, "{step}");
    // Of the same turn.
    let [unrecorded, share] = ["step_s", "kernels_share_of_step"].map(|field| number(step, field));
    assert!(unrecorded > 0.0 && share > 0.0 && (share - all / unrecorded).abs() <= 1e-9 * share, "{step}");
    assert!(unrecorded != whole, "{step}");
    for kernel in kernels {
        let [measured, share, least] = ["measured_s", "share_of_step", "least_s"].map(|field| number(kernel, field));
        assert!(measured > 0.0 && least > 0.0 && (share - measured / whole).abs() <= 1e-9, "{kernel}");
        assert!(number(kernel, "predicted_s") > 0.0 && number(kernel, "share_of_limit") > 0.0, "{kernel}");
        assert!(["memory", "arithmetic"].contains(&kernel["bound"].as_str().unwrap_or_default()), "{kernel}");
        let candidates = list(kernel, "candidates");
        let chosen = candidates.iter().find(|candidate| candidate["chosen"] == true).expect("one is chosen");
        assert_eq!((&chosen["kernel"], &chosen["arithmetic"]), (&kernel["kernel"], &kernel["arithmetic"]), "{kernel}");
        let with_reasons =
            candidates.iter().filter(|candidate| candidate["why"].as_str().is_some_and(|w| !w.is_empty()));
        assert_eq!(with_reasons.count(), candidates.len(), "{kernel}");
    }
}

#[test]
fn a_decoders_steps_are_explained_launch_by_launch() {
    let demo = demo();
    let common = ["explain", "--model", &demo, "--prompt-tokens", "20", "--repeat", "2"];
    let value = json(&[&common[..], &["--json"]].concat());
    let steps = list(&value, "steps");
    assert_eq!(
        steps.iter().map(|step| step["step"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["prefill", "decode step"]
    );
    for step in steps {
        is_whole(step);
        let counts = launches(step);
        // Embeddings and the rows that logits are asked of are gathered.
        assert_eq!([counts["attention"], counts["kv_append"], counts["embedding"]], [LAYERS, LAYERS, 2], "{counts:?}");
        // As many in each layer, and the head.
        assert_eq!(counts["gemm"] % LAYERS, 1, "{counts:?}");
        assert!(counts["gemm"] > 3 * LAYERS, "{counts:?}");
    }
    let text = stdout(&sinew(&common));
    for words in ["prefill: 1 x 20 tokens", "decode step: 1 x 20 tokens", "between kernels", "unrecorded", "attention"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let why = stdout(&sinew(&[&common[..], &["--candidates"]].concat()));
    assert!(why.contains("chosen: ") && why.contains("another arithmetic") && !text.contains("chosen: "), "{why}");
    // Twice as many sequences are twice as many prefills, and one decode step.
    let value = json(&[&common[..], &["--batch", "2", "--json"]].concat());
    let counts: Vec<u64> = list(&value, "steps").iter().map(|step| launches(step)["attention"]).collect();
    assert_eq!(counts, [2 * LAYERS, LAYERS]);
}

#[test]
fn the_lines_of_a_steps_table_add_up() {
    let text = stdout(&sinew(&["explain", "--model", &demo(), "--prompt-tokens", "20", "--repeat", "3"]));
    let ms = |line: &str, from: &str| -> f64 {
        let rest = line.split_once(from).unwrap_or_else(|| panic!("no `{from}` in {line}")).1;
        rest.trim_start().split_once(" ms").and_then(|(ms, _)| ms.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let lines = |from: &str| -> Vec<String> {
        let all: Vec<String> = text.lines().filter(|line| line.starts_with(from)).map(str::to_owned).collect();
        assert_eq!(all.len(), 2, "{text}");
        all
    };
    for ((kernels, between), step) in lines("kernels  ").iter().zip(lines("between kernels ")).zip(lines("step  ")) {
        let [launched, rest, whole] = [ms(kernels, "kernels"), ms(&between, "between kernels"), ms(&step, "step")];
        // Each is rounded.
        assert!((launched + rest - whole).abs() < 0.002, "{kernels}\n{between}\n{step}");
        let unrecorded = step.split_once(" ms  ").map(|(_, rest)| ms(rest, "")).expect("the unrecorded step");
        let share = step.rsplit_once("the kernels are ").and_then(|(_, share)| share.strip_suffix(" %"));
        let share: f64 = share.and_then(|share| share.parse().ok()).expect("a share");
        assert!(
            (share - 100.0 * launched / unrecorded).abs() < 0.2 + share * 0.001 / unrecorded.min(launched),
            "{step}"
        );
    }
}

#[test]
fn a_prompt_of_the_usual_length_is_as_long_as_the_model_has_room_for() {
    let of = |model: &str, more: &[&str]| {
        let value = json(&[&["explain", "--repeat", "1", "--json", "--model", model], more].concat());
        list(&value, "steps").iter().map(|step| step["prompt_tokens"].clone()).collect::<Vec<_>>()
    };
    // Two turns of two steps behind it, of 256 positions.
    assert_eq!(of(&demo(), &[]), [252, 252]);
    assert_eq!(of(&demo(), &["--prompt-tokens", "7"]), [7, 7]);
    let encoder = fixture("bert_hd20_f32_wordpiece");
    let positions: Value =
        serde_json::from_slice(&std::fs::read(Path::new(&encoder).join("config.json")).unwrap()).unwrap();
    assert_eq!(of(&encoder, &[]), [positions["max_position_embeddings"].clone()]);
    // What is asked for is not shortened.
    refused(&["explain", "--model", &demo(), "--repeat", "1", "--prompt-tokens", "253"], &["--prompt-tokens", "252"]);
    refused(&["explain", "--model", &demo(), "--repeat", "127"], &["--repeat 127", "256 steps", "context is 256"]);
}

#[test]
fn the_kernels_of_a_models_steps_are_held_against_steps_that_are_not_recorded() {
    let common = ["explain", "--prompt-tokens", "20", "--repeat", "1", "--json", "--model"];
    let value = json(&[&common[..], &[&demo()]].concat());
    list(&value, "steps").iter().for_each(is_whole);
    // The table has the launches of such a step, all of them and no others.
    let ctx = Arc::new(Context::cpu().unwrap());
    let mut model = sinew::demo::load(ctx.clone(), &LoadOptions::default()).unwrap();
    let mut sequence = model.sequence();
    let (_, prefill) = ctx.record(|| model.prefill(&mut sequence, &[1; 20]).map(|_| ()).unwrap());
    let sequences = std::slice::from_mut(&mut sequence);
    let (_, decode) = ctx.record(|| model.decode_greedy(sequences, &[1]).map(|_| ()).unwrap());
    for (step, record) in list(&value, "steps").iter().zip([prefill, decode]) {
        let mut counts = BTreeMap::new();
        for launched in &record.launches {
            *counts.entry(launched.operator).or_default() += 1;
        }
        assert_eq!(launches(step), counts, "{step}");
    }
}

#[test]
fn an_encoders_step_is_explained() {
    let model = fixture("bert_hd20_f32_wordpiece");
    let value = json(&["explain", "--model", &model, "--prompt-tokens", "8", "--repeat", "1", "--json"]);
    let steps = list(&value, "steps");
    assert_eq!((steps.len(), &steps[0]["step"]), (1, &Value::from("embedding")));
    is_whole(&steps[0]);
    assert_eq!(launches(&steps[0])["attention"], 1);
}

#[test]
fn a_decoder_that_embeds_texts_is_explained_as_such() {
    let model = fixture("qwen3_embedding_no_prefix_gqa3_hd20_bf16");
    let value = json(&["explain", "--model", &model, "--prompt-tokens", "8", "--repeat", "1", "--json"]);
    let steps = list(&value, "steps");
    assert_eq!((steps.len(), &steps[0]["step"]), (1, &Value::from("embedding")));
    is_whole(&steps[0]);
    let too_many = ["explain", "--model", &model, "--batch", "4294967296", "--prompt-tokens", "8"];
    refused(&too_many, &["--batch 4294967296", "at most 65536 texts of 8 tokens"]);
    refused(&["explain", "--model", &model, "--prompt-tokens", "99999"], &["99999 tokens", "positions"]);
}

#[test]
fn a_record_has_every_launch_and_changes_no_bit() {
    let ctx = Arc::new(Context::cpu().unwrap());
    let mut model =
        sinew::demo::load(ctx.clone(), &LoadOptions { max_sequences: 2, ..LoadOptions::default() }).unwrap();
    let prompt = [5u32, 6, 7, 8, 9];
    let (mut plain, mut recorded) = (model.sequence(), model.sequence());
    let expected: Vec<f32> = model.prefill(&mut plain, &prompt).unwrap().to_vec();
    let (logits, record) = ctx.record(|| model.prefill(&mut recorded, &prompt).unwrap().to_vec());
    assert_eq!(
        logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    );
    let count = |operator: &str| record.launches.iter().filter(|launched| launched.operator == operator).count() as u64;
    assert_eq!([count("attention"), count("kv_append"), count("embedding")], [LAYERS, LAYERS, 2]);
    assert!(record.launched_s() <= record.seconds);
    // Within a record there may be another, which sees its own part.
    let ((logits, inner), outer) = ctx.record(|| {
        model.decode_greedy(std::slice::from_mut(&mut plain), &[3]).unwrap();
        ctx.record(|| model.decode_greedy(std::slice::from_mut(&mut recorded), &[3]).unwrap().to_vec())
    });
    assert_eq!(logits.len(), 1);
    assert_eq!(outer.launches.len(), 2 * inner.launches.len());
    // What fails is not there, and afterwards nothing is kept.
    let x = ctx.tensor(&[1f32, 2.0], &[2]).unwrap();
    let wide = ctx.tensor(&[1f64, 2.0], &[2]).unwrap();
    let (failed, record) = ctx.record(|| sinew::ops::softmax(&ctx, &wide).is_err());
    assert!(failed && record.launches.is_empty());
    sinew::ops::softmax(&ctx, &x).unwrap();
    assert!(ctx.record(|| ()).1.launches.is_empty());
}

#[test]
fn the_head_runs_for_the_last_row_of_a_prompt_whatever_its_chunks_are() {
    const CHUNK: usize = 4;
    let ctx = Arc::new(Context::cpu().unwrap());
    let options = LoadOptions { prefill_chunk: CHUNK, max_sequences: 2, ..LoadOptions::default() };
    let load = || sinew::demo::load(ctx.clone(), &options).unwrap();
    let mut model = load();
    let vocab = model.prefill(&mut model.sequence(), &[7]).unwrap().len();
    // The embeddings and the gathers of rows whose logits are asked for; products with the head.
    let launched = |records: &[Record]| {
        let launches = || records.iter().flat_map(|record| &record.launches);
        let heads = launches().filter(|of| of.operator == "gemm" && of.problem.contains(&format!("n={vocab} ")));
        let embeddings = launches().filter(|of| of.operator == "embedding").count();
        (embeddings, heads.map(|of| of.call.clone()).collect::<Vec<_>>())
    };
    let (_, of_row) = ctx.record(|| model.prefill(&mut model.sequence(), &[7]).map(|_| ()).unwrap());
    let (_, of_row) = launched(&[of_row]);
    assert_eq!(of_row.len(), 1);
    for chunks in [1, 2, 5] {
        let prompt = vec![7; chunks * CHUNK];
        let mut sequence = model.sequence();
        let (_, prefill) = ctx.record(|| model.prefill(&mut sequence, &prompt).map(|_| ()).unwrap());
        assert_eq!(launched(&[prefill]), (chunks + 1, of_row.clone()), "{chunks} chunks");

        let mut engine = Engine::new(load(), EngineOptions::default());
        let mut request = Request::new(prompt);
        request.options.max_new_tokens = 1;
        engine.submit(request).unwrap();
        let mut steps = Vec::new();
        while !engine.is_idle() {
            steps.push(ctx.record(|| engine.step().map(|_| ()).unwrap()).1);
        }
        assert_eq!(launched(&steps), (chunks + 1, of_row.clone()), "{chunks} chunks of a request");
    }
}

#[test]
fn support_is_printed_for_every_device_of_the_machine() {
    let value = json(&["explain", "--support", "--json"]);
    let devices = list(&value, "devices");
    let cells = list(&devices[0], "cells");
    assert_eq!(devices[0]["device"], "cpu");
    let said = |operator: &str, stored: &str| {
        let cell = cells.iter().find(|cell| cell["operator"] == operator && cell["stored"] == stored);
        cell.unwrap_or_else(|| panic!("a cell for {operator} of {stored}"))["supported"].clone()
    };
    assert_eq!([said("gemm", "bf16"), said("gemm", "int4 blocks"), said("gemm", "f64")], [true, true, false]);
    assert_eq!([said("attention", "i8"), said("attention", "i16"), said("where", "bool")], [true, false, true]);
    // Of the machine as it is held down, and of one device where one is named.
    let held = json(&["explain", "--support", "--json", "--simd", "portable", "--device", "cpu"]);
    let devices = list(&held, "devices");
    let kernels = list(&devices[0], "cells").iter().flat_map(|cell| list(cell, "kernels"));
    let rows: Vec<&str> = kernels.map(|row| row.as_str().unwrap()).collect();
    assert!(devices.len() == 1 && !rows.is_empty() && rows.iter().all(|row| !row.contains("avx")), "{rows:?}");
    let text = stdout(&sinew(&["explain", "--support"]));
    assert!(text.lines().any(|line| line.starts_with("attention ") && line.contains("yes")), "{text}");
}
