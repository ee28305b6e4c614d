//! What the benches share: every row of every table, ready to be timed.

use std::sync::Arc;

use sinew_kernels::accuracy::Run;
use sinew_kernels::case::Depth;
use sinew_kernels::{Registry, Result};
use sinew_memory::Device;

/// Every row of `registry` that runs on `device`, with each of its cases.
///
/// # Errors
/// Operands that cannot be made.
pub fn runs(registry: &Registry, device: &Arc<dyn Device>) -> Result<Vec<Run>> {
    let mut all = Vec::new();
    for table in registry.tables() {
        all.extend(table.runs(device, Depth::Quick)?);
    }
    Ok(all)
}
