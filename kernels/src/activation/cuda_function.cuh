// Activations, in f32.

// In the order of `Activation`.
enum class Activation : u32 { Silu, Gelu, GeluTanh, QuickGelu, Relu, Relu2, SwigluOai };

constexpr float SWIGLU_LIMIT = 7.0f;

// x / (1 + e^minus): minus infinity over infinity is NaN, as infinity times 0 in PyTorch.
DEVICE float times_sigmoid(float x, float minus) { return x / (1.0f + expf(minus)); }

DEVICE float activate(Activation activation, float x) {
    switch (activation) {
        case Activation::Silu: return times_sigmoid(x, -x);
        case Activation::Gelu: {
            // Each of the two has its digits where the other cancels.
            const float z = x * 0.70710678f;
            return x * (x > -0.5f ? 0.5f + 0.5f * erff(z) : 0.5f * erfcf(-z));
        }
        case Activation::GeluTanh: {
            // (1 + tanh u) / 2 = σ(2u), which does not cancel where u is negative.
            const float scale = -2.0f * 0.7978846f;
            return times_sigmoid(x, x * fmaf(x * x, scale * 0.044715f, scale));
        }
        case Activation::QuickGelu: return times_sigmoid(x, -1.702f * x);
        // A NaN is not below 0, and stays.
        case Activation::Relu: return x < 0.0f ? 0.0f : x;
        case Activation::Relu2: {
            const float positive = x < 0.0f ? 0.0f : x;
            return positive * positive;
        }
        default: {
            const float within = x > SWIGLU_LIMIT ? SWIGLU_LIMIT : x;
            return times_sigmoid(within, -1.702f * within);
        }
    }
}

// What the activation of a gate is multiplied with: the up, unless the activation makes something else of it.
DEVICE float factor(Activation activation, float up) {
    if (activation != Activation::SwigluOai) return up;
    const float below = up > SWIGLU_LIMIT ? SWIGLU_LIMIT : up;
    return (below < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : below) + 1.0f;
}
