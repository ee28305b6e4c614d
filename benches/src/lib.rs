//! What the benches share: every row of every table, ready to be timed, and the context that chooses among them.

use std::sync::Arc;

use sinew_kernels::accuracy::Run;
use sinew_kernels::case::Depth;
use sinew_kernels::{Registry, Result};
use sinew_memory::Device;
use sinew_ops::{Context, Policy};

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

/// A context that chooses rows on `device` as it is done for whoever asks for nothing special.
///
/// # Errors
/// A device that cannot make a stream.
pub fn context(device: &Arc<dyn Device>) -> sinew_ops::Result<Context> {
    Context::new(device.clone(), Arc::new(Registry::standard()), Policy::of(device.id().kind))
}
