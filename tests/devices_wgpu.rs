//! `sinew devices --measure` of an adapter: what it keeps is shown without opening the adapter again, and says of itself
//! what was measured.

#[path = "common/command.rs"]
mod command;
#[path = "common/harness.rs"]
mod harness;

use std::path::Path;

use command::{command, run, stdout};
use serde_json::Value;
use sinew::kernels::rates::Description;
use sinew::memory::{DeviceKind, DeviceOptions, PrivateFolder, discover, open};
use sinew::ops::Limits;

fn shown(folder: &Path, arguments: &[&str]) -> String {
    // Of the CPU, whichever device is asked for.
    stdout(&run(command().env("XDG_CACHE_HOME", folder).env("SINEW_THREADS", "1").args(arguments), ""))
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&shown(folder, arguments)).expect("the output is one JSON value and nothing else")
}

/// What the command says was measured of the first adapter.
fn measured(devices: &Value) -> Value {
    let all = devices["devices"].as_array().expect("a list");
    all.iter().find(|device| device["device"] == "wgpu:0").expect("an adapter")["measured"].clone()
}

fn what_was_measured_of_an_adapter_is_shown_from_then_on() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(measured(&json(folder.path(), &["devices", "--json"])).is_null());
    let now = measured(&json(folder.path(), &["devices", "--measure", "--json"]));
    for rate in [&now["bandwidth"][0]["copy_bytes_per_s"], &now["products"]["f32_flops_per_s"], &now["fork_join_s"]] {
        assert!(rate.as_f64().is_some_and(|rate| rate.is_finite() && rate > 0.0), "{now}");
    }
    assert_eq!(measured(&json(folder.path(), &["devices", "--json"])), now);
    let text = shown(folder.path(), &["devices"]);
    let of_adapter = text.split_once("wgpu:0: ").expect("an adapter").1;
    assert!(of_adapter.contains("memory: copied") && of_adapter.contains("products: f32"), "{text}");

    // The same of the device that is opened, and of no other.
    let kept = PrivateFolder::at(folder.path().join("sinew/devices"));
    let found = discover().into_iter().find(|device| device.name == "wgpu:0").expect("an adapter");
    let description = Description::kept_of_found(&found, &kept).expect("it is kept");
    let device = open("wgpu:0", &DeviceOptions::default()).expect("the adapter opens");
    assert_eq!(Description::kept(&device, &kept), Some(description.clone()));
    let mut another = found;
    another.name = "wgpu:7".to_owned();
    assert_eq!(Description::kept_of_found(&another, &kept), None);
    let cpu = discover().into_iter().find(|device| device.kind == DeviceKind::CPU).expect("a CPU");
    assert_eq!(Description::kept_of_found(&cpu, &kept), None);

    // Its arithmetic is an estimate, whether limits were kept or are measured now.
    for limits in [Limits::described(device.hardware(), &description), Limits::measure(&device).expect("it measures")] {
        assert!(limits.memory_measured && !limits.arithmetic_measured, "{limits}");
        assert!(limits.to_string().ends_with("(memory measured, arithmetic estimated)"), "{limits}");
    }
    let explained = json(folder.path(), &["explain", "softmax", "--device", "wgpu:0", "--json"]);
    let limits = &explained["limits"];
    assert_eq!([&limits["memory_measured"], &limits["arithmetic_measured"]], [true, false], "{limits}");
    assert_eq!(limits["memory_bytes_per_s"], now["bandwidth"][0]["copy_bytes_per_s"]);
    let text = shown(folder.path(), &["explain", "softmax", "--device", "wgpu:0"]);
    assert!(text.contains("(memory measured, arithmetic estimated)"), "{text}");
}

fn main() -> std::process::ExitCode {
    harness::run(Vec::new(), harness::trials![what_was_measured_of_an_adapter_is_shown_from_then_on])
}
