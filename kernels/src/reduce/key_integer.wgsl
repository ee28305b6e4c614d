fn key(at: u32) -> vec2<u32> {
    let x = load_x(at);
    let mine = vec2(x.y ^ 0x80000000u, x.x);
    return select(mine, ~mine, SMALLEST == 1u);
}
