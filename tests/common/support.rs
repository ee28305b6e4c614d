//! The table of support beside what runs.

use std::sync::Arc;

use sinew_kernels::Registry;
use sinew_memory::Device;

/// Every problem that the table claims for a device runs within its bound by just the rows that it names, and every
/// other is refused with an error by every row. Gives the numbers of both.
pub fn agrees_with_what_runs(registry: &Registry, device: &Arc<dyn Device>) -> [usize; 2] {
    let (mut counts, mut wrong) = ([0, 0], Vec::new());
    for table in registry.tables() {
        for cell in table.support(device.hardware()) {
            let (operator, stored) = (cell.operator, cell.stored);
            assert_eq!(cell.problem.is_none(), cell.rows.is_empty() && cell.refused.is_empty(), "{cell:?}");
            let reports = table.try_stored(stored, device);
            for report in &reports {
                let (row, failures) = (report.row, &report.failures);
                let claimed = cell.rows.contains(&row);
                // What is claimed compares something, and what is not runs nowhere.
                if failures.is_empty() != claimed || (report.elements > 0) != claimed {
                    let failure: String =
                        failures.iter().take(1).flat_map(|failure| failure.chars().take(300)).collect();
                    wrong.push(format!("{operator} of {stored} by {row}, claimed {claimed}: {failure}"));
                }
            }
            assert!(cell.rows.iter().all(|row| reports.iter().any(|report| report.row == *row)), "{cell:?}");
            counts[usize::from(!cell.is_supported())] += usize::from(cell.problem.is_some());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    counts
}
