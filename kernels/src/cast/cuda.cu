// Conversions, and strided copies.

struct CastParams {
    Strided<2> operands;  // y, x
    // Bytes of an element that is copied.
    u32 size;
    u32 padding;
};

// An 8-bit float with MANTISSA bits behind the point and the exponent's bias BIAS; `largest` is the code from which on
// everything is the same. To nearest, ties to even.
template <u32 MANTISSA, i32 BIAS> DEVICE u8 narrow_f8(float x, u32 largest, u32 nan) {
    const u32 sign = bits_of(x) >> 24 & 0x80u;
    const u32 bits = bits_of(x) & 0x7fffffffu;
    if (bits > 0x7f800000u) return u8(sign | nan);
    if (bits == 0x7f800000u) return u8(sign | largest);
    const i32 exponent = max(i32(bits >> 23) - 127, 1 - BIAS);
    // In units of the last place, a product that is exact.
    const u32 units = u32(rintf(float_of(bits) * float_of(u32(127 + i32(MANTISSA) - exponent) << 23)));
    const u32 code = (u32(exponent - (1 - BIAS)) << MANTISSA) + units;
    return u8(sign | min(code, largest));
}

// Overflow: 448 is the last number of e4m3, and what is nearer to 480 is NaN; e5m2 has infinity.
DEVICE u8 narrow_e4m3(float x) { return narrow_f8<3, 7>(x, 0x7f, 0x7f); }
DEVICE u8 narrow_e5m2(float x) { return narrow_f8<2, 15>(x, 0x7c, 0x7f); }

DEVICE float widen_e4m3(u8 x) {
    const u32 sign = u32(x & 0x80u) << 24, exponent = x >> 3 & 15u, mantissa = x & 7u;
    if ((x & 0x7fu) == 0x7fu) return float_of(sign | 0x7fc00000u);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(mantissa) * 0.001953125f;
    return float_of(sign | (exponent + 120u) << 23 | mantissa << 20);
}
DEVICE float widen_e5m2(u8 x) { return widen_f16(u16(x) << 8); }

// As f32, truncated, with the last bit set where anything was lost: rounding that to fewer bits gives what rounding once
// would (Boldo and Melquiond 2008).
DEVICE float to_odd(double x) {
    const float near = float(x);
    if (double(near) == x || x != x || fabsf(near) == INFINITY) return near;
    const u32 away = fabs(double(near)) > fabs(x);
    return float_of((bits_of(near) - away) | 1u);
}

// Truncated and saturated; NaN gives 0. `high` is the first number that is too large.
DEVICE i64 truncate(double x, double low, double high, i64 least, i64 most) {
    if (x != x) return 0;
    return x <= low ? least : x >= high ? most : i64(x);
}

DEVICE double load_float(Ptr base, u32 type, i64 index) {
    switch (type) {
        case F64: return *at<double>(base, index);
        case F8E4M3: return widen_e4m3(*at<u8>(base, index));
        case F8E5M2: return widen_e5m2(*at<u8>(base, index));
        default: return load(base, type, index);
    }
}

DEVICE void store_float(Ptr base, u32 type, i64 index, double x) {
    switch (type) {
        case F64: *at_mut<double>(base, index) = x; break;
        case F32: *at_mut<float>(base, index) = float(x); break;
        case F8E4M3: *at_mut<u8>(base, index) = narrow_e4m3(to_odd(x)); break;
        case F8E5M2: *at_mut<u8>(base, index) = narrow_e5m2(to_odd(x)); break;
        default: store(base, type, index, to_odd(x));
    }
}

DEVICE bool is_float(u32 type) { return type <= F64 || type >= F8E4M3; }

DEVICE void convert(const Strided<2>& operands, const i64 at[2]) {
    const Ptr y = operands.pointers[0], x = operands.pointers[1];
    const u32 to = operands.types[0], from = operands.types[1];
    if (is_float(from)) {
        const double value = load_float(x, from, at[1]);
        switch (to) {
            case BOOL: store_index(y, to, at[0], value != 0.0); break;
            case I64: {
                const i64 least = i64(1ull << 63);
                store_index(y, to, at[0], truncate(value, -0x1p63, 0x1p63, least, ~least));
                break;
            }
            case I32: store_index(y, to, at[0], truncate(value, -0x1p31, 0x1p31, -0x80000000ll, 0x7fffffff)); break;
            case I16: store_index(y, to, at[0], truncate(value, -0x1p15, 0x1p15, -0x8000, 0x7fff)); break;
            case I8: store_index(y, to, at[0], truncate(value, -128.0, 128.0, -128, 127)); break;
            case U32: store_index(y, to, at[0], truncate(value, 0.0, 0x1p32, 0, 0xffffffffll)); break;
            case U8: store_index(y, to, at[0], truncate(value, 0.0, 256.0, 0, 255)); break;
            default: store_float(y, to, at[0], value);
        }
        return;
    }
    i64 value = load_index(x, from, at[1]);
    if (from == BOOL) value = value != 0;
    // By way of f64, which rounds what lies beyond 2^53 once more, all but f32 itself.
    if (to == F32) *at_mut<float>(y, at[0]) = float(value);
    else if (is_float(to)) store_float(y, to, at[0], double(value));
    else store_index(y, to, at[0], value);
}

// Among f32, f16 and bf16.
SINEW_KERNEL(cast_nearest, CastParams) {
    map(p.operands, [](const float* x) { return x[0]; });
}

SINEW_KERNEL(cast_wide, CastParams) {
    each(p.operands, [&](const i64* at) { convert(p.operands, at); });
}

SINEW_KERNEL(cast_copy, CastParams) {
    each(p.operands, [&](const i64* at) {
        copy_element(p.operands.pointers[0], at[0], p.operands.pointers[1], at[1], p.size);
    });
}
