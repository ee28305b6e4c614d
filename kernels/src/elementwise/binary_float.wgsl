alias Operand = f32;

fn quotient(a: f32, b: f32) -> f32 {
    let above = scaled(a);
    let below = scaled(b);
    if (below.exponent == 0) {
        return above.value / below.value * power_of_two(above.exponent / 2) * power_of_two(above.exponent - above.exponent / 2);
    }
    if (above.exponent != 0) {
        return above.value / below.value;
    }
    // 2^149 is no f32.
    return a * power_of_two(75) / below.value * power_of_two(74);
}

// In the order in which BinaryFunction names them.
fn function(a: f32, b: f32) -> f32 {
    switch FUNCTION {
        case 0u: {
            return a + b;
        }
        case 1u: {
            return a - b;
        }
        case 2u: {
            return a * b;
        }
        case 3u: {
            return quotient(a, b);
        }
        case 4u: {
            // NaN is above all.
            return select(b, a, key_of(a) >= key_of(b));
        }
        default: {
            return select(b, a, is_nan(a) || (!is_nan(b) && key_of(a) <= key_of(b)));
        }
    }
}

fn scalar() -> f32 {
    return bitcast<f32>(p.scalar);
}
