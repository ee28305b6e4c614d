// x / (1 + e^minus).
fn times_sigmoid(x: f32, minus: f32) -> f32 {
    return x / (1.0 + exponential(minus));
}

const SWIGLU_LIMIT = 7.0;

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
        case 6u: {
            let within = select(min(x, SWIGLU_LIMIT), x, is_nan(x));
            return times_sigmoid(within, -1.702 * within);
        }
        default: {
            let positive = select(0.0, x, x > 0.0 || is_nan(x));
            return select(positive, positive * positive, ACTIVATION == 5u);
        }
    }
}

// What the activation of a gate is multiplied with: the up, unless the activation makes something else of it.
fn factor(up: f32) -> f32 {
    if (ACTIVATION == 6u) {
        return select(clamp(up, -SWIGLU_LIMIT, SWIGLU_LIMIT), up, is_nan(up)) + 1.0;
    }
    return up;
}
