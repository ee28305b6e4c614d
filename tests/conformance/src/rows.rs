//! The accuracy harness over every row of a device, as a table.

use std::io::{self, Write};
use std::sync::Arc;

use sinew::kernels::AnyTable;
use sinew::kernels::harness::accuracy::RowReport;
use sinew::kernels::harness::case::Depth;
use sinew::memory::Device;

/// Checks every row of tables that runs on `device` and prints a line for each. Returns those that failed: with a wrong
/// case, or without any though the device lacks nothing that the row needs.
///
/// # Errors
/// A writer that fails.
pub fn check<'a>(
    tables: impl Iterator<Item = &'a dyn AnyTable>,
    device: &Arc<dyn Device>,
    depth: Depth,
    out: &mut dyn Write,
) -> io::Result<Failed> {
    writeln!(
        out,
        "{:<12} {:<30} {:>6} {:>9} {:>6} {:>9} {:>16}",
        "operator", "row", "cases", "elements", "equal", "of bound", "hash"
    )?;
    let mut failed = Failed::default();
    for report in tables.flat_map(|table| table.verify(device, depth)) {
        let wrong = report.fails();
        let RowReport { operator, row, cases, elements, compared, worst, hash, failures, lacks, .. } = report;
        let remark = match lacks {
            _ if wrong => "  FAILED".to_owned(),
            Some(lacks) => format!("  not here: {lacks}"),
            None => String::new(),
        };
        let worst = 100.0 * worst;
        writeln!(
            out,
            "{operator:<12} {row:<30} {cases:>6} {elements:>9} {compared:>6} {worst:>8.1}% {hash:016x}{remark}"
        )?;
        failures.iter().try_for_each(|failure| writeln!(out, "    {failure}"))?;
        failed.of += 1;
        if wrong {
            failed.rows.push(row);
        }
    }
    Ok(failed)
}

/// The rows that failed, of how many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failed {
    /// Rows that failed.
    pub rows: Vec<&'static str>,
    /// Rows that were checked.
    pub of: usize,
}
