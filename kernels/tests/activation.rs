//! Activations by name.

use sinew_kernels::activation::Activation;

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
        ("swigluoai", Activation::SwigluOai),
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
