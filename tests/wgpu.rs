//! Every wgpu row of every table against its f64 reference, on the adapter that there is: as it is, and held down to the
//! least that WebGPU promises.
//!
//! `cargo test --test wgpu -- --nocapture` prints the table; `SINEW_DEPTH=full` walks all cases. Without an adapter it
//! says so and passes, unless `SINEW_REQUIRE_WGPU=1`.

#![cfg(feature = "wgpu")]

use std::sync::Arc;

use sinew::kernels::Registry;
use sinew::kernels::case::Depth;
use sinew::memory::webgpu::{WgpuDevice, WgpuOptions};
use sinew::memory::{Device, DeviceKind};

fn depth() -> Depth {
    match std::env::var("SINEW_DEPTH").as_deref() {
        Ok("full") => Depth::Full,
        _ => Depth::Quick,
    }
}

/// Walks every wgpu row.
fn every_row_is_within_its_bound(options: &WgpuOptions) {
    let device: Arc<dyn Device> = match WgpuDevice::open(0, options) {
        Ok(device) => device,
        Err(error) if std::env::var("SINEW_REQUIRE_WGPU").as_deref() == Ok("1") => panic!("{error}"),
        Err(error) => return println!("skipped: {error}"),
    };
    let hardware = device.hardware();
    let offers = hardware.accelerator.as_ref().expect("an adapter says what it offers");
    println!("{}: {} with subgroups {:?}, f16 {}", device.id(), hardware.name, offers.subgroup_size, offers.f16);
    println!(
        "bindings up to {} bytes, {} of them, {} bytes per workgroup",
        offers.max_binding_bytes, offers.max_bindings, offers.workgroup_bytes
    );
    println!("{:<12} {:<28} {:>6} {:>9} {:>6} {:>9}", "operator", "row", "cases", "elements", "equal", "of bound");
    let registry = Registry::standard();
    let mut failures = Vec::new();
    for table in registry.tables() {
        if !table.row_names().iter().any(|&(_, kind, _)| kind == DeviceKind::WGPU) {
            continue;
        }
        for report in table.verify(&device, depth()) {
            let (operator, row) = (report.operator, report.row);
            let (cases, elements, compared) = (report.cases, report.elements, report.compared);
            let worst = 100.0 * report.worst;
            println!("{operator:<12} {row:<28} {cases:>6} {elements:>9} {compared:>6} {worst:>8.1}%");
            // A row that needs what this adapter has not takes no case of it.
            let needs_more = row.contains("subgroup") && offers.subgroup_size.is_none();
            if (cases == 0 || elements == 0) != needs_more {
                failures.push(format!("{row}: {cases} cases, {elements} elements"));
            }
            failures.extend(report.failures.into_iter().map(|line| format!("{row}: {line}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_row_is_within_its_bound_on_the_adapter_as_it_is() {
    every_row_is_within_its_bound(&WgpuOptions::default());
}

#[test]
fn every_row_is_within_its_bound_on_the_least_that_webgpu_promises() {
    every_row_is_within_its_bound(&WgpuOptions::least());
}
