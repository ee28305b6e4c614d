alias Operand = vec2<u32>;

// In the order in which BinaryFunction names them.
fn function(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    switch FUNCTION {
        case 0u: {
            return add(a, b);
        }
        case 1u: {
            return add(a, negated(b));
        }
        case 2u: {
            return multiplied(a, b);
        }
        case 4u: {
            return select(a, b, is_less(a, b));
        }
        case 5u: {
            return select(a, b, is_less(b, a));
        }
        case 7u: {
            return truth(all(a == b));
        }
        case 8u: {
            return truth(any(a != b));
        }
        case 9u: {
            return truth(is_less(a, b));
        }
        case 10u: {
            return truth(!is_less(b, a));
        }
        case 11u: {
            return truth(is_less(b, a));
        }
        default: {
            return truth(!is_less(a, b));
        }
    }
}

fn scalar() -> vec2<u32> {
    return vec2(p.scalar, p.scalar_high);
}
