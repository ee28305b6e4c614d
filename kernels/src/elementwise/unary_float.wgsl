fn square_root(x: f32) -> f32 {
    let number = scaled(x);
    if (number.exponent == 0) {
        return sqrt(x);
    }
    // The exponent made even.
    return sqrt(2.0 * number.value) * power_of_two(-75);
}

fn reciprocal(x: f32) -> f32 {
    let number = scaled(x);
    if (number.exponent == 0) {
        return 1.0 / x;
    }
    return 1.0 / number.value * power_of_two(75) * power_of_two(74);
}

// Numbers below 1 that may count as 0 and are not.
fn is_subnormal(x: f32) -> bool {
    return scaled(x).exponent != 0;
}

const TWO_OVER_PI = array(
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u
);

// The quadrant that an angle is nearest to and its distance from there. The angle, a whole number of 24 bits times a
// power of two, is multiplied with those 96 bits of 2/pi that count modulo 4 (Payne and Hanek 1983).
struct Turned {
    quadrant: u32,
    rest: f32,
}

fn turned(x: f32) -> Turned {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    // Below a quarter of pi.
    if (magnitude < 0x3f490fdbu) {
        return Turned(0u, x);
    }
    if (magnitude >= 0x7f800000u) {
        return Turned(0u, bitcast<f32>(magnitude | 0x7fc00000u));
    }
    let whole = (bits & 0x7fffffu) | 0x800000u;
    let skip = (magnitude >> 23u) - 120u;
    var words = TWO_OVER_PI;
    var window = vec3(0u);
    let at = skip >> 5u;
    let shift = skip & 31u;
    for (var i = 0u; i < 3u; i += 1u) {
        // A shift of 32 would be one of 0.
        window[i] = (words[at + i] << shift) | ((words[at + i + 1u] >> 1u) >> (31u - shift));
    }
    let low = wide(whole, window.z);
    let middle = wide(whole, window.y);
    let carried = add(vec2(low.x, middle.x), vec2(0u, low.y));
    let overflow = select(0u, 1u, carried.y < middle.x);
    let high = whole * window.x + middle.y + overflow;
    var quadrant = high >> 30u;
    var rest = vec2((carried.y << 2u) | (carried.x >> 30u), (high << 2u) | (carried.y >> 30u));
    let is_beyond = is_negative(rest);
    if (is_beyond) {
        quadrant += 1u;
        rest = negated(rest);
    }
    // A product of integers, so that the distance is rounded once.
    let zeros = select(countLeadingZeros(rest.y), 32u + countLeadingZeros(rest.x), rest.y == 0u);
    var top = rest.x << (zeros & 31u);
    if (zeros < 32u) {
        top = (rest.y << zeros) | ((rest.x >> 1u) >> (31u - zeros));
    }
    let distance = f32(wide(top, 0xc90fdaa2u).y) * power_of_two(-31 - i32(zeros));
    if (bits >> 31u == 1u) {
        return Turned(0u - quadrant, select(-distance, distance, is_beyond));
    }
    return Turned(quadrant, select(distance, -distance, is_beyond));
}

// The sine of an angle and so many quadrants.
fn sine(x: f32, quadrants: u32) -> f32 {
    let angle = turned(x);
    let r = angle.rest;
    let z = r * r;
    let quadrant = angle.quadrant + quadrants;
    var s = fma(z, fma(z, fma(z, 1.0 / 362880.0, -1.0 / 5040.0), 1.0 / 120.0), -1.0 / 6.0);
    s = fma(r * z, s, r);
    var c = fma(z, fma(z, fma(z, -1.0 / 3628800.0, 1.0 / 40320.0), -1.0 / 720.0), 1.0 / 24.0);
    let half = 0.5 * z;
    let near = 1.0 - half;
    c = near + (((1.0 - near) - half) + z * z * c);
    let y = select(s, c, (quadrant & 1u) == 1u);
    return select(y, -y, (quadrant & 2u) == 2u);
}

// In the order in which UnaryFunction names them.
fn function(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    switch FUNCTION {
        case 0u: {
            return bitcast<f32>(bits ^ 0x80000000u);
        }
        case 1u: {
            return bitcast<f32>(bits & 0x7fffffffu);
        }
        case 2u: {
            if (is_nan(x) || (bits & 0x7fffffffu) == 0u) {
                return x;
            }
            return select(1.0, -1.0, bits >> 31u == 1u);
        }
        case 3u: {
            return x * x;
        }
        case 4u: {
            return square_root(x);
        }
        case 5u: {
            return 1.0 / square_root(x);
        }
        case 6u: {
            return reciprocal(x);
        }
        case 7u: {
            return exponential(x);
        }
        case 8u: {
            return logarithm(x);
        }
        case 9u: {
            return sine(x, 0u);
        }
        case 10u: {
            return sine(x, 1u);
        }
        case 11u: {
            return hyperbolic_tangent(x);
        }
        case 12u: {
            return select(floor(x), -1.0, is_subnormal(x) && bits >> 31u == 1u);
        }
        case 13u: {
            return select(ceil(x), 1.0, is_subnormal(x) && bits >> 31u == 0u);
        }
        default: {
            return round(x);
        }
    }
}
