@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = linear(group);
    if (row >= p.rows) {
        return;
    }
    let start = at_x(row);
    // The key that the last one had, and the index from which on that counts again.
    var key = KEY_OF_NAN;
    var next = 0u;
    for (var rank = 0u; rank < p.k; rank += 1u) {
        var first = vec3(0u, 0u, 0xffffffffu);
        for (var i = lane.index; i < p.width; i += WORKGROUP) {
            let mine = vec3(key_of(load_x(start + i * p.x_step)), 0u, i);
            if ((mine.x < key || (mine.x == key && i >= next)) && is_before(mine, first)) {
                first = mine;
            }
        }
        first = best_all(first, lane);
        key = first.x;
        next = first.z + 1u;
        if (lane.index == 0u) {
            store_values(at_values(row) + rank * p.values_step, load_x(start + first.z * p.x_step));
            store_indices(at_indices(row) + rank * p.indices_step, vec2(first.z, 0u));
        }
    }
}
