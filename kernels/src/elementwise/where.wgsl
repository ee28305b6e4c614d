@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i >= p.count) {
        return;
    }
    if (bits_condition(at_condition(i)).x != 0u) {
        put_y(at_y(i), bits_a(at_a(i)));
    } else {
        put_y(at_y(i), bits_b(at_b(i)));
    }
}
