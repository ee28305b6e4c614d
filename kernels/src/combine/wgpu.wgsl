@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i >= p.tokens * p.width) {
        return;
    }
    let token = i / p.width;
    let column = i % p.width;
    var sum = 0.0;
    for (var j = 0u; j < p.top_k; j += 1u) {
        let row = index_place((token * p.top_k + j) * p.place_step, p.slots);
        if (row < p.slots) {
            let weight = load_weights(token * p.weights_row + j * p.weights_step);
            sum = fma(weight, load_y(row * p.y_row + column * p.y_step), sum);
        }
    }
    let at = token * p.out_row + column * p.out_step;
    if (ACCUMULATE == 1u) {
        sum = load_out(at) + sum;
    }
    store_out(at, sum);
}
