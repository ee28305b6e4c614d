@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i < p.count) {
        store_y(at_y(i), function(load_a(at_a(i)), second(i)));
    }
}
