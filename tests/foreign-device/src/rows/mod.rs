//! Kernels of the device: one file per operator, one line each in [`register`].
//!
//! They compute in f64 and round once, which is slow and within every bound.

mod activation;
mod binary;
mod gather;
mod gemm;

pub use activation::rows as activation_rows;
pub use binary::rows as binary_rows;
pub use gather::rows as gather_rows;
pub use gemm::rows as gemm_rows;

use sinew_kernels::{Operator, Registry};
use sinew_memory::Hardware;

/// Adds the device's kernels to the tables of a registry.
pub fn register(registry: &mut Registry) {
    registry.add(activation_rows());
    registry.add(binary_rows());
    registry.add(gather_rows());
    registry.add(gemm_rows());
}

/// Predicted seconds.
fn cost<O: Operator>(fixed: &O::Static, call: &O::Dynamic, hardware: &Hardware) -> f64 {
    let (work, rates) = (O::work(fixed, call), &hardware.rates);
    rates.launch_s + (work.bytes / rates.read_bytes_per_s).max(work.flops / rates.f32_flops_per_s)
}

/// No scratch: a kernel's vectors are its own affair.
fn no_workspace<O: Operator>(_: &O::Static, _: &O::Dynamic, _: &Hardware) -> usize {
    0
}
