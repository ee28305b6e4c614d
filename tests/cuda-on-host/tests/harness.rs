//! Every row for CUDA against its reference, on the host.
#![cfg(target_os = "linux")]

use sinew::kernels::Registry;
use sinew::kernels::harness::case::Depth;
use sinew_conformance::rows;

/// `SINEW_ROWS` names the beginning of the rows' operators to walk; all where it is not set.
#[test]
fn every_row_for_cuda_passes_the_harness() {
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
    let wanted = std::env::var("SINEW_ROWS").unwrap_or_default();
    let (registry, mut table) = (Registry::standard(), Vec::new());
    let tables = registry.tables().filter(|table| table.operator().starts_with(&wanted));
    let failed = rows::check(tables, &device, Depth::Quick, &mut table).unwrap();
    let table = String::from_utf8_lossy(&table);
    println!("{table}");
    // What the library does not take goes to other kernels, so that its row would pass without it.
    let products = sinew_cuda_on_host::products();
    println!("{products} products by cuBLASLt");
    assert!(products > 20 || !"gemm".starts_with(&wanted), "{products} products by cuBLASLt");
    // What the device lacks is for another's test: this one lacks nothing.
    assert!(failed.rows.is_empty() && failed.of > 0 && !table.contains("not here"), "{table}");
}
