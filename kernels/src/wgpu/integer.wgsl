// Integers of 64 bits as two words, the low one first; those of fewer bits are carried on to as many.

fn add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn negated(a: vec2<u32>) -> vec2<u32> {
    return add(~a, vec2(1u, 0u));
}

// The whole product of two words.
fn wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let middle = ah * bl + (low >> 16u);
    let other = al * bh + (middle & 0xffffu);
    return vec2((other << 16u) | (low & 0xffffu), ah * bh + (middle >> 16u) + (other >> 16u));
}

fn multiplied(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = wide(a.x, b.x);
    return vec2(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn is_negative(a: vec2<u32>) -> bool {
    return a.y >> 31u == 1u;
}

fn is_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    if (a.y != b.y) {
        return (a.y ^ 0x80000000u) < (b.y ^ 0x80000000u);
    }
    return a.x < b.x;
}

fn truth(yes: bool) -> vec2<u32> {
    return vec2(select(0u, 1u, yes), 0u);
}
