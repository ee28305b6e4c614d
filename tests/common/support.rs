//! The table of support beside what runs.

use std::sync::Arc;

use sinew_kernels::Registry;
use sinew_memory::Device;

/// Every problem that the table claims for a device runs within its bound by just the rows that it names, and every
/// other is refused with an error by every row. Gives the numbers of both.
pub fn agrees_with_what_runs(registry: &Registry, device: &Arc<dyn Device>) -> [usize; 2] {
    let mut counts = [0, 0];
    for table in registry.tables() {
        for cell in table.support(device.hardware()) {
            let (operator, stored) = (cell.operator, cell.stored);
            assert_eq!(cell.problem.is_none(), cell.rows.is_empty() && cell.refused.is_empty(), "{cell:?}");
            let reports = table.try_stored(stored, device);
            for report in &reports {
                let (row, failures) = (report.row, &report.failures);
                let claimed = cell.rows.contains(&row);
                assert_eq!(failures.is_empty(), claimed, "{operator} of {stored} by {row}: {failures:?}");
                assert_eq!(report.elements > 0, claimed, "{operator} of {stored} by {row} compared nothing");
            }
            let ran = reports.iter().filter(|report| report.failures.is_empty()).count();
            assert_eq!(ran, cell.rows.len(), "{operator} of {stored}");
            counts[usize::from(!cell.is_supported())] += usize::from(cell.problem.is_some());
        }
    }
    counts
}
