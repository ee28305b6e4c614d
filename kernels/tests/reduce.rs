//! Reductions against their reference.

mod support;

use sinew_kernels::reduce;

#[test]
fn reduce_rows_obey_their_reference() {
    let reports = support::verify(reduce::rows());
    support::was_compared(&reports, "reduce.cpu.avx2");
    support::was_compared(&reports, "reduce.cpu.avx512");
}
