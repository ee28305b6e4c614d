//! Gathers against their reference.

mod support;

use sinew_kernels::gather;

#[test]
fn gather_rows_obey_their_reference() {
    support::verify(gather::rows());
}
