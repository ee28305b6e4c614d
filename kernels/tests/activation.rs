//! Activation rows against their reference.

mod support;

use sinew_kernels::activation::{self, Activation};

#[test]
fn activation_rows_obey_their_reference() {
    let reports = support::verify(activation::rows());
    support::was_compared(&reports, "activation.cpu.avx512");
}

#[test]
fn activations_are_read_by_the_names_of_configuration_files() {
    let names = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("quick_gelu", Activation::QuickGelu),
        ("relu", Activation::Relu),
        ("relu2", Activation::Relu2),
    ];
    for (name, activation) in names {
        assert_eq!(name.parse::<Activation>().ok(), Some(activation));
    }
    for activation in Activation::ALL {
        assert_eq!(activation.name().parse::<Activation>().ok(), Some(activation));
    }
    let error = "tanhshrink".parse::<Activation>().expect_err("unknown").to_string();
    assert!(error.contains("tanhshrink") && error.contains("quick_gelu"), "{error}");
}
