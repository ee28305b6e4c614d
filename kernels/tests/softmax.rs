//! Softmax rows against their reference.

mod support;

use sinew_kernels::softmax;

#[test]
fn softmax_rows_obey_their_reference() {
    let reports = support::verify(softmax::rows());
    support::was_compared(&reports, "softmax.cpu.avx512");
}
