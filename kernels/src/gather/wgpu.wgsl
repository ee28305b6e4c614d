@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i >= p.count) {
        return;
    }
    // Another dispatch has what is not in this part of the dimension, and none what is outside it.
    let index = index_index(at_index(i), p.size) - p.first;
    if (index < p.there) {
        put_y(at_y(i), bits_x(at_x(i) + index * p.stride));
    }
}
