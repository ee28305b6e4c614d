//! Every row for CUDA against its reference, on the host.
#![cfg(target_os = "linux")]

use sinew_kernels::Registry;
use sinew_kernels::accuracy::RowReport;
use sinew_kernels::case::Depth;
use sinew_memory::DeviceKind;

/// `SINEW_ROWS` names the beginning of the rows' operators to walk; all where it is not set.
#[test]
fn every_row_for_cuda_passes_the_harness() {
    let Some(device) = sinew_cuda_on_host::device(env!("CARGO_TARGET_TMPDIR")).unwrap() else { return };
    let wanted = std::env::var("SINEW_ROWS").unwrap_or_default();
    let (registry, mut wrong) = (Registry::standard(), Vec::new());
    for table in registry.tables().filter(|table| table.operator().starts_with(&wanted)) {
        if !table.row_names().iter().any(|(_, kind, _)| *kind == DeviceKind::CUDA) {
            continue;
        }
        for report in table.verify(&device, Depth::Quick) {
            let RowReport { row, cases, elements, compared, worst, failures, .. } = report;
            println!("{row:28} {cases:5} cases {elements:7} elements {compared:4} compared, worst {worst:.3}");
            wrong.extend(failures.into_iter().map(|failure| format!("{row}: {failure}")));
            if cases == 0 {
                wrong.push(format!("{row} ran no case"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
