// Floats as integers of the same order, so that no driver's idea of NaN, zeros or subnormals decides what is larger.

const KEY_OF_NAN: u32 = 0xffffffffu;
const KEY_OF_INFINITY: u32 = 0xff800000u;
const KEY_OF_MINUS_INFINITY: u32 = 0x007fffffu;

// The two zeros are one, and NaN is above all.
fn key_of(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    if (is_nan(v)) {
        return KEY_OF_NAN;
    }
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn value_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, key >> 31u == 1u));
}
