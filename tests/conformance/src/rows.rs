//! The accuracy harness over every row of a device, as a table.

use std::io::{self, Write};
use std::sync::Arc;

use sinew::kernels::Registry;
use sinew::kernels::accuracy::RowReport;
use sinew::kernels::case::Depth;
use sinew::memory::Device;

/// Checks every row of `registry` that runs on `device` and prints a line for each. Returns those that failed: with a
/// wrong case, or without any.
///
/// # Errors
/// A writer that fails.
pub fn check(registry: &Registry, device: &Arc<dyn Device>, depth: Depth, out: &mut dyn Write) -> io::Result<Failed> {
    writeln!(
        out,
        "{:<12} {:<30} {:>6} {:>9} {:>6} {:>9}",
        "operator", "row", "cases", "elements", "equal", "of bound"
    )?;
    let mut failed = Failed::default();
    for table in registry.tables() {
        for report in table.verify(device, depth) {
            let RowReport { operator, row, cases, elements, compared, worst, failures, .. } = report;
            let wrong = !failures.is_empty() || cases == 0;
            writeln!(
                out,
                "{operator:<12} {row:<30} {cases:>6} {elements:>9} {compared:>6} {:>8.1}%{}",
                100.0 * worst,
                if wrong { "  FAILED" } else { "" }
            )?;
            failures.iter().try_for_each(|failure| writeln!(out, "    {failure}"))?;
            failed.rows += usize::from(wrong);
            failed.of += 1;
        }
    }
    Ok(failed)
}

/// How many rows failed, of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failed {
    /// Rows that failed.
    pub rows: usize,
    /// Rows that were checked.
    pub of: usize,
}
