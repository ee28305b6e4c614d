//! `sinew tune` and `sinew devices --measure`: what they keep is found again, and changes no bit.

use std::path::Path;
use std::process::Output;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sinew::demo;
use sinew::memory::PrivateFolder;
use sinew::ops::{Budget, TuningCache, tune};
use sinew::prelude::*;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;
#[cfg(target_os = "linux")]
#[path = "common/llama.rs"]
mod llama;

use command::{command, refused, run, stdout};
use fixtures::fixture;

/// The command with the user's caches in a folder, tuned.
fn in_folder(folder: &Path, arguments: &[&str]) -> Output {
    run(command().env("SINEW_TUNING", "on").env("XDG_CACHE_HOME", folder).args(arguments), "")
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).expect("the output is one JSON value and nothing else")
}

/// Logits of a prompt and of a step after it.
fn logits(model: &mut LanguageModel) -> Vec<u32> {
    let mut sequence = model.sequence();
    let prompt: Vec<u32> = (0..77).map(|i| i * 5 % 60).collect();
    let mut bits: Vec<u32> = model.prefill(&mut sequence, &prompt).unwrap().iter().map(|x| x.to_bits()).collect();
    bits.extend(model.prefill(&mut sequence, &[7]).unwrap().iter().map(|x| x.to_bits()));
    bits
}

#[test]
fn a_tuned_model_gives_the_bits_of_an_untuned_one() {
    let folder = tempfile::tempdir().unwrap();
    let cache = TuningCache::at(PrivateFolder::at(folder.path().join("tuning")));
    for dtype in [DType::F32, DType::BF16] {
        let weights = WeightOptions { dtype: Some(dtype), ..WeightOptions::default() };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        let ctx = Arc::new(Context::cpu().unwrap());
        let untuned = logits(&mut demo::load(ctx.clone(), &options).unwrap());
        // As long as it takes, on however slow a machine.
        let mut tuned = tune(&ctx, &Budget { time: Duration::from_secs(3600), runs: 1 }).unwrap();
        assert!(tuned.problems.len() > 5 && tuned.left == 0, "{tuned:?}");
        assert!(tuned.problems.iter().all(|problem| problem.failed.is_empty()), "{tuned:?}");
        cache.save(&ctx, &tuned).unwrap();
        let run_tuned = || {
            let ctx = Arc::new(Context::cpu().unwrap().with_tuning(&cache));
            let (bits, record) = ctx.record(|| logits(&mut demo::load(ctx.clone(), &options).unwrap()));
            assert_eq!(bits, untuned);
            record.launches
        };
        run_tuned();
        // Whichever row wins: each other in its turn, as another machine may say.
        let mut moved = 0;
        for problem in &mut tuned.problems {
            let mut times = serde_json::to_value(&problem.times).unwrap();
            if let Some(other) = problem.times.rows().keys().rfind(|row| **row != problem.predicted) {
                times["rows"][other] = 1e-9.into();
                moved += 1;
            }
            times["rounds"] = 7.into();
            problem.times = serde_json::from_value(times).unwrap();
        }
        cache.save(&ctx, &tuned).unwrap();
        let launches = run_tuned();
        let usual: Vec<&str> = tuned.problems.iter().map(|problem| problem.predicted).collect();
        let others = launches.iter().filter(|launched| !usual.contains(&launched.row)).count();
        assert!(moved > 0 && others > 0, "{moved} problems, {others} of {} launches", launches.len());
    }
}

#[test]
fn the_command_keeps_times_where_the_users_caches_are() {
    let folder = tempfile::tempdir().unwrap();
    let tuned = json(&in_folder(folder.path(), &["tune", "--budget", "2", "--json"]));
    let problems = tuned["problems"].as_array().unwrap();
    assert!(!problems.is_empty() && tuned["interrupted"] == false);
    for problem in problems {
        assert!(problem["times"][problem["winner"].as_str().unwrap()].as_f64().unwrap() > 0.0, "{problem}");
    }
    assert_eq!(tuned["folder"].as_str().unwrap(), folder.path().join("sinew/tuning").to_str().unwrap());
    let files = || std::fs::read_dir(folder.path().join("sinew/tuning")).unwrap().count();
    let kept = files();
    assert!(kept > 0);
    // Lines of answers; behind them stand times.
    let answers = |output: &Output| -> Vec<String> {
        stdout(output).lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect()
    };
    let with = answers(&in_folder(folder.path(), &[]));
    assert_eq!((with.len(), &with), (demo::PROMPTS.len(), &answers(&in_folder(folder.path(), &["--tuning=false"]))));
    assert!(stdout(&in_folder(folder.path(), &["tune", "--budget", "0.1"])).contains("kept in"));
    assert_eq!(files(), kept);
    refused(&in_folder(folder.path(), &["tune", "--budget", "0"]), &["budget", "0.1"]);
    let maybe = run(command().env("SINEW_TUNING", "maybe").arg("devices"), "");
    refused(&maybe, &["SINEW_TUNING", "maybe", "on or off"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_tuning_that_is_interrupted_or_killed_keeps_what_it_measured() {
    use command::interrupted;
    use llama::{Llama, Stored};

    // Of which the larger products take seconds.
    const MODEL: Llama = Llama { hidden: 2048, width: 8192, layers: 1, vocab: 8192 };
    let [folder, another, model] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    MODEL.write(model.path(), Stored::Bf16).unwrap();
    let tune = |folder: &Path, budget: &str| {
        let mut tune = command();
        tune.env("SINEW_TUNING", "on").env("XDG_CACHE_HOME", folder);
        tune.args(["tune", "--threads", "2", "--budget", budget, "--json", "--model"]).arg(model.path());
        tune
    };
    let (output, time) = interrupted(&mut tune(folder.path(), "3600"));
    assert!(output.status.code() == Some(130) && time.as_secs() < 60, "{output:?} after {time:?}");
    let tuned: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(tuned["left"].as_u64() > Some(0) && tuned["interrupted"] == true, "{tuned}");
    assert_eq!(tuned["folder"].as_str().unwrap(), folder.path().join("sinew/tuning").to_str().unwrap());
    // The next one goes on behind it: what is known comes last.
    let next = json(&run(&mut tune(folder.path(), "0.1"), ""));
    let names = |tuned: &Value| -> Vec<String> {
        let problems = tuned["problems"].as_array().unwrap().iter();
        let chosen = problems.filter(|problem| problem["times"].as_object().unwrap().len() > 1);
        chosen.map(|problem| problem["problem"].to_string()).collect()
    };
    let (before, after) = (names(&tuned), names(&next));
    assert!(!before.is_empty() && !after.is_empty(), "{before:?}, {after:?}");
    assert!(after.iter().all(|problem| !before.contains(problem)), "{before:?}, {after:?}");
    assert_eq!(next["interrupted"], false);
    // What has no time to say a last word has said the others.
    let mut child = tune(another.path(), "3600").stdout(Stdio::null()).spawn().unwrap();
    let is_times = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        !name.ends_with(".lock") && !name.starts_with("unfinished")
    };
    let kept = || {
        let files = std::fs::read_dir(another.path().join("sinew/tuning")).into_iter().flatten();
        files.map(|entry| entry.unwrap().path()).any(|path| is_times(&path))
    };
    while !kept() {
        assert!(child.try_wait().unwrap().is_none(), "it ended, and kept nothing before that");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "it ended by itself");
}

#[test]
fn times_are_not_kept_in_a_home_that_is_no_absolute_path_and_that_is_said() {
    let mut command = command();
    command.env("SINEW_TUNING", "on").env_remove("XDG_CACHE_HOME").env("HOME", "here");
    let shown = stdout(&run(command.args(["tune", "--budget", "0.1"]), ""));
    assert!(shown.ends_with("not kept: neither XDG_CACHE_HOME nor HOME is an absolute path\n"), "{shown}");
}

#[test]
fn a_decoder_that_embeds_texts_is_tuned_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("qwen3_embedding_no_prefix_gqa3_hd20_bf16");
    let tuned = json(&in_folder(folder.path(), &["tune", "--model", &model, "--budget", "60", "--json"]));
    let problems = tuned["problems"].as_array().unwrap();
    let is = |problem: &Value, operator: &str, words: &str| {
        problem["operator"] == operator && problem["problem"].as_str().unwrap().contains(words)
    };
    // Its vocabulary is read, and no logits are made of it.
    assert!(problems.iter().any(|problem| is(problem, "embedding", "1003 rows")), "{tuned}");
    assert!(problems.iter().all(|problem| !is(problem, "gemm", "n=1003 ")), "{tuned}");
}

#[test]
fn times_that_another_process_keeps_from_being_kept_are_shown_and_said() {
    let folder = tempfile::tempdir().unwrap();
    stdout(&in_folder(folder.path(), &["tune", "--budget", "0.1"]));
    let kept = folder.path().join("sinew/tuning");
    let locks: Vec<_> = std::fs::read_dir(&kept)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "lock"))
        .collect();
    assert_eq!(locks.len(), 1);
    let lock = std::fs::File::options().write(true).open(&locks[0]).unwrap();
    lock.lock().unwrap();
    let output = in_folder(folder.path(), &["tune", "--budget", "0.1"]);
    assert_eq!(output.status.code(), Some(1));
    let (shown, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("problems in") && shown.ends_with("not kept\n"), "{shown}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for words in ["the times cannot be kept in", "sinew/tuning", "another process has been writing it for"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    drop(lock);
    assert!(stdout(&in_folder(folder.path(), &["tune", "--budget", "0.1"])).contains("kept in"));
}

#[cfg(unix)]
#[test]
fn folders_whose_names_are_no_utf_8_are_tuned_for_and_kept_in() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let [model, caches] = [&b"m\xffdel"[..], b"caches\xfe"].map(|name| folder.path().join(OsStr::from_bytes(name)));
    std::os::unix::fs::symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo"), &model).unwrap();
    let mut command = command();
    command.env("SINEW_TUNING", "on").env("XDG_CACHE_HOME", &caches).args(["tune", "--budget", "0.1", "--json"]);
    let tuned = json(&run(command.arg("--model").arg(&model), ""));
    assert!(tuned["folder"].as_str().unwrap().contains("caches\u{fffd}/sinew/tuning"), "{}", tuned["folder"]);
    assert!(caches.join("sinew/tuning").is_dir());
}

#[test]
fn a_description_is_measured_once_and_shown_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = |arguments: &[&str]| {
        let all = json(&in_folder(folder.path(), arguments));
        all["devices"].as_array().unwrap().iter().find(|device| device["kind"] == "cpu").unwrap()["measured"].clone()
    };
    assert!(cpu(&["devices", "--json", "--threads", "1"]).is_null());
    let measured = cpu(&["devices", "--json", "--threads", "1", "--measure"]);
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value.is_finite() && value > 0.0);
    assert_eq!(measured["bandwidth"][0]["threads"], 1);
    for limit in ["read_bytes_per_s", "copy_bytes_per_s"] {
        assert!(positive(&measured["bandwidth"][0][limit]), "{measured}");
    }
    for rate in ["f32_flops_per_s", "bf16_flops_per_s", "int8_ops_per_s"] {
        assert!(positive(&measured["arithmetic"][rate]), "{measured}");
    }
    assert!(positive(&measured["fork_join_s"]), "{measured}");
    assert_eq!(cpu(&["devices", "--json", "--threads", "1"]), measured);
    assert!(cpu(&["devices", "--json", "--threads", "2"]).is_null());
    // Of more threads each power of two and all, whether there are as many cores or not.
    let of_three = cpu(&["devices", "--json", "--threads", "3", "--measure"]);
    let bandwidth = of_three["bandwidth"].as_array().unwrap();
    let threads: Vec<u64> = bandwidth.iter().map(|entry| entry["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2, 3]);
    for entry in bandwidth {
        assert!(positive(&entry["read_bytes_per_s"]) && positive(&entry["copy_bytes_per_s"]), "{entry}");
    }
    assert_eq!(cpu(&["devices", "--json", "--threads", "3"]), of_three);
    assert_eq!(cpu(&["devices", "--json", "--threads", "1"]), measured);
    let shown = stdout(&in_folder(folder.path(), &["devices", "--threads", "3"]));
    assert!((1..=3).all(|threads| shown.contains(&format!("memory with {threads} threads: read "))), "{shown}");
    let explained = json(&in_folder(folder.path(), &["explain", "softmax", "--json", "--threads", "3"]));
    assert_eq!(explained["limits"]["memory_bytes_per_s"], bandwidth[2]["read_bytes_per_s"]);
    // What is explained is held against it from then on.
    for (threads, known) in [("1", true), ("2", false)] {
        let explained = json(&in_folder(folder.path(), &["explain", "softmax", "--json", "--threads", threads]));
        let limits = &explained["limits"];
        assert_eq!([&limits["memory_measured"], &limits["arithmetic_measured"]], [known; 2]);
        assert_eq!(limits["memory_bytes_per_s"] == measured["bandwidth"][0]["read_bytes_per_s"], known, "{limits}");
    }
    // In a folder of its own there is nothing yet, and where nothing can be kept that is said.
    let elsewhere = |place: &str, more: &[&str]| {
        let set = format!("device_cache={place}");
        in_folder(folder.path(), &[&["devices", "--json", "--threads", "1", "--set", &set], more].concat())
    };
    let place = folder.path().join("elsewhere");
    let nothing = json(&elsewhere(place.to_str().unwrap(), &[]));
    assert!(nothing["devices"].as_array().unwrap().iter().all(|device| device.get("measured").is_none()), "{nothing}");
    let unkept = elsewhere("/dev/null/none", &["--measure"]);
    assert!(String::from_utf8_lossy(&unkept.stderr).contains("not kept: /dev/null/none"), "{unkept:?}");
    let shown = stdout(&in_folder(folder.path(), &["devices", "--threads", "1"]));
    assert!(shown.contains("start and join") && shown.contains("GFLOP/s"), "{shown}");
}
