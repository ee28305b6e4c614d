//! Every row of embedding against its reference, at every SIMD level of this machine.

mod support;

use sinew_kernels::embedding;

#[test]
fn every_row_agrees_with_the_reference_at_every_level() {
    let reports = support::verify(embedding::rows());
    support::was_compared(&reports, "embedding.cpu.avx512");
}
