//! Every row of every table against its f64 reference, at every SIMD level that this machine has.
//!
//! `cargo test --test accuracy -- --nocapture` prints the table and a hash of what each kernel wrote: builds that agree to the
//! bit print the same ones (all NaNs count as one). `SINEW_DEPTH=full` runs all cases, at the highest level only.

use std::collections::BTreeMap;

use sinew_kernels::Registry;
use sinew_kernels::harness::case::Depth;
use sinew_memory::{Cpu, DeviceKind, SimdLevel};

/// Threads of the device under test: more than one, so that work is divided.
const THREADS: usize = 2;

fn depth() -> Depth {
    match std::env::var("SINEW_DEPTH").as_deref() {
        Ok("full") => Depth::Full,
        _ => Depth::Quick,
    }
}

#[test]
fn every_row_is_within_its_bound_at_every_simd_level() {
    let registry = Registry::standard();
    let mut failures = Vec::new();
    println!(
        "{:<12} {:<12} {:<28} {:<24} {:>6} {:>9} {:>6} {:>9} {:>16}",
        "level", "operator", "row", "arithmetic", "cases", "elements", "equal", "of bound", "hash"
    );
    // Rows that some level ran, with how often each was compared with another of its arithmetic.
    let mut ran: BTreeMap<&str, ([&str; 2], usize)> = BTreeMap::new();
    let (depth, highest) = (depth(), SimdLevel::detected());
    let is_walked = |&level: &SimdLevel| level == highest || level < highest && depth == Depth::Quick;
    for level in SimdLevel::ALL.into_iter().filter(is_walked) {
        let device = Cpu::with(THREADS, level).expect("two threads start");
        for table in registry.tables() {
            for report in table.verify(&device, depth) {
                if report.cases == 0 {
                    continue;
                }
                let family = [report.operator, report.arithmetic];
                ran.entry(report.row).or_insert((family, 0)).1 += report.compared;
                println!(
                    "{:<12} {:<12} {:<28} {:<24} {:>6} {:>9} {:>6} {:>8.1}% {:016x}",
                    level.to_string(),
                    report.operator,
                    report.row,
                    report.arithmetic,
                    report.cases,
                    report.elements,
                    report.compared,
                    100.0 * report.worst,
                    report.hash
                );
                assert!(report.elements > 0, "{} compared nothing in {} cases", report.row, report.cases);
                failures.extend(report.failures.into_iter().map(|line| format!("{level} {}: {line}", report.row)));
            }
        }
    }
    let idle: Vec<_> = registry
        .tables()
        .flat_map(|table| table.row_names())
        .filter(|&(row, kind, _)| kind == DeviceKind::CPU && !ran.contains_key(row))
        .map(|(row, ..)| row)
        .collect();
    if highest == SimdLevel::Avx512Bf16 {
        assert!(idle.is_empty(), "rows without a case on this machine: {idle:?}");
    } else {
        println!("rows that this machine cannot run: {idle:?}");
    }
    // The first row of an operator's arithmetic has none before it to be compared with.
    for family in ran.values().map(|&(family, _)| family) {
        let never: Vec<_> = ran.iter().filter(|(_, of)| **of == (family, 0)).map(|(row, _)| row).collect();
        assert!(never.len() <= 1, "rows of {family:?} that were compared with no other: {never:?}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
