// y = act(x), or act(gate) · factor(up), in f32.

struct ActivationParams {
    Strided<3> operands;  // y, gate, up
    Activation activation;
    u32 gated;
};

SINEW_KERNEL(activation, ActivationParams) {
    const Activation function = p.activation;
    const bool gated = p.gated != 0;
    map(p.operands, [=](const float* x) {
        const float y = activate(function, x[0]);
        return gated ? y * factor(function, x[1]) : y;
    });
}
