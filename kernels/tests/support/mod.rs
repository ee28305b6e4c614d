//! What the tests of every operator share: walking a table at each SIMD level.

use sinew_kernels::Row;
use sinew_kernels::accuracy::RowReport;
use sinew_kernels::case::{Depth, Reference};
use sinew_memory::{Cpu, SimdLevel};

/// Verifies rows at every level that the machine has, prints a line for each, and wants no failure and no row that
/// never ran.
pub fn verify<O: Reference>(rows: Vec<Row<O>>) -> Vec<RowReport> {
    let depth = if std::env::var_os("SINEW_FULL").is_some() { Depth::Full } else { Depth::Quick };
    let mut last = Vec::new();
    for level in SimdLevel::ALL.into_iter().filter(|&level| level <= SimdLevel::detected()) {
        let device = Cpu::with(2, level).unwrap();
        last = sinew_kernels::accuracy::verify(&rows, &device, depth);
        for report in &last {
            let RowReport { row, cases, elements, compared, worst, .. } = report;
            println!(
                "{level:10} {row:28} {cases:5} cases {elements:7} elements {compared:4} compared, worst {worst:.3}"
            );
            assert!(report.failures.is_empty(), "{row} at {level}:\n{}", report.failures.join("\n"));
        }
    }
    assert!(SimdLevel::detected() < SimdLevel::Avx512 || last.iter().all(|report| report.cases > 0));
    last
}

/// Wants a row to have been compared bit for bit with another, on machines that have both.
#[allow(dead_code)]
pub fn was_compared(reports: &[RowReport], row: &str) {
    let report = reports.iter().find(|report| report.row == row).unwrap();
    assert!(SimdLevel::detected() < SimdLevel::Avx512 || report.compared > 0, "{row} was compared with no other row");
}
