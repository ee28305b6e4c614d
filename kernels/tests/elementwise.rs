//! Elementwise rows against their references.

mod support;

use sinew_kernels::elementwise;

#[test]
fn unary_rows_obey_their_references() {
    let reports = support::verify(elementwise::unary_rows());
    support::was_compared(&reports, "unary.cpu.avx512");
}

#[test]
fn binary_rows_obey_their_references() {
    let reports = support::verify(elementwise::binary_rows());
    support::was_compared(&reports, "binary.cpu.avx512");
}

#[test]
fn selection_moves_every_dtype_as_it_is() {
    support::verify(elementwise::where_rows());
}
