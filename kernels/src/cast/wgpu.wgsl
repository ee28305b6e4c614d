// Any dtype to any, but for computing in 64-bit floats. Values pass as words: floats as the bits of an f32, integers in
// 64 bits of two's complement, low word first.

// As in `DType`.
const F32 = 1u;
const F16 = 2u;
const BF16 = 3u;
const F8E4M3 = 4u;
const F8E5M2 = 5u;
const I64 = 6u;
const I32 = 7u;
const I16 = 8u;
const I8 = 9u;
const U32 = 10u;
const U8 = 11u;
const BOOL = 12u;

const FROM_FLOAT: bool = INPUT <= F8E5M2;
const TO_FLOAT: bool = OUTPUT <= F8E5M2;

fn negated(v: vec2<u32>) -> vec2<u32> {
    let low = ~v.x + 1u;
    return vec2(low, ~v.y + select(0u, 1u, low == 0u));
}

// The bits of an f32.
fn widened(bits: u32) -> u32 {
    switch INPUT {
        case F16: { return bitcast<u32>(f32_of_f16(bits)); }
        case BF16: { return bits << 16u; }
        case F8E4M3: { return bitcast<u32>(f32_of_f8e4m3(bits)); }
        case F8E5M2: { return bitcast<u32>(f32_of_f8e5m2(bits)); }
        default: { return bits; }
    }
}

fn rounded(bits: u32) -> u32 {
    let v = bitcast<f32>(bits);
    switch OUTPUT {
        case F16: { return f16_of_f32(v); }
        case BF16: { return bf16_of_f32(v); }
        case F8E4M3: { return f8e4m3_of_f32(v); }
        case F8E5M2: { return f8e5m2_of_f32(v); }
        default: { return bits; }
    }
}

fn extended(bits: vec2<u32>) -> vec2<u32> {
    switch INPUT {
        case I32: { return vec2(bits.x, select(0u, ~0u, bits.x >> 31u == 1u)); }
        case I16: { return select(bits, vec2(bits.x | 0xffff0000u, ~0u), vec2(bits.x >> 15u == 1u)); }
        case I8: { return select(bits, vec2(bits.x | 0xffffff00u, ~0u), vec2(bits.x >> 7u == 1u)); }
        default: { return bits; }
    }
}

// An integer as an f32: to nearest even where that is the result, else with every bit that is lost in the last place,
// so that the rounding to come is the only one.
fn float_of(v: vec2<u32>) -> u32 {
    let negative = v.y >> 31u == 1u && (INPUT == I64 || INPUT == I32 || INPUT == I16 || INPUT == I8);
    var m = v;
    if (negative) {
        m = negated(v);
    }
    if (m.x == 0u && m.y == 0u) {
        return 0u;
    }
    // The highest bit goes to bit 31 of the high word.
    var exponent = 190u;
    if (m.y == 0u) {
        m = vec2(0u, m.x);
        exponent -= 32u;
    }
    let zeros = countLeadingZeros(m.y);
    if (zeros > 0u) {
        m = vec2(m.x << zeros, (m.y << zeros) | (m.x >> (32u - zeros)));
    }
    exponent -= zeros;
    // 24 bits stay; bit 7 of the high word is worth half of the last.
    let lost = (m.y & 0x7fu) | m.x;
    var bits = (exponent << 23u) + ((m.y >> 8u) & 0x7fffffu);
    let half = (m.y >> 7u) & 1u;
    if (OUTPUT == F32) {
        bits += half & (select(0u, 1u, lost != 0u) | bits);
    } else if (half == 1u || lost != 0u) {
        bits |= 1u;
    }
    return bits | select(0u, 0x80000000u, negative);
}

// A float as an integer: truncated, the nearest where it does not fit, 0 for NaN.
fn integer_of(bits: u32) -> vec2<u32> {
    let negative = bits >> 31u == 1u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u || magnitude < 0x3f800000u) {
        return vec2(0u);
    }
    let power = (magnitude >> 23u) - 127u;
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    // The largest and the smallest of the output's.
    var high = vec2(0xffffffffu, 0x7fffffffu);
    var low = vec2(0u, 0x80000000u);
    switch OUTPUT {
        case I32: { high = vec2(0x7fffffffu, 0u); low = vec2(0x80000000u, ~0u); }
        case I16: { high = vec2(0x7fffu, 0u); low = vec2(0xffff8000u, ~0u); }
        case I8: { high = vec2(0x7fu, 0u); low = vec2(0xffffff80u, ~0u); }
        case U32: { high = vec2(~0u, 0u); low = vec2(0u); }
        case U8: { high = vec2(0xffu, 0u); low = vec2(0u); }
        default: {}
    }
    let limit = select(high, low, negative);
    if (power >= 63u) {
        return limit;
    }
    var whole = vec2(0u);
    if (power < 24u) {
        whole.x = mantissa >> (23u - power);
    } else {
        let left = power - 23u;
        if (left >= 32u) {
            whole.y = mantissa << (left - 32u);
        } else {
            whole = vec2(mantissa << left, mantissa >> (32u - left));
        }
    }
    // As magnitudes: what is beyond the limit gives the limit.
    var most = limit;
    if (negative) {
        most = negated(limit);
    }
    if (whole.y > most.y || (whole.y == most.y && whole.x > most.x)) {
        return limit;
    }
    if (negative) {
        return negated(whole);
    }
    return whole;
}

fn converted(bits: vec2<u32>) -> vec2<u32> {
    if (INPUT == OUTPUT) {
        return bits;
    }
    if (OUTPUT == BOOL) {
        if (FROM_FLOAT) {
            return vec2(select(0u, 1u, (widened(bits.x) & 0x7fffffffu) != 0u), 0u);
        }
        return vec2(select(0u, 1u, (bits.x | bits.y) != 0u), 0u);
    }
    if (FROM_FLOAT) {
        let v = widened(bits.x);
        if (TO_FLOAT) {
            return vec2(rounded(v), 0u);
        }
        return integer_of(v);
    }
    if (TO_FLOAT) {
        return vec2(rounded(float_of(extended(bits))), 0u);
    }
    return extended(bits);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear(group) * 64u + lane;
    if (i < p.count) {
        put_y(at_y(i), converted(bits_x(at_x(i))));
    }
}
