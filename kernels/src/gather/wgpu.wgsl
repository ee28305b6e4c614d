@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i >= p.count) {
        return;
    }
    let index = index_index(at_index(i), p.size);
    if (index < p.size) {
        put_y(at_y(i), bits_x(at_x(i) + index * p.stride));
    }
}
