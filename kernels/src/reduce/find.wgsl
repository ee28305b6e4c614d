@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = linear(group);
    if (row >= p.rows) {
        return;
    }
    let start = at_x(row);
    var first = vec3(0u, 0u, 0xffffffffu);
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        let mine = vec3(key(start + at_width(i)), i);
        if (is_before(mine, first)) {
            first = mine;
        }
    }
    first = best_all(first, lane);
    if (lane.index == 0u) {
        store_y(at_y(row), result(start + at_width(first.z), first.z));
    }
}
