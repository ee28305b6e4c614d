// What the kernels share: operands in fours, rounded as the problem says, and what follows the sum.
//
// Where the product is gated (GATED = 1), outputs 2j and 2j + 1 are the gate and the up of column j. Columns and
// outputs are counted from the first one of the dispatch on.

fn rounded(v: vec4<f32>) -> vec4<f32> {
    let bits = vec4(bf16_of_f32(v.x), bf16_of_f32(v.y), bf16_of_f32(v.z), bf16_of_f32(v.w));
    return vec4(f32_of_bf16(bits.x), f32_of_bf16(bits.y), f32_of_bf16(bits.z), f32_of_bf16(bits.w));
}

// Numbers from `i` on that are below `end`.
fn left_of(i: u32, end: u32) -> u32 {
    return end - min(i, end);
}

// The first `count` of four values that are `step` apart, and zeros.
fn four_a(at: u32, step: u32, count: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (step == 1u && count >= 4u) {
        v = load4_a(at);
    } else {
        for (var i = 0u; i < min(count, 4u); i += 1u) {
            v[i] = load_a(at + i * step);
        }
    }
    if (ROUND_A == 1u) {
        v = rounded(v);
    }
    return v;
}

fn four_b(at: u32, step: u32, count: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (step == 1u && count >= 4u) {
        v = load4_b(at);
    } else {
        for (var i = 0u; i < min(count, 4u); i += 1u) {
            v[i] = load_b(at + i * step);
        }
    }
    if (ROUND_B == 1u) {
        v = rounded(v);
    }
    return v;
}

fn b_at(batch: u32, output: u32) -> u32 {
    return batch * p.b_batch + (output >> GATED) * p.b_column + (output & GATED) * p.b_half;
}

fn d_at(batch: u32, row: u32, column: u32) -> u32 {
    return batch * p.d_batch + row * p.d_row + column * p.d_step;
}

// Every rounding is an explicit one, so that kernels whose sums are the same give the same results.
fn with_bias(sum: f32, batch: u32, output: u32) -> f32 {
    if (HAS_BIAS) {
        return fma(sum, bitcast<f32>(p.alpha), load_bias(batch * p.bias_batch + output * p.bias_step));
    }
    return sum * bitcast<f32>(p.alpha);
}

fn finished(batch: u32, row: u32, column: u32, sum: f32, up: f32) -> f32 {
    let output = p.first + column;
    var x = with_bias(sum, batch, output);
    if (HAS_ACTIVATION == 1u) {
        x = activation(x);
    }
    if (GATED == 1u) {
        x *= factor(with_bias(up, batch, p.columns + output));
    }
    if (HAS_RESIDUAL) {
        let residual = load_residual(batch * p.residual_batch + row * p.residual_row + column * p.residual_step);
        x = fma(bitcast<f32>(p.beta), residual, x);
    }
    if (IN_PLACE == 1u) {
        x = fma(bitcast<f32>(p.beta), load_d(d_at(batch, row, column)), x);
    }
    return x;
}
