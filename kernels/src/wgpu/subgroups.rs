//! The subgroups of a device: threads that exchange values without memory.

use sinew_memory::{Accelerator, Hardware};

use crate::operator::Refusal;

/// Threads of a device's smallest subgroups; `None` without subgroups, or with such that are of no use.
pub(crate) fn least_subgroup(offers: &Accelerator) -> Option<usize> {
    offers.subgroup_size.map(|(least, _)| least).filter(|least| *least >= 4 && least.is_power_of_two())
}

/// Refuses a device without subgroups.
pub(crate) fn needs_subgroups(hardware: &Hardware) -> Result<(), Refusal> {
    match hardware.accelerator.as_ref().and_then(least_subgroup) {
        Some(_) => Ok(()),
        None => Err(Refusal::of_hardware("needs subgroups of at least 4 threads, which the adapter does not offer")),
    }
}
