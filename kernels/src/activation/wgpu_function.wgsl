// x / (1 + e^minus).
fn times_sigmoid(x: f32, minus: f32) -> f32 {
    return x / (1.0 + exponential(minus));
}

// In the order in which Activation names them.
fn activation(x: f32) -> f32 {
    switch ACTIVATION {
        case 0u: {
            return times_sigmoid(x, -x);
        }
        case 1u: {
            return x * normal_cdf(x);
        }
        case 2u: {
            // (1 + tanh u) / 2 is the sigmoid of 2u, which does not cancel where u is negative.
            const SCALE = 2.0 * 0.7978846;
            return times_sigmoid(x, x * fma(x * x, -SCALE * 0.044715, -SCALE));
        }
        case 3u: {
            return times_sigmoid(x, -1.702 * x);
        }
        default: {
            let positive = select(0.0, x, x > 0.0 || is_nan(x));
            return select(positive, positive * positive, ACTIVATION == 5u);
        }
    }
}
