// In the order in which UnaryFunction names them.
fn function(x: vec2<u32>) -> vec2<u32> {
    let is_zero = all(x == vec2(0u));
    switch FUNCTION {
        case 0u: {
            return negated(x);
        }
        case 1u: {
            return select(x, negated(x), is_negative(x));
        }
        case 2u: {
            return select(truth(!is_zero), vec2(0xffffffffu), is_negative(x));
        }
        case 3u: {
            return multiplied(x, x);
        }
        default: {
            return truth(is_zero);
        }
    }
}
