//! Norm rows against their reference.

mod support;

use sinew_kernels::norm;

#[test]
fn norm_rows_obey_their_reference() {
    let reports = support::verify(norm::rows());
    support::was_compared(&reports, "norm.cpu.avx512");
}
