alias Operand = f32;

// In the order in which BinaryFunction names them, from 7 on.
fn function(a: f32, b: f32) -> vec2<u32> {
    let is_ordered = !is_nan(a) && !is_nan(b);
    let left = key_of(a);
    let right = key_of(b);
    var yes = false;
    switch FUNCTION {
        case 7u: {
            yes = is_ordered && left == right;
        }
        case 8u: {
            yes = !is_ordered || left != right;
        }
        case 9u: {
            yes = is_ordered && left < right;
        }
        case 10u: {
            yes = is_ordered && left <= right;
        }
        case 11u: {
            yes = is_ordered && left > right;
        }
        default: {
            yes = is_ordered && left >= right;
        }
    }
    return vec2(select(0u, 1u, yes), 0u);
}

fn scalar() -> f32 {
    return bitcast<f32>(p.scalar);
}
