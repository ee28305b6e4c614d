// Elementary functions: drivers' own may be off by thousands of units in the last place. Nothing here relies on a fused
// fma, on subnormals, or on what a comparison says of NaN. The polynomials are those of simd/math.rs.

fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

// e^x, 0 below about -87.3, infinity above about 88.7, NaN for NaN.
fn exponential(x: f32) -> f32 {
    let within = clamp(x, -87.33654, 88.8);
    let n = round(within * 1.442695);
    // ln 2 in two parts, the first of so few bits that its product is exact.
    let r = fma(n, 2.1219444e-4, fma(n, -0.693359375, within));
    var e = 1.0 / 5040.0;
    e = fma(e, r, 1.0 / 720.0);
    e = fma(e, r, 1.0 / 120.0);
    e = fma(e, r, 1.0 / 24.0);
    e = fma(e, r, 1.0 / 6.0);
    e = fma(e, r, 0.5);
    e = fma(e, r, 1.0);
    e = fma(e, r, 1.0);
    // 2^128 is no f32, two halves of it are.
    let whole = i32(n);
    e = e * power_of_two(whole / 2) * power_of_two(whole - whole / 2);
    e = select(e, 0.0, x < -87.33654);
    return select(e, x, is_nan(x));
}

// A number and the power of two that it is to be multiplied with, which is 0 where the number is normal: subnormals
// come out as the integers that they are multiples of.
struct Scaled {
    value: f32,
    exponent: i32,
}

fn scaled(x: f32) -> Scaled {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    if (magnitude == 0u || magnitude >= 0x00800000u) {
        return Scaled(x, 0);
    }
    let value = f32(magnitude);
    return Scaled(select(value, -value, bits >> 31u == 1u), -149);
}

// ln x = k ln 2 + ln(1 + f) with 1 + f between the roots of 1/2 and 2; ln(1 + f) is twice the series of artanh(f / (2 +
// f)), in a form whose first term is exact.
fn logarithm(x: f32) -> f32 {
    let number = scaled(x);
    let bits = bitcast<u32>(number.value);
    let magnitude = bits & 0x7fffffffu;
    if (magnitude == 0u) {
        // Minus infinity, which no constant may be.
        return bitcast<f32>(magnitude | 0xff800000u);
    }
    if (bits > 0x7f800000u) {
        return bitcast<f32>(bits | 0x7fc00000u);
    }
    if (bits == 0x7f800000u) {
        return x;
    }
    let up = select(0u, 1u, (bits & 0x7fffffu) > 0x3504f3u);
    let k = f32(i32((bits >> 23u) + up) - 127 + number.exponent);
    let f = bitcast<f32>((bits & 0x7fffffu) | ((127u - up) << 23u)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let series = 2.0 * z * fma(z, fma(z, fma(z, fma(z, 1.0 / 11.0, 1.0 / 9.0), 1.0 / 7.0), 1.0 / 5.0), 1.0 / 3.0);
    return fma(k, 0.693359375, f - fma(s, f - series, k * 2.1219444e-4));
}

// tanh x: x + x^3 P(x^2) where the rest would cancel.
fn hyperbolic_tangent(x: f32) -> f32 {
    let a = abs(x);
    let z = x * x;
    var near = -0.005704987;
    near = fma(near, z, 0.020639088);
    near = fma(near, z, -0.053739715);
    near = fma(near, z, 0.13331442);
    near = fma(near, z, -0.33333282);
    near = fma(x * z, near, x);
    // From 10 on it is 1.
    let far = 1.0 - 2.0 / (exponential(2.0 * min(a, 10.0)) + 1.0);
    let y = select(select(far, -far, x < 0.0), near, a < 0.625);
    return select(y, x, is_nan(x));
}

// The normal distribution's P(X <= x) without cancellation on either side: e^t^2 erfc t by a polynomial in (t - 3) / (t +
// 3) after Shepherd and Laframboise 1981.
fn normal_cdf(x: f32) -> f32 {
    let a = min(abs(x), 14.142136);
    let t = a * 0.70710678;
    let s = 1.0 / (t + 3.0);
    let q = (t - 3.0) * s;
    var e = -0.00032657728;
    e = fma(e, q, -0.00048558057);
    e = fma(e, q, 0.0030797909);
    e = fma(e, q, -0.0012252124);
    e = fma(e, q, -0.026839348);
    e = fma(e, q, 0.11952887);
    e = fma(e, q, -0.31046608);
    e = fma(e, q, 0.5902283);
    e = fma(e, q, -0.8833945);
    e = fma(e, q, 1.0740069);
    let tail = exponential(-0.5 * a * a) * 0.5 * e * s;
    return select(1.0 - tail, tail, x < 0.0);
}
