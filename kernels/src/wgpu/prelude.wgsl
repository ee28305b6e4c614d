// Conversions between words and values, exact and to nearest even by hand: drivers may round and flush as they like.

fn linear(group: vec3<u32>) -> u32 {
    return group.y * p.groups + group.x;
}

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

fn f32_of_bf16(bits: u32) -> f32 {
    return bitcast<f32>(bits << 16u);
}

fn f32_of_f16(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}

fn f32_of_f8e5m2(bits: u32) -> f32 {
    return unpack2x16float(bits << 8u).x;
}

fn f32_of_f8e4m3(bits: u32) -> f32 {
    let exponent = (bits >> 3u) & 15u;
    let mantissa = bits & 7u;
    var magnitude = bitcast<u32>(f32(mantissa) * 0.001953125);
    if ((bits & 0x7fu) == 0x7fu) {
        magnitude = 0x7fc00000u;
    } else if (exponent > 0u) {
        magnitude = ((exponent + 120u) << 23u) | (mantissa << 20u);
    }
    return bitcast<f32>(magnitude | ((bits & 0x80u) << 24u));
}

fn bf16_of_f32(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    if (is_nan(v)) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// A magnitude as a float of so many mantissa bits, whose smallest normal number is 2^lowest. Numbers beyond the largest
// carry into the exponents that the format has no room for.
fn narrowed(magnitude: u32, mantissa_bits: u32, lowest: i32) -> u32 {
    let exponent = i32(magnitude >> 23u) - 127;
    let below = u32(max(lowest - exponent, 0));
    let shift = min(23u - mantissa_bits + below, 31u);
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = rest > half || (rest == half && (kept & 1u) == 1u);
    return (u32(max(exponent - lowest, 0)) << mantissa_bits) + kept + select(0u, 1u, up);
}

fn f16_of_f32(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits >> 16u) & 0x8000u;
    if (is_nan(v)) {
        return sign | 0x7e00u;
    }
    return sign | min(narrowed(bits & 0x7fffffffu, 10u, -14), 0x7c00u);
}

fn f8e5m2_of_f32(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits >> 24u) & 0x80u;
    if (is_nan(v)) {
        return sign | 0x7fu;
    }
    return sign | min(narrowed(bits & 0x7fffffffu, 2u, -14), 0x7cu);
}

// There is no infinity: what is too large is NaN.
fn f8e4m3_of_f32(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return ((bits >> 24u) & 0x80u) | min(narrowed(bits & 0x7fffffffu, 3u, -6), 0x7fu);
}
