//! Top-k against its reference.

mod support;

use sinew_kernels::topk;

#[test]
fn topk_rows_obey_their_reference() {
    let reports = support::verify(topk::rows());
    support::was_compared(&reports, "topk.cpu.avx2");
    support::was_compared(&reports, "topk.cpu.avx512");
}
