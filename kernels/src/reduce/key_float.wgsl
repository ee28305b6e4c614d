// NaN comes first, whether the largest or the smallest is looked for.
fn key(at: u32) -> vec2<u32> {
    let mine = key_of(load_x(at));
    return vec2(select(mine, ~mine, SMALLEST == 1u && mine != KEY_OF_NAN), 0u);
}
