//! What a device can do, as it is measured and kept.

use sinew_kernels::rates::Description;
use sinew_memory::{Cpu, PrivateFolder, SimdLevel};

#[test]
fn what_was_kept_is_not_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = PrivateFolder::at(folder.path());
    let device = Cpu::with(1, SimdLevel::Portable).unwrap();
    let measured = Description::of(&device, &folder).unwrap();
    assert_eq!(measured.bandwidth.len(), 1);
    // No two measurements are the same in all digits.
    assert_eq!(Description::of(&device, &folder).unwrap(), measured);
}
